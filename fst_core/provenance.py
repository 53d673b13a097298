"""Where a run's numbers come from: config, code revision, versions, data."""

import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fst_core.config import RunConfig, environment_name
from fst_core.environments.pools import MANIFEST, sha256_of
from fst_core.environments.tasks import task_configs
from fst_core.records import SPLITS, Problem, content_id

PACKAGES = ("torch", "transformers", "trl", "peft", "gepa", "reasoning-gym", "vllm", "fst-lab")
RUN_PROPERTIES = frozenset({"why", "threads", "data"})
"""Settings that do not change what a run is; the problems themselves are hashed apart."""


def config_hash(config: dict[str, Any]) -> str:
    """Hash of what a resolved config makes a run be."""
    kept = {key: value for key, value in config.items() if key not in RUN_PROPERTIES}
    return content_id(json.dumps(kept, sort_keys=True))


def arm_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of those, the settings that make an arm what it is: runs of one arm may differ in others."""
    shared = shared_settings(config)
    return {key: value for key, value in shared.items() if key not in RUN_PROPERTIES}


def shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config's settings that are the same in every seed of its arm.

    A run may begin from another run's weights or contexts ("demo/rl-s0"); the seeds of an arm begin
    from the seeds of that run's arm ("demo/rl").
    """
    shared = {key: value for key, value in config.items() if key != "seed"}
    if isinstance(shared.get("start_from"), str):
        shared["start_from"] = _arm_of(shared["start_from"])
    contexts = shared.get("contexts")
    if isinstance(contexts, Mapping) and isinstance(contexts.get("start_from"), str):
        shared["contexts"] = {**contexts, "start_from": _arm_of(contexts["start_from"])}
    return shared


def _arm_of(run: str) -> str:
    return re.sub(r"-s\d+$", "", run)


def git_revision() -> str | None:
    """Commit of the working tree, with "-dirty" when it has changes; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("-dirty" if _git(folder, "status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def versions() -> dict[str, str]:
    """Installed versions of what computes the numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def data_hashes(config: RunConfig) -> dict[str, str]:
    """SHA-256 of every file that a run reads problems from.

    A pool's files go by their path below `data`, any other by the path in the config; a data set
    that comes from the hub has none.
    """
    tasks = task_configs(config)
    if config.data:
        root = Path(config.data)
        sources = [root / environment_name(task) for task in tasks]
    else:
        root = Path()
        sources = [Path(given) for task in tasks if (given := getattr(task, "path", None))]
    names = (MANIFEST, *(f"{split}.jsonl" for split in SPLITS))
    paths = {path for source in sources for path in (source, *(source / name for name in names))}
    return {
        str(path.relative_to(root) if path.is_relative_to(root) else path): sha256_of(path)
        for path in sorted(paths)
        if path.is_file()
    }


def provenance(
    config: RunConfig, train: Iterable[Problem], validation: Iterable[Problem]
) -> dict[str, Any]:
    """The fields of a journal's `run` event.

    Args:
        train: the run's training stream, in order.
        validation: the problems it is measured on.
    """
    return {
        "config": config.model_dump(mode="json"),
        "git": git_revision(),
        "versions": versions(),
        "data": data_hashes(config),
        "problems": {
            "train": content_id(*(p.id for p in train)),
            "validation": content_id(*(p.id for p in validation)),
        },
    }
