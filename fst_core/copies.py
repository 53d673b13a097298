"""A run folder's copy at one moment, and how far it is: what can be kept elsewhere."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fst_core.checkpoint import list_checkpoints
from fst_core.content import Content, content_of
from fst_core.run_folder import JOURNAL
from fst_core.storage import StorageError

PACKED = f"{JOURNAL}.gz"
HEADS = ("config.json", JOURNAL, PACKED)
CHECKPOINTS = "checkpoints"
TRIES = 5


class Position(NamedTuple):
    """How far a copy of a run is; the further one compares as greater."""

    checkpoint: int
    """Next phase of its newest checkpoint; -1 without any."""
    ended: bool
    events: int
    """Whole lines of its journal."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open file up to a size; equal for what cannot have another content."""

    device: int
    inode: int
    changed: int
    size: int
    descriptor: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Copy:
    """A run at one moment: from a folder, or as a manifest tells of it."""

    run: str
    """Hash of the journal's first line."""
    position: Position
    files: Mapping[str, Any]
    removed: tuple[str, ...] = ()
    version: str = ""


@contextmanager
def opened(folder: Path) -> Iterator[Copy]:
    """A run as it is now: files held open, so that none can go while it is sent."""
    for _ in range(TRIES):
        with ExitStack() as stack:
            try:
                copy = _open_all(folder, stack)
            except FileNotFoundError:  # an old checkpoint was just removed
                continue
            yield copy
            return
    raise StorageError(f"{folder} changes faster than it can be read; try again later")


def _open_all(folder: Path, stack: ExitStack) -> Copy:
    kept = list_checkpoints(folder / CHECKPOINTS)
    paths = [path for checkpoint in kept for path in files_below(checkpoint)]
    files = {str(p.relative_to(folder)): _source(stack, p) for p in paths}
    if paths != [path for checkpoint in kept for path in files_below(checkpoint)]:
        raise FileNotFoundError(folder)
    heads = [name for name in HEADS if (folder / name).is_file()]
    files |= {name: _source(stack, folder / name) for name in heads}
    name = JOURNAL if JOURNAL in heads else PACKED
    source = files[name]
    data = os.pread(source.descriptor, source.size, 0)
    if name == JOURNAL:
        data = data[: data.rfind(b"\n") + 1]  # the rest of a line that is being written
        files[name] = replace(source, size=len(data))
    else:
        data = _unpacked(folder, data)
    newest = int(kept[-1].name) if kept else -1
    return Copy(run_of(data), _position_of(data, newest), files)


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, in order of name; what others leave there (.DS_Store) is none."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not _hidden(path.relative_to(folder)))


def _hidden(path: Path) -> bool:
    return any(name.startswith(".") for name in path.parts)


def _source(stack: ExitStack, path: Path) -> Source:
    descriptor = stack.enter_context(path.open("rb")).fileno()
    found = os.fstat(descriptor)
    return Source(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, descriptor)


@lru_cache(maxsize=256)
def read_content(source: Source) -> Content:
    """What an open file holds: read once for all hard links, and for later archives."""
    return content_of(source.descriptor, source.size)


def journal_of(folder: Path) -> bytes:
    """A folder's journal, unpacked; empty without one.

    Raises:
        StorageError: if a packed one is damaged.
    """
    packed = folder / PACKED
    if (folder / JOURNAL).is_file():
        return (folder / JOURNAL).read_bytes()
    return _unpacked(folder, packed.read_bytes()) if packed.is_file() else b""


def _unpacked(folder: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise StorageError(f"{folder / PACKED} is damaged ({error}); remove it") from error


def position(folder: Path) -> Position:
    """How far the run in a folder is."""
    kept = list_checkpoints(folder / CHECKPOINTS)
    return _position_of(journal_of(folder), int(kept[-1].name) if kept else -1)


def _position_of(journal: bytes, checkpoint: int) -> Position:
    lines = journal.split(b"\n")[:-1]
    if not lines:
        return Position(-1, False, 0)
    return Position(checkpoint, b'"kind": "end"' in lines[-1], len(lines))


def run_of(journal: bytes) -> str:
    """Which run a journal is of: a fresh start of the same config has another first line."""
    return hashlib.sha256(journal.partition(b"\n")[0]).hexdigest()
