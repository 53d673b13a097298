"""Run folders in an S3 store: journal, config and checkpoints, as they were at one moment.

    STORE/STUDY/RUN/manifest.json                 what is kept: path -> object, size, SHA-256
    STORE/STUDY/RUN/objects/SHA256-XXXXXXXX/NAME  one content each; hard links are sent once

The manifest is written last and replaces the very version that was read, so a run in the store is
whole at every moment, and of two archives at once the slower goes on from what the faster left. It
also lists what it takes out of use; that is removed afterwards and never used again, by anyone.
Which of two copies is further is told by the run's own counts (checkpoint, end, events), never by a
clock; which run a copy is of, by the first line of its journal.

Two archives of one folder on one host wait for each other. That saves work and no more, so a folder
in which nothing can be written is archived, too.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fst_core.checkpoint import is_full, link_or_copy
from fst_core.copies import (
    CHECKPOINTS,
    HEADS,
    PACKED,
    TRIES,
    Copy,
    Position,
    files_below,
    journal_of,
    opened,
    position,
    read_content,
    run_of,
)
from fst_core.home import place_of
from fst_core.journal import read_events
from fst_core.run_folder import ARRIVING, BUSY, EARLIER, JOURNAL, REPLACES, lock, no_run
from fst_core.storage import ManifestChanged, StorageError, Store

FORMAT = 1
ENTRY = {"object": str, "sha256": str, "size": int}
"""What a manifest says of each file."""
MANIFEST, OBJECTS = "manifest.json", "objects/"
DAMAGED = ""
"""In place of a run's hash: the manifest cannot be read."""

OnBytes = Callable[[str, int, int], None]
"""(path in the run folder, bytes that went over just now, bytes of the file)."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What an archive or a restore has done."""

    files: int
    """Contents that went over; 0 where nothing was lacking."""
    size: int
    """Bytes of these."""
    further: bool = False
    """Whether the other side was further already, so that nothing was to be done."""
    mended: bool = False
    """Whether what the store held of the run was damaged, and was replaced."""


def run_url(store: str, folder: Path) -> str:
    """Where a run folder is kept in a store."""
    return f"{store.rstrip('/')}/{place_of(folder)}"


def archive(
    folder: Path, url: str, instead: bool = False, on_bytes: OnBytes | None = None
) -> Moved:
    """Send what the store lacks of a run, which may be going on.

    Args:
        url: address of the run in the store (see `run_url`).
        instead: also where the store holds another run under this name, or a damaged one.
    Raises:
        JournalError: if the folder's journal is damaged.
        StorageError: if the folder holds no run, the store cannot be used, or holds another run or
            a damaged one.
    """
    store = Store(url)
    with _alone(folder), opened(folder) as here:
        for _ in range(TRIES):
            there = _read_manifest(store, instead)
            if there and there.run != here.run and not (instead or _may_replace(folder, there)):
                raise StorageError(
                    f"{url} holds another run of the same name; nothing was sent: give this one "
                    "another name, or replace that one: fst archive --replace RUN"
                )
            if there and there.run == here.run and there.position > here.position:
                return Moved(0, 0, further=True)
            try:
                moved = _send(store, here, there, on_bytes or _silent)
                return replace(moved, mended=there is not None and there.run == DAMAGED)
            except ManifestChanged:
                continue
    raise StorageError(f"{url} is being archived from several places at once; try again later")


def restore(url: str, folder: Path, on_bytes: OnBytes | None = None) -> Moved:
    """Bring a run from the store, unless this folder's copy is as far.

    A folder in which a fresh start has set a run aside is left as it is; that the new run may
    replace the one in the store is kept in mind.

    Raises:
        StorageError: if the store cannot be used, holds no such run or a damaged one, the folder
            holds another run, or the disk is full; what was in the folder is intact.
        RunBusy: if a process is writing the folder.
    """
    store = Store(url)
    there = _read_manifest(store)
    if there is None:
        raise StorageError(f"there is no run at {url}{_runs_below(store)}")
    return _bring(store, there, folder, on_bytes or _silent)


def fetch(store_url: str, folder: Path) -> Moved:
    """Bring a run that the store has more of than this folder; none there is no error.

    Raises:
        StorageError, RunBusy: see `restore`.
    """
    store = Store(run_url(store_url, folder))
    there = _read_manifest(store)
    if there is None or _is_of_another(folder, there):
        return Moved(0, 0)
    return _bring(store, there, folder, _silent)


def _bring(store: Store, there: Copy, folder: Path, on_bytes: OnBytes) -> Moved:
    if _is_of_another(folder, there):
        raise StorageError(f"{folder} holds another run than {store.url}; choose another --runs")
    if position(folder) >= there.position:
        return Moved(0, 0, further=True)
    with lock(folder):  # which puts back a run that a dead process had set aside
        if (folder / EARLIER).is_dir():
            (folder / REPLACES).write_text(there.run)
            return Moved(0, 0)
        if position(folder) >= there.position:
            return Moved(0, 0, further=True)
        try:
            moved = _download_newest(store, there, folder, on_bytes)
            _put_in_place(folder)
        except OSError as error:
            if not is_full(folder, error):
                raise
            shutil.rmtree(folder / ARRIVING, ignore_errors=True)
            size = sum(entry["size"] for entry in there.files.values())
            raise StorageError(
                f"the disk of {folder} is full: the run needs {size / 1e9:.2f} GB; free some space "
                "and do the same again; what was there is intact"
            ) from error
    return moved


def _download_newest(store: Store, there: Copy, folder: Path, on_bytes: OnBytes) -> Moved:
    """Gather the run; where it is archived meanwhile, objects go, and what is newer is taken."""
    for _ in range(TRIES):
        try:
            return _download(store, there, folder, on_bytes)
        except StorageError:
            newer = _read_manifest(store)
            if newer is None or newer.run != there.run or newer.version == there.version:
                raise
            there = newer
    raise StorageError(f"{store.url} changes faster than it can be fetched; try again later")


def _send(store: Store, here: Copy, there: Copy | None, on_bytes: OnBytes) -> Moved:
    """Upload what is lacking, then the manifest, then remove what it no longer names."""
    existing, gone = store.names(OBJECTS), set(there.removed) if there else set()
    objects = {_hash_of(name): name for name in existing if name not in gone}
    files: dict[str, dict[str, Any]] = {}
    sent: list[int] = []
    for path, source in here.files.items():
        content = read_content(source)
        name = objects.get(content.sha256)
        if name is None or existing.get(name, content.size) != content.size:
            stem, told = f"{OBJECTS}{content.sha256}", _teller(on_bytes, path, content.size)
            name = objects[content.sha256] = store.upload(
                stem, PurePosixPath(path).name, source.descriptor, content, told
            )
            sent.append(content.size)
        files[path] = {"object": name, "size": content.size, "sha256": content.sha256}
    removed = sorted(set(existing) - {entry["object"] for entry in files.values()})
    if there is None or removed or (there.files, there.position) != (files, here.position):
        _write_manifest(store, here, files, removed, there.version if there else None)
    store.remove(removed)
    wanted = {entry["sha256"] for entry in files.values()}
    store.forget_uploads(OBJECTS, lambda name: _hash_of(name) in wanted)
    return Moved(len(sent), sum(sent))


def _download(store: Store, there: Copy, folder: Path, on_bytes: OnBytes) -> Moved:
    """Gather the run in ARRIVING; what is there or in the folder already does not go over again."""
    arriving = folder / ARRIVING
    _clear(arriving, there.files)
    gathered = _held(folder, {entry["size"] for entry in there.files.values()})
    fetched: list[int] = []
    for path, entry in there.files.items():
        target, size, sha256 = arriving / path, entry["size"], entry["sha256"]
        if target.is_file() and _sha256(target) == sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if sha256 not in gathered:
            store.download(entry["object"], target, sha256, _teller(on_bytes, path, size))
            gathered[sha256] = target
            fetched.append(size)
        else:
            link_or_copy(gathered[sha256], target)
    return Moved(len(fetched), sum(fetched))


def _clear(arriving: Path, kept: Collection[str]) -> None:
    """Remove what an interrupted fetch has left of files that are not wanted now."""
    for path in sorted(arriving.rglob("*"), reverse=True):  # what is in a folder before itself
        if path.is_dir():
            with suppress(OSError):  # it holds something
                path.rmdir()
        elif str(path.relative_to(arriving)) not in kept:
            path.unlink()


def _put_in_place(folder: Path) -> None:
    """Make what has arrived the folder's run.

    The checkpoints go first and come last: a process killed between leaves a journal that no
    checkpoint is beyond, and the store is still further.
    """
    arriving, checkpoints = folder / ARRIVING, folder / CHECKPOINTS
    if checkpoints.exists():
        checkpoints.rename(arriving / "before")
    for name in HEADS:
        if (arriving / name).exists():
            (arriving / name).replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    if (arriving / CHECKPOINTS).exists():
        (arriving / CHECKPOINTS).rename(checkpoints)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    shutil.rmtree(arriving)


def _read_manifest(store: Store, instead: bool = False) -> Copy | None:
    """What the store holds; `instead`: for a damaged manifest a copy of the run DAMAGED."""
    found = store.read(MANIFEST)
    if found is None:
        return None
    data, version = found
    try:
        return _copy_of(store, json.loads(data), version)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if instead:
            return Copy(DAMAGED, Position(-1, False, 0), {}, version=version)
        raise StorageError(
            f"{store.url}/{MANIFEST} is damaged ({error}); put a whole run in its place: "
            "fst archive --replace RUN"
        ) from error


def _copy_of(store: Store, told: Any, version: str) -> Copy:
    if told["format"] != FORMAT:
        raise StorageError(f"{store.url} has another format; use the version that wrote it")
    for path, entry in told["files"].items():
        if not _is_expected(path):
            raise ValueError("it names files that no run has")
        if not all(isinstance(entry[key], kind) for key, kind in ENTRY.items()):
            raise TypeError("a file without its object, size or hash")
    reached = Position(**told["position"])
    names = (told["run"], *told["removed"])
    if not all(isinstance(n, int) for n in reached) or not all(isinstance(n, str) for n in names):
        raise TypeError("no position, or no names")
    return Copy(told["run"], reached, told["files"], tuple(told["removed"]), version)


def _write_manifest(
    store: Store,
    here: Copy,
    files: Mapping[str, Any],
    removed: list[str],
    version: str | None,
) -> None:
    told = {"format": FORMAT, "run": here.run, "position": here.position._asdict()}
    data = json.dumps({**told, "files": files, "removed": removed}, indent=1)
    store.write(MANIFEST, data.encode(), version)


def _is_expected(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return path in HEADS or (
        len(parts) > 2 and parts[0] == CHECKPOINTS and not any(p.startswith(".") for p in parts)
    )


def _runs_below(store: Store) -> str:
    """The runs under an address that is not a run's, for whoever left out the last part."""
    names = [PurePosixPath(name) for name in store.names("")]
    runs = sorted({str(name.parent) for name in names if name.name == MANIFEST})
    return f"; there are {', '.join(runs[:10])}" if runs else ""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for another archive of this folder: it may send what this one would."""
    if not (folder / JOURNAL).is_file() and not (folder / PACKED).is_file():
        raise StorageError(f"{folder} cannot be archived: {no_run(folder)}")
    if not read_events(folder / JOURNAL):
        raise StorageError(f"{folder} cannot be archived: its journal is empty; run it first")
    descriptor = _to_be_locked(folder)
    try:
        with suppress(OSError):  # no locks there: what the store's manifest refuses is left
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _to_be_locked(folder: Path) -> int:
    """What archives of a folder wait for: a file in it, or itself where none can be made."""
    try:
        return os.open(folder / BUSY, os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError:  # read-only, another user's, or full
        return os.open(folder, os.O_RDONLY)


def _held(folder: Path, sizes: Collection[int]) -> dict[str, Path]:
    """What a folder holds of these sizes, and of an interrupted fetch, by SHA-256."""
    places = [folder / ARRIVING / CHECKPOINTS, folder / CHECKPOINTS]
    files = [path for place in places for path in files_below(place)]
    return {_sha256(path): path for path in files if path.stat().st_size in sizes}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_of_another(folder: Path, there: Copy) -> bool:
    journal = journal_of(folder)
    return b"\n" in journal and run_of(journal) != there.run


def _may_replace(folder: Path, there: Copy) -> bool:
    mark = folder / REPLACES
    return mark.is_file() and mark.read_text() == there.run


def _hash_of(name: str) -> str:
    return name.removeprefix(OBJECTS).partition("-")[0]


def _teller(on_bytes: OnBytes, path: str, size: int) -> Callable[[int], None]:
    return lambda count: on_bytes(path, count, size)


def _silent(path: str, count: int, size: int) -> None:
    """Nobody watches."""
