import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fst_core.checkpoint import (
    NO_LINKS,
    SLOW_FILES,
    SUMS,
    CheckpointError,
    State,
    check_slow,
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
    (path / SUMS).unlink()
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


def save_slow_files(folder: Path) -> None:
    for name in SLOW_FILES:
        (folder / name).write_bytes(os.urandom(64))


def flip(path: Path) -> None:
    """One bit of a file, and of those that share it by hard link, as a disk would."""
    with path.open("r+b") as file:
        file.seek(20)
        byte = file.read(1)[0] ^ 1
        file.seek(20)
        file.write(bytes([byte]))


@pytest.mark.parametrize("name", ["state.json", *(f"slow/{name}" for name in SLOW_FILES)])
def test_a_flipped_bit_is_refused_by_the_name_of_its_file(tmp_path: Path, name: str) -> None:
    path = write_checkpoint(tmp_path, state(1, 1), save_slow_files, keep=1)
    read_state(path)
    check_slow(path)
    flip(path / name)
    with pytest.raises(CheckpointError, match=f"{name} does not hold what was written.*remove"):
        read_state(path)
        check_slow(path)


def test_a_flipped_bit_is_refused_in_all_that_share_the_file(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, state(1, 1), save_slow_files, keep=3)
    second = write_checkpoint(tmp_path, state(1, 2), save_slow_files, keep=3)
    third = write_checkpoint(tmp_path, state(2, 3), save_slow_files, keep=3)
    check_slow(second)
    flip(first / "slow" / "optimizer.pt")
    for path in (first, second):
        with pytest.raises(CheckpointError, match=r"optimizer\.pt does not hold"):
            check_slow(path)
    check_slow(third)


def test_a_shared_file_that_was_damaged_before_is_not_taken_for_whole(tmp_path: Path) -> None:
    """The second checkpoint's sum is that of what was written, not of what the disk made of it."""
    first = write_checkpoint(tmp_path, state(1, 1), save_slow_files, keep=3)
    flip(first / "slow" / "model.safetensors")
    second = write_checkpoint(tmp_path, state(1, 2), save_slow_files, keep=3)
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not hold"):
        check_slow(second)


def test_sums_are_those_of_sha256sum_and_cover_every_file(tmp_path: Path) -> None:
    for phase in (1, 2):  # the second shares the first one's weights
        path = write_checkpoint(tmp_path, state(1, phase), save_slow_files, keep=2)
        command = ["sha256sum", "--check", "--strict", SUMS]
        told = subprocess.run(command, cwd=path, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        files = {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}
        assert {line.split(":")[0] for line in told.stdout.splitlines()} == files - {SUMS}


def test_a_checkpoint_from_before_there_were_sums_still_serves(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, state(1, 1), save_slow_files, keep=2)
    (path / SUMS).unlink()
    assert read_state(path) == state(1, 1)
    check_slow(path)
    after = write_checkpoint(tmp_path, state(1, 2), save_slow_files, keep=2)
    flip(after / "slow" / "scheduler.pt")
    with pytest.raises(CheckpointError, match=r"scheduler\.pt does not hold"):
        check_slow(after)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda c: (c / SUMS).write_bytes(b"\xff\x00 \n"), "damaged"),
        (lambda c: (c / SUMS).write_text("no sums\n"), "damaged"),
        (lambda c: (c / "slow" / "optimizer.pt").unlink(), r"no slow/optimizer\.pt"),
        (lambda c: (c / "slow" / "more").unlink(), "no slow/more"),
    ],
    ids=["bytes", "words", "a file that all have", "a file of its own"],
)
def test_damaged_sums_and_lost_files_are_told(
    tmp_path: Path, harm: Callable[[Path], object], told: str
) -> None:
    def save_more(folder: Path) -> None:
        save_slow_files(folder)
        (folder / "more").write_text("m")

    path = write_checkpoint(tmp_path, state(1, 1), save_more, keep=1)
    harm(path)
    with pytest.raises(CheckpointError, match=told):
        read_state(path)
        check_slow(path)


@pytest.mark.parametrize("lines", [0, 1])
def test_sums_that_lost_lines_are_damaged(tmp_path: Path, lines: int) -> None:
    path = write_checkpoint(tmp_path, state(1, 1), save_slow_files, keep=1)
    kept = (path / SUMS).read_text().splitlines(keepends=True)[:lines]
    (path / SUMS).write_text("".join(kept))
    with pytest.raises(CheckpointError, match=f"{SUMS} does not name"):
        read_state(path)
    with pytest.raises(CheckpointError, match=rf"{SUMS} does not name slow/\w+"):
        check_slow(path)


def test_a_file_that_somebody_put_beside_the_weights_does_no_harm(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, state(1, 1), save_slow_files, keep=1)
    (path / "slow" / ".DS_Store").touch()
    check_slow(path)


def test_checkpoints_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for phase in (9998, 9999, 10000, 10001, 100000):
        path = write_checkpoint(tmp_path, state(phase, phase), save, keep=2)
        assert list_checkpoints(tmp_path)[-1] == path
    assert [path.name for path in list_checkpoints(tmp_path)] == ["10001", "100000"]


@pytest.mark.parametrize("number", sorted(NO_LINKS))
def test_without_hard_links_files_are_copied_and_their_sums_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    first = write_checkpoint(tmp_path, state(1, 1), save_slow_files, keep=3)
    second = write_checkpoint(tmp_path, state(1, 2), save_slow_files, keep=3)
    check_slow(second)
    flip(second / "slow" / "optimizer.pt")
    third = write_checkpoint(tmp_path, state(1, 3), save_slow_files, keep=3)
    check_slow(first)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt does not hold"):
        check_slow(third)
