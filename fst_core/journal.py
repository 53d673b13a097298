"""The append-only event log of a run, and the source of truth for every number about it.

One JSON object a line: `seq` (0, 1, 2, ...), `time` (Unix seconds), `kind`, and the kind's fields:

    run         config (resolved), versions, git, data, problems (ids by split hash)
    fast        cycle, step, evolution (see fast.base.Evolution), seconds, ledger
    slow        step, metrics {name: value}, seconds, ledger; task, in a sequence; positions in the
                training stream, where a curriculum chose others than those in order
    rollouts    step, loop ("slow" | "fast"), sample [{problem, context, text, reward, feedback}]
    evaluation  step, context ("seed" | "best" | "none"), context_id, metrics {name: value}, ledger
    checkpoint  step, name, next_phase
    rewind      to: readers forget every earlier event with seq > to
    end         step, seconds by part, ledger

`ledger` = {"slow_rollouts", "fast_rollouts", "evaluation_rollouts", "slow_tokens", "fast_tokens",
"evaluation_tokens", "reflection_rollouts", "reflection_tokens", "generate_calls"}, cumulative over
the run. `seconds` is wall time since the previous event of the same loop began; it and `time` are
the only fields that differ between two runs of the same config and seed.
"""

import gzip
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Entry = tuple[str, Mapping[str, Any]]
"""Kind and fields of an event to be written."""

CLOCK_FIELDS = frozenset({"seq", "time", "seconds"})
"""Fields left out when two journals are compared."""

FIELDS: Mapping[str, Mapping[str, type]] = {
    "run": {"config": dict},
    "fast": {"step": int, "evolution": dict},
    "slow": {"step": int, "metrics": dict},
    "evaluation": {"step": int, "context": str, "metrics": dict},
    "rewind": {"to": int},
}
"""What every reader takes for granted of an event, by its kind."""
KINDS = {dict: "an object", int: "a number", str: "a text"}


class JournalError(RuntimeError):
    """A journal that cannot be read or written; the message names the file and line."""


def read_events(path: Path) -> list[Event]:
    """Every whole event in file order, rewinds included; a torn last line is ignored.

    Where only PATH.gz is there, an archived journal, that is read.

    Raises:
        JournalError: if a line other than the last is damaged, or a sequence number is missing.
    """
    packed = path.with_name(path.name + ".gz")
    if path.exists():
        data = path.read_bytes()
    elif packed.exists():
        data = _unpacked(packed)
    else:
        return []
    lines = data.split(b"\n")
    events: list[Event] = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is torn
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise JournalError(f"{path}:{number}: damaged line ({error})") from error
        if not isinstance(event, dict) or not {"seq", "kind"} <= event.keys():
            raise JournalError(f"{path}:{number}: the line is no event")
        if event["seq"] != len(events):
            raise JournalError(f"{path}:{number}: sequence {event['seq']}, expected {len(events)}")
        for field, kind in FIELDS.get(str(event["kind"]), {}).items():
            if type(event.get(field)) is not kind:
                raise JournalError(
                    f"{path}:{number}: damaged line ({event['kind']!r} without {KINDS[kind]} "
                    f"{field!r})"
                )
        events.append(event)
    return events


def _unpack(path: Path) -> None:
    """Make an archived journal one that can be appended to."""
    packed = path.with_name(path.name + ".gz")
    if path.exists() or not packed.exists():
        return
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        file.write(_unpacked(packed))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    packed.unlink()


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise JournalError(f"{path}: damaged archive ({error})") from error


def effective(events: list[Event]) -> list[Event]:
    """The events that still count: what each rewind covers, and the rewinds, removed."""
    kept: list[Event] = []
    for event in events:
        if event["kind"] == "rewind":
            while kept and kept[-1]["seq"] > event["to"]:
                kept.pop()
        else:
            kept.append(event)
    return kept


def comparable(events: list[Event]) -> list[Event]:
    """Effective events without clock fields: equal for two runs of one config and seed."""
    return [
        {key: value for key, value in event.items() if key not in CLOCK_FIELDS}
        for event in effective(events)
    ]


class Journal:
    """The one writer of a run's journal.

    An append is written when it returns, so that it outlives the process, and is synced to disk
    behind the caller's back: the next append waits for that, so a machine that loses power loses
    the last append at most. `sync`, which comes before a checkpoint, and `close` wait for it too.
    """

    def __init__(self, path: Path):
        events = read_events(path)
        _unpack(path)
        self.path = path
        self.next_seq = len(events)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._torn = True
        self._file = path.open("ab", buffering=0)
        self._syncer = ThreadPoolExecutor(1, "journal")
        self._syncing: Future[None] | None = None

    def _cut_torn_line(self) -> None:
        """Make room for the first append; until then a file that may be refused stays as it is."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)
        self._torn = False

    def append(self, kind: str, fields: Mapping[str, Any]) -> Event:
        """Write one event and return it (see `append_all`)."""
        return self.append_all([(kind, fields)])[0]

    def append_all(self, entries: Sequence[Entry]) -> list[Event]:
        """Write events, with one sync, and return them.

        Raises:
            JournalError: if a field is not finite, or the disk is full or not writable; what was
                written before stays.
        """
        events = [
            {"seq": seq, "time": time.time(), "kind": kind, **fields}
            for seq, (kind, fields) in enumerate(entries, self.next_seq)
        ]
        data = b"".join(map(self._line, events))
        self.sync()
        with self._explained():
            if self._torn:
                self._cut_torn_line()
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        self._syncing = self._syncer.submit(os.fsync, self._file.fileno())
        self.next_seq += len(events)
        return events

    def sync(self) -> None:
        """Wait until everything that was appended is on disk.

        Raises:
            JournalError: if the disk is full or not writable.
        """
        if self._syncing is not None:
            with self._explained():
                self._syncing.result()
            self._syncing = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(
                f"{self.path} could not be written: {error.strerror}; nothing before it is lost, "
                "so free some space and run the same command again"
            ) from error

    def _line(self, event: Event) -> bytes:
        try:
            return json.dumps(event, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except UnicodeEncodeError as error:
            raise JournalError(
                f"{self.path}: event {event['kind']!r} is not to be written ({error}); one of its "
                "texts holds half of a character"
            ) from error
        except ValueError as error:
            raise JournalError(
                f"{self.path}: event {event['kind']!r} is not to be written ({error}); "
                "a number that is not finite usually means that training diverged"
            ) from error

    def rewind(self, to: int) -> None:
        """Tell readers to forget every event after sequence number `to` (-1: all)."""
        if self.next_seq > to + 1:
            self.append("rewind", {"to": to})

    def close(self) -> None:
        """Sync what is left and close the file.

        Raises:
            JournalError: if that sync fails; the file is closed all the same.
        """
        try:
            self.sync()
        finally:
            self._syncer.shutdown()
            self._file.close()
