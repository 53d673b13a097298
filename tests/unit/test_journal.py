import errno
import gzip
import json
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from fst_core.journal import Journal, JournalError, comparable, effective, read_events


def written(path: Path, *kinds: str) -> Journal:
    journal = Journal(path)
    for kind in kinds:
        journal.append(kind, {"value": kind})
    return journal


def test_sequence_continues_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, "a", "b").close()
    written(path, "c").close()
    assert [(e["seq"], e["kind"]) for e in read_events(path)] == [(0, "a"), (1, "b"), (2, "c")]


def test_a_torn_last_line_is_dropped_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, "a", "b").close()
    path.write_bytes(path.read_bytes()[:-5])
    assert [e["kind"] for e in read_events(path)] == ["a"]
    written(path, "c").close()
    assert [(e["seq"], e["kind"]) for e in read_events(path)] == [(0, "a"), (1, "c")]


def test_a_journal_that_is_opened_is_not_changed_before_the_first_append(tmp_path: Path) -> None:
    """Whoever finds that it cannot be gone on with has lost nothing of it."""
    path = tmp_path / "journal.jsonl"
    written(path, "a", "b").close()
    torn = path.read_bytes().replace(b"\n", b"\r")
    path.write_bytes(torn)
    Journal(path).close()
    assert path.read_bytes() == torn


def test_rewind_hides_what_it_covers_even_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = written(path, "a", "b", "c")
    journal.rewind(0)
    journal.append("b2", {})
    journal.rewind(0)
    journal.append("b3", {})
    journal.close()
    assert [e["kind"] for e in effective(read_events(path))] == ["a", "b3"]


def test_rewind_to_the_end_writes_nothing(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal.jsonl", "a")
    journal.rewind(0)
    assert journal.next_seq == 1


def test_comparable_ignores_clocks_only(tmp_path: Path) -> None:
    first = written(tmp_path / "1.jsonl", "a")
    first.append("b", {"seconds": 1.0, "x": 1})
    second = written(tmp_path / "2.jsonl", "a")
    second.append("b", {"seconds": 2.0, "x": 1})
    events = [read_events(j.path) for j in (first, second)]
    assert comparable(events[0]) == comparable(events[1])
    second.append("c", {"x": 2})
    assert comparable(events[0]) != comparable(read_events(second.path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{]", "damaged line"),
        (json.dumps({"seq": 7, "kind": "a"}), "sequence 7, expected 1"),
        (json.dumps({"seq": 1, "kind": "rewind"}), "damaged line .*'rewind' without a number 'to'"),
        (json.dumps({"seq": 1, "kind": "run", "config": "x"}), "damaged .*an object 'config'"),
        (json.dumps({"seq": 1, "kind": "slow", "step": "1", "metrics": {}}), "damaged .*'step'"),
        (json.dumps({"seq": 1, "kind": "evaluation", "step": 1}), "damaged .*a text 'context'"),
        (json.dumps({"seq": 1, "kind": "fast", "step": 1, "evolution": None}), "damaged .*'evol"),
        ("[" * 100_000, "damaged line"),
        ("3", "the line is no event"),
        ("{}", "the line is no event"),
    ],
)
def test_damage_before_the_end_is_named_with_its_line(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, "a").close()
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(JournalError, match=rf"journal\.jsonl:2: {message}"):
        read_events(path)


def test_a_nan_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(JournalError, match="Out of range"):
        journal.append("slow", {"metrics": {"loss": float("nan")}})
    assert read_events(journal.path) == []


def test_events_written_together_are_as_if_written_one_by_one_with_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("fst_core.journal.os.fsync", synced.append)
    together, single = Journal(tmp_path / "1.jsonl"), Journal(tmp_path / "2.jsonl")
    made = together.append_all([("a", {"x": 1}), ("b", {"x": 2})])
    together.sync()
    assert len(synced) == 1
    single.append("a", {"x": 1})
    single.append("b", {"x": 2})
    single.sync()
    assert len(synced) == 3
    events = read_events(together.path)
    assert events == made and together.next_seq == 2
    assert comparable(events) == comparable(read_events(single.path))


class Slow:
    """A disk whose sync ends when told to."""

    def __init__(self, error: OSError | None = None):
        self.go, self.done, self.error = Event(), 0, error

    def __call__(self, descriptor: int) -> None:
        assert self.go.wait(30)
        if self.error:
            raise self.error
        self.done += 1


def test_an_append_is_written_before_it_is_synced_and_the_next_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Slow()
    monkeypatch.setattr("fst_core.journal.os.fsync", disk)
    journal = written(tmp_path / "journal.jsonl", "a")
    assert [e["kind"] for e in read_events(journal.path)] == ["a"] and disk.done == 0
    with ThreadPoolExecutor(1) as other:
        second = other.submit(journal.append, "b", {})
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        assert [e["kind"] for e in read_events(journal.path)] == ["a"]
        disk.go.set()
        second.result(timeout=30)
    journal.close()
    assert disk.done == 2 and [e["kind"] for e in read_events(journal.path)] == ["a", "b"]


@pytest.mark.parametrize("call", ["append", "sync", "close"])
def test_a_sync_that_failed_is_told_by_whatever_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    disk = Slow(OSError(errno.ENOSPC, "No space left on device"))
    disk.go.set()
    monkeypatch.setattr("fst_core.journal.os.fsync", disk)
    journal = written(tmp_path / "journal.jsonl", "a")
    with pytest.raises(JournalError, match="No space left on device; nothing before it is lost"):
        getattr(journal, call)(*(("b", {}) if call == "append" else ()))
    assert [e["kind"] for e in read_events(journal.path)] == ["a"] and journal.next_seq == 1


def test_nothing_is_written_of_events_of_which_one_cannot_be(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal.jsonl", "a")
    with pytest.raises(JournalError, match="'c' is not to be written"):
        journal.append_all([("b", {}), ("c", {"x": float("inf")})])
    assert [e["kind"] for e in read_events(journal.path)] == ["a"]
    assert journal.next_seq == 1


def test_an_archived_journal_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, "a", "b").close()
    events = read_events(path)
    (tmp_path / "journal.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read_events(path) == events


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal.jsonl", "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 10, before[1]))
    try:
        with pytest.raises(JournalError, match="could not be written"):
            journal.append("b", {"value": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    journal.close()
    assert [e["kind"] for e in read_events(journal.path)] == ["a"]
    written(journal.path, "c").close()
    assert [e["kind"] for e in read_events(journal.path)] == ["a", "c"]


def test_an_archived_journal_can_be_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, "a", "b").close()
    events = read_events(path)
    (tmp_path / "journal.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    written(path, "c").close()
    assert [event["seq"] for event in read_events(path)] == [0, 1, 2]
    assert read_events(path)[:2] == events
    assert [file.name for file in tmp_path.iterdir()] == ["journal.jsonl"]


def test_half_a_character_is_told_as_what_it_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(JournalError, match=r"surrogates not allowed\); one of its texts"):
        journal.append("rollouts", {"sample": [{"feedback": ["\ud83d"]}]})
