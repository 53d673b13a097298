"""What a run needs to go on after its process died: written atomically, one folder each.

    checkpoints/0007/state.json   step, next phase, journal position, population, ledger
    checkpoints/0007/slow/        weights or adapters (safetensors), optimizer, schedule; absent
                                  before step 1
    checkpoints/0007/SHA256SUMS   of each file, as sha256sum writes and checks them

A folder appears under its name only when everything in it is on disk. A checkpoint taken after a
fast phase shares the unchanged weight files of the one before it through hard links: nothing ever
writes into a file of a checkpoint, it is only linked, replaced by another or removed. What a disk
damages, it damages for all that share it, and is refused before anything is loaded.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fst_core.records import (
    Population,
    Rollout,
    population_from_json,
    rollout_from_json,
    to_json,
)

FORMAT = 1
STATE, SUMS = "state.json", "SHA256SUMS"
SLOW_FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")
"""What a gradient learner cannot go on without."""
ADAPTERS, ADAPTERS_CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""Instead of model.safetensors where adapters alone are trained (`policy.lora`)."""
NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
)
"""Why a file system gives no hard link to a file."""
NEARLY_FULL_BYTES = 1 << 20
"""Free space under which a failed write is put down to a full disk."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; nothing that was there is lost."""


@dataclass(frozen=True, slots=True)
class State:
    """The small part of a checkpoint."""

    step: int
    next_phase: int
    journal_seq: int
    """Last event that belongs to this checkpoint; a resume rewinds to it."""
    population: Population
    ledger: Mapping[str, int]
    config_hash: str
    recent: tuple[Rollout, ...] = ()
    """Slow rollouts that the next fast phase may read."""
    problems: Mapping[str, Any] | None = None
    """What the order of the problems to come depends on (`curriculum.problems.Problems`)."""


def _sync_folder(folder: Path) -> None:
    """Flush every file below a folder, and the folder entries, to disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_checkpoint(
    root: Path, state: State, save_slow: Callable[[Path], None] | None, keep: int
) -> Path:
    """Write the next checkpoint under `root` and remove all but the newest `keep`.

    Args:
        save_slow: writes the slow part's files into a folder; None when there are none.

    Raises:
        CheckpointError: if the disk is full or not writable; older checkpoints stay.
    """
    existing = list_checkpoints(root)
    previous = existing[-1] if existing else None
    temporary = root / ".writing"  # one writer: the run folder is locked
    target = root / f"{state.next_phase:04d}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        sums: dict[str, str] = {}
        if save_slow is not None and state.step > 0:
            sums = _write_slow(temporary / "slow", previous, state.step, save_slow)
        data = {"format": FORMAT, **to_json(state)}
        (temporary / STATE).write_text(json.dumps(data, indent=1, ensure_ascii=False))
        with ThreadPoolExecutor(1) as aside:  # the disk takes what is hashed meanwhile
            syncing = aside.submit(_sync_folder, temporary)
            _write_sums(temporary, sums)
            syncing.result()
        _sync_folder(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        _sync_folder(root)
    except (OSError, RuntimeError, SafetensorError) as error:
        full = is_full(root, error)
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, RuntimeError) and not full:
            raise
        reason = "the disk is full" if full else str(error)
        raise CheckpointError(
            f"checkpoint {target} could not be written: {reason}; the one before it is intact, "
            "so free some space and run the same command again"
        ) from error
    for old in list_checkpoints(root)[:-keep]:
        shutil.rmtree(old)
    return target


def is_full(folder: Path, error: Exception) -> bool:
    """Whether a failed write failed for want of space; torch and safetensors hide the errno."""
    told = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return told or shutil.disk_usage(folder).free < NEARLY_FULL_BYTES


def _write_slow(
    folder: Path, previous: Path | None, step: int, save_slow: Callable[[Path], None]
) -> dict[str, str]:
    """Write the slow part's files, or take those of the same step; returns the sums of these."""
    if previous is not None and read_state(previous).step == step and (previous / "slow").is_dir():
        shutil.copytree(previous / "slow", folder, copy_function=link_or_copy)
        sums = _sums_of(previous) or {}
        return {name: digest for name, digest in sums.items() if name.startswith("slow/")}
    folder.mkdir()
    save_slow(folder)
    return {}


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """A hard link to a file; a copy on a file system without them, or where it has too many."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copy2(source, target)


def _write_sums(folder: Path, known: Mapping[str, str]) -> None:
    """Write down what every file holds; of files taken from another checkpoint, as that one says.

    So what a disk has made of them since they were written is not taken for whole.
    """
    files = (path for path in folder.rglob("*") if path.is_file())
    names = sorted(str(path.relative_to(folder)) for path in files)
    sums = {**known, **_hashed(folder, [name for name in names if name not in known])}
    (folder / SUMS).write_text("".join(f"{sums[name]}  {name}\n" for name in names))


def _sums_of(checkpoint: Path) -> dict[str, str] | None:
    """SHA-256 by name of a checkpoint's files; None of one written before there were sums."""
    path = checkpoint / SUMS
    if not path.is_file():
        return None
    try:
        lines = [line.split("  ", 1) for line in path.read_text().splitlines()]
        return {name: digest for digest, name in lines}
    except (OSError, ValueError) as error:
        raise damaged(checkpoint, f"{SUMS}: {error}") from error


def _hashed(folder: Path, names: Sequence[str]) -> dict[str, str]:
    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter to others
        return dict(zip(names, pool.map(digest, names), strict=True))


def _refuse_changed(checkpoint: Path, inside: str, needed: Sequence[str]) -> None:
    """Raise if a file at or below a name is not what was written, or is gone, as its sums say.

    Args:
        needed: files that the sums must name.

    Raises:
        CheckpointError: naming the first of them.
    """
    sums = _sums_of(checkpoint)
    if sums is None:
        return
    unnamed = [name for name in needed if name not in sums]
    if unnamed:
        raise damaged(checkpoint, f"{SUMS} does not name {unnamed[0]}")
    names = [name for name in sums if name == inside or name.startswith(f"{inside}/")]
    try:
        found = _hashed(checkpoint, names)
    except FileNotFoundError as error:
        raise damaged(checkpoint, f"no {Path(error.filename).relative_to(checkpoint)}") from error
    except OSError as error:
        raise damaged(checkpoint, error) from error
    changed = [name for name in names if found[name] != sums[name]]
    if changed:
        raise damaged(checkpoint, f"{changed[0]} does not hold what was written")


def list_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first; a folder of any other name is none."""
    named = (path for path in root.glob("[0-9]*") if path.name.isdecimal())
    complete = (path for path in named if (path / STATE).is_file())
    return sorted(complete, key=lambda path: int(path.name))


def read_state(folder: Path) -> State:
    """The small part of a checkpoint.

    Raises:
        CheckpointError: if it is damaged, or was written by another version of the format.
    """
    _refuse_changed(folder, STATE, [STATE])
    try:
        data: dict[str, Any] = json.loads((folder / STATE).read_text())
        if data.pop("format", None) != FORMAT:
            raise CheckpointError(f"checkpoint {folder} has another format; start the run afresh")
        data["population"] = population_from_json(data["population"])
        data["recent"] = tuple(map(rollout_from_json, data.get("recent", ())))
        return State(**data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(folder, error) from error


def damaged(folder: Path, reason: object) -> CheckpointError:
    """The error that says what to do about a checkpoint that cannot be used."""
    sharing = [path.name for path in list_checkpoints(folder.parent) if _share(path, folder)]
    also = f" and {', '.join(sharing)}, which share its weight files," if sharing else ""
    return CheckpointError(
        f"checkpoint {folder} is damaged ({reason}); remove that folder{also} to go on from the "
        "one before, or start afresh with --fresh"
    )


def _share(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold one file under both names."""
    pairs = ((one / "slow" / path.name, path) for path in (other / "slow").glob("*"))
    return one != other and any(mine.exists() and mine.samefile(path) for mine, path in pairs)


def check_slow(folder: Path) -> None:
    """Refuse a checkpoint whose weights, optimizer, schedule or step count are not all as written.

    Raises:
        CheckpointError: naming what is missing or damaged.
    """
    adapted = (folder / "slow" / ADAPTERS_CONFIG).is_file()
    names = (ADAPTERS, *SLOW_FILES[1:]) if adapted else SLOW_FILES
    missing = [name for name in names if not (folder / "slow" / name).is_file()]
    if missing:
        raise damaged(folder, f"no slow/{missing[0]}")
    _refuse_changed(folder, "slow", [f"slow/{name}" for name in names])
