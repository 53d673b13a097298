"""The folder of a run: one writer at a time, one config for good."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, TextIO

from fst_core.checkpoint import check_slow, list_checkpoints, read_state
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.journal import effective, read_events
from fst_core.provenance import config_hash


class RunBusy(RuntimeError):
    """Another process is writing this run's folder."""


class RunMismatch(RuntimeError):
    """The folder holds a run of another config."""


def lock(folder: Path) -> TextIO:
    """Hold a run folder, made if need be, for this process until the returned file is closed.

    Raises:
        RunBusy: if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise RunBusy(
            f"{folder} is being written by another process (pid {owner}); wait for it or stop it"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def refuse_other_config(folder: Path, config: RunConfig) -> None:
    """Raise if the folder was begun with settings that make another run.

    Raises:
        RunMismatch: with the settings that differ.
    """
    if not (folder / "config.json").exists():
        return
    before, now = read_config(folder), config.model_dump(mode="json")
    if config_hash(before) != config_hash(now):
        changed = ", ".join(differences(before, now))
        raise RunMismatch(
            f"{folder} holds a run of another config ({changed}); give this one another name "
            "(--set name=...) or start afresh with --fresh"
        )


def ended(folder: Path) -> bool:
    """Whether a run folder's journal has reached its end."""
    events = effective(read_events(folder / "journal.jsonl"))
    return bool(events) and events[-1]["kind"] == "end"


def final_weights(folder: Path) -> Path | None:
    """Folder of a finished run's last weights; None where it never changed the base model's.

    Raises:
        ConfigError: if there is no such run, or it has not ended, or its checkpoint is gone.
    """
    if not (folder / "journal.jsonl").is_file():
        raise ConfigError(f"start_from: there is no run in {folder}; run it first")
    if not ended(folder):
        raise ConfigError(f"start_from: the run in {folder} has not ended; finish it first")
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        raise ConfigError(f"start_from: {folder} holds no checkpoint to start from")
    weights = checkpoints[-1] / "slow"
    if read_state(checkpoints[-1]).step and read_config(folder)["slow"]["type"] != "none":
        check_slow(checkpoints[-1])
        return weights
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """The resolved config a run folder was begun with.

    Raises:
        RunMismatch: if the file is damaged.
    """
    path = folder / "config.json"
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise RunMismatch(f"{path} is damaged ({error}); start afresh with --fresh") from error
    if not isinstance(data, dict):
        raise RunMismatch(f"{path} holds no config; start afresh with --fresh")
    return data


def keep_config(folder: Path, config: RunConfig) -> None:
    """Write the resolved config beside the journal; the file appears whole."""
    text = json.dumps(config.model_dump(mode="json"), indent=1, ensure_ascii=False)
    temporary = folder / ".config.json"
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "config.json")


def differences(before: Any, now: Any, path: str = "") -> list[str]:
    """Dotted keys whose values differ between two JSON documents, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [
            line
            for key in keys
            for line in differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if before == now else [f"{path} {before!r} -> {now!r}"]
