import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from fst_core.checkpoint import (
    CheckpointError,
    State,
    damaged,
    list_checkpoints,
    read_state,
    write_checkpoint,
)
from fst_core.records import Context, Population


def state(step: int, next_phase: int) -> State:
    population = Population((Context("a", ("p",), 1, "lesson"), Context("b")), ((0.5, 1.0),))
    return State(step, next_phase, 9, population, {"slow_rollouts": 3}, "hash")


def save(folder: Path) -> None:
    (folder / "weights").write_text("w")


def test_state_round_trips(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, state(2, 3), save, keep=2)
    assert read_state(path) == state(2, 3)


def test_old_ones_are_pruned_and_unchanged_weights_shared(tmp_path: Path) -> None:
    for step, phase in [(1, 1), (1, 2), (2, 3)]:
        write_checkpoint(tmp_path, state(step, phase), save, keep=2)
    names = [p.name for p in list_checkpoints(tmp_path)]
    assert names == ["0002", "0003"]


def test_same_step_hard_links_the_weights(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, state(1, 1), save, keep=3)
    second = write_checkpoint(tmp_path, state(1, 2), save, keep=3)
    third = write_checkpoint(tmp_path, state(2, 3), save, keep=3)
    inodes = [os.stat(p / "slow" / "weights").st_ino for p in (first, second, third)]
    assert inodes[0] == inodes[1] != inodes[2]


def test_no_later_checkpoint_writes_into_a_file_of_an_earlier_one(tmp_path: Path) -> None:
    """What hard links share is safe: files are linked, replaced or removed, never written into."""
    kept = tmp_path / "kept"
    kept.mkdir()
    was: dict[Path, bytes] = {}

    def save_anew(folder: Path) -> None:
        (folder / "weights").write_bytes(os.urandom(64))
        (folder / "optimizer.pt").write_bytes(os.urandom(64))

    for step, phase in [(1, 1), (1, 2), (1, 2), (2, 3), (2, 4), (3, 4), (3, 5)]:
        path = write_checkpoint(tmp_path / "checkpoints", state(step, phase), save_anew, keep=2)
        for file in filter(Path.is_file, path.rglob("*")):
            held = kept / f"{len(was)}"
            os.link(file, held)
            was[held] = file.read_bytes()
        assert {held: held.read_bytes() for held in was} == was


def test_of_a_damaged_checkpoint_those_that_share_its_files_are_named(tmp_path: Path) -> None:
    for step, phase in [(1, 1), (2, 2), (2, 3)]:
        last = write_checkpoint(tmp_path, state(step, phase), save, keep=3)
    assert "remove that folder and 0002, which share its weight files, to go on" in str(
        damaged(last, "why")
    )
    first = tmp_path / "0001"
    assert "is damaged (why); remove that folder to go on" in str(damaged(first, "why"))


def test_before_the_first_step_there_are_no_weights(tmp_path: Path) -> None:
    assert not (write_checkpoint(tmp_path, state(0, 1), save, keep=1) / "slow").exists()


def test_a_full_disk_leaves_the_previous_one_and_says_so(tmp_path: Path) -> None:
    before = write_checkpoint(tmp_path, state(1, 1), save, keep=1)

    def full(folder: Path) -> None:
        (folder / "part").write_text("x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match="the disk is full; the one before it is intact"):
        write_checkpoint(tmp_path, state(2, 2), full, keep=1)
    assert list(tmp_path.iterdir()) == [before]
    assert read_state(before).step == 1


def test_leftovers_of_a_dead_writer_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".writing").mkdir()
    (tmp_path / "0001").mkdir()
    assert list_checkpoints(tmp_path) == []
    path = write_checkpoint(tmp_path, state(1, 1), save, keep=1)
    assert list_checkpoints(tmp_path) == [path]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0001"]


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, state(1, 1), save, keep=1)
    data = json.loads((path / "state.json").read_text()) | {"format": 99}
    (path / "state.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="another format"):
        read_state(path)


def test_a_full_disk_is_seen_behind_an_error_that_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors and torch raise their own errors; then the free space tells."""

    def fail(folder: Path) -> None:
        raise RuntimeError("unexpected pos 64 vs 0")

    with pytest.raises(RuntimeError, match="unexpected pos"):
        write_checkpoint(tmp_path, state(1, 1), fail, keep=1)
    usage = type(shutil.disk_usage(tmp_path))(100, 100, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(CheckpointError, match="the disk is full"):
        write_checkpoint(tmp_path, state(1, 1), fail, keep=1)
    assert list(tmp_path.iterdir()) == []
