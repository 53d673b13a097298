"""The folder of a run: one writer at a time, one config for good, and how a run is begun afresh.

A run that is begun afresh replaces an earlier one, which waits in a folder inside until the new one
is open. Only renames move it, its journal first on the way out and last on the way back, so that a
process killed at any point leaves one whole run behind: whoever locks the folder next finishes it.
"""

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from fst_core.checkpoint import check_slow, list_checkpoints, read_state
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.journal import Event, effective, read_events
from fst_core.provenance import config_hash

LOCK, JOURNAL = "lock", "journal.jsonl"
BUSY, REPLACES, ARRIVING = ".archive.lock", ".replaces", ".arriving"
"""What archiving and fetching a run leave in its folder (see `fst_core.archive`)."""
EARLIER, REMOVED = ".earlier", ".removed"
"""Folders inside: the run that a fresh one is about to replace, and the rest of replaced ones."""


class RunBusy(RuntimeError):
    """Another process is writing this run's folder."""

    def __init__(self, message: str, holder: str = ""):
        super().__init__(message)
        self.holder = holder
        """That process, as "pid 12" or, of another host, "pid 12 on HOST"; empty if unknown."""


class RunMismatch(RuntimeError):
    """The folder holds a run of another config."""


def lock(folder: Path) -> TextIO:
    """Hold a run folder, made if need be, for this process until the returned file is closed.

    An earlier run that a dead process was about to replace is put back.

    Raises:
        RunBusy: if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = _hold(folder / LOCK, folder)
    try:
        _recover(folder)
    except BaseException:
        file.close()
        raise
    return file


def _hold(path: Path, folder: Path) -> TextIO:
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        holder = _holder(path)
        who, kill = (f" ({holder})", f" (kill {holder.split()[1]})") if holder else ("", "")
        raise RunBusy(
            f"{folder} is being written by another process{who}; wait until that has ended, or "
            f"stop it{kill}, then do the same again: it goes on at the last checkpoint",
            holder,
        ) from error
    file.truncate(0)
    file.write(f"{os.getpid()} {socket.gethostname()}")
    file.flush()
    return file


def _owner(path: Path) -> tuple[str, str]:
    """Pid and host that a lock's last holder has left in it; empty where it left none."""
    pid, _, host = path.read_text(errors="replace").strip().partition(" ")
    return (pid, host) if pid.isdecimal() else ("", "")


def _holder(path: Path) -> str:
    pid, host = _owner(path)
    where = f" on {host}" if host and host != socket.gethostname() else ""
    return f"pid {pid}{where}" if pid else ""


def _recover(folder: Path) -> None:
    """End what a dead process began; a living one is this process, its parent, or in the way."""
    shutil.rmtree(folder / REMOVED, ignore_errors=True)
    owner = folder / EARLIER / LOCK
    if not owner.parent.is_dir():
        return
    try:
        with _hold(owner, folder):
            settle(folder)
    except RunBusy:
        if _owner(owner)[0] not in (str(os.getpid()), str(os.getppid())):
            raise


def set_aside(folder: Path, kept: Collection[str]) -> TextIO | None:
    """Make room for a new run in a folder; `forget_earlier` or `settle` ends it.

    Args:
        kept: names of files that stay where they are.
    Returns:
        What holds the earlier run for this process and its children until it is closed; None
        where there was no run.
    Raises:
        RunBusy: if another process holds the folder.
    """
    if not folder.is_dir():
        return None
    with lock(folder):
        names = {path.name for path in folder.iterdir()} - {*kept, LOCK}
        if not names:
            return None
        (folder / EARLIER).mkdir()
        held = _hold(folder / EARLIER / LOCK, folder)
        for name in sorted(names, key=lambda name: name != JOURNAL):
            (folder / name).rename(folder / EARLIER / name)
    return held


def forget_earlier(folder: Path) -> bool:
    """Remove the run that a fresh one, now open, has replaced; whether there was one."""
    if not (folder / EARLIER).is_dir():
        return False
    (folder / EARLIER).rename(folder / REMOVED)  # at once: a part of a run is none
    shutil.rmtree(folder / REMOVED, ignore_errors=True)  # whoever locks the folder next goes on
    return True


def settle(folder: Path) -> bool:
    """End a fresh start: put the earlier run back, unless the new one has got beyond its start.

    Returns:
        Whether an earlier run was put back.
    """
    earlier = folder / EARLIER
    if not earlier.is_dir():
        return False
    journal = folder / JOURNAL
    if journal.exists() and journal.read_bytes().count(b"\n") > 1:  # more than how it began
        return not forget_earlier(folder)
    names = {path.name for path in earlier.iterdir()} - {LOCK}
    if names and JOURNAL not in names:
        journal.unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == JOURNAL):
        remove(folder / name)
        (earlier / name).rename(folder / name)
    shutil.rmtree(earlier)
    return True


def put_back(folder: Path) -> None:
    """Put back an earlier run that a dead process was about to replace, for whoever reads it.

    A living process is left alone: its own lock is tried first, before the folder's. Where nothing
    can be written, nothing changes.
    """
    if not (folder / EARLIER).is_dir():
        return
    with suppress(RunBusy, OSError):
        _hold(folder / EARLIER / LOCK, folder).close()
        lock(folder).close()


def no_run(folder: Path) -> str:
    """Why a folder without a journal holds no run, and what to do."""
    if (folder / EARLIER).is_dir():
        return (
            f"its run is set aside in {EARLIER} by a start with --fresh; wait for that start, "
            "or run the same command without --fresh to put it back"
        )
    return "there is no run in it; run it first"


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def refuse_other_config(folder: Path, config: RunConfig) -> None:
    """Raise if the folder was begun with settings that make another run.

    Raises:
        RunMismatch: with the settings that differ.
    """
    now = config.model_dump(mode="json")
    written = [read_config(folder)] if (folder / "config.json").exists() else []
    for before in [*written, *_configs_in(effective(read_events(folder / JOURNAL)))]:
        if config_hash(before) != config_hash(now):
            changed = ", ".join(differences(before, now))
            raise RunMismatch(
                f"{folder} holds a run of another config ({changed}); give this one another name "
                "(name=..., by --set or in a deployment's overrides) or, on a command line, start "
                "afresh with --fresh"
            )


def holds_finished(folder: Path, config: RunConfig) -> bool:
    """Whether a folder holds a finished run of exactly this config.

    Raises:
        RunBusy: if another process is replacing the run.
        RunMismatch: if its config.json is damaged.
    """
    if (folder / EARLIER).is_dir():
        lock(folder).close()  # which puts a run back that a dead process was replacing
    if not (folder / "config.json").is_file():
        return False
    events = effective(read_events(folder / JOURNAL))
    if not _at_end(events):
        return False
    found = {config_hash(before) for before in [read_config(folder), *_configs_in(events)]}
    return found == {config_hash(config.model_dump(mode="json"))}


def _configs_in(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What a run was begun with, as its journal tells."""
    return [event["config"] for event in events if event["kind"] == "run"]


def begun(folder: Path) -> bool:
    """Whether a run folder's journal holds an event that counts."""
    return bool(effective(read_events(folder / JOURNAL)))


def ended(folder: Path) -> bool:
    """Whether a run folder's journal has reached its end."""
    return _at_end(effective(read_events(folder / JOURNAL)))


def _at_end(events: Sequence[Event]) -> bool:
    return bool(events) and events[-1]["kind"] == "end"


def final_checkpoint(folder: Path) -> Path:
    """The last checkpoint of a finished run.

    Raises:
        ConfigError: if there is no such run, or it has not ended, or its checkpoint is gone.
    """
    if not (folder / JOURNAL).is_file():
        raise ConfigError(f"cannot start from {folder}: {no_run(folder)}")
    if not ended(folder):
        raise ConfigError(f"cannot start from {folder}: its run has not ended; finish it first")
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        raise ConfigError(
            f"cannot start from {folder}: it holds no checkpoint; run it again with --fresh"
        )
    return checkpoints[-1]


def final_weights(folder: Path) -> Path | None:
    """Folder of a finished run's last weights; None where it never changed the base model's.

    Raises:
        ConfigError: see `final_checkpoint`.
    """
    checkpoint = final_checkpoint(folder)
    if read_state(checkpoint).step and read_config(folder)["slow"]["type"] != "none":
        check_slow(checkpoint)
        return checkpoint / "slow"
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
