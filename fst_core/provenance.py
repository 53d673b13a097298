"""Where a run's numbers come from: config, code revision, versions, data."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fst_core.config import RunConfig
from fst_core.records import Problem, content_id

PACKAGES = ("torch", "transformers", "trl", "peft", "gepa", "reasoning-gym", "vllm", "fst-lab")
RUN_PROPERTIES = frozenset({"why", "threads", "data"})
"""Settings that do not change what a run is; the problems themselves are hashed apart."""


def config_hash(config: dict[str, Any]) -> str:
    """Hash of what a resolved config makes a run be."""
    kept = {key: value for key, value in config.items() if key not in RUN_PROPERTIES}
    return content_id(json.dumps(kept, sort_keys=True))


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


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
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
        "data": file_hashes(Path(config.data)) if config.data else {},
        "problems": {
            "train": content_id(*(p.id for p in train)),
            "validation": content_id(*(p.id for p in validation)),
        },
    }
