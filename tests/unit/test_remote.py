"""A run that other processes hold: what goes over the socket, and what is told when it breaks."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fst_core import remote
from fst_core.channel import Channel
from fst_core.config import RunConfig, load_config
from fst_core.driven import obey, telling
from fst_core.interleave import interleave
from fst_core.journal import comparable, read_events
from fst_core.ranks import ALONE
from fst_core.remote import RemoteFailed, RemoteSession, launched
from fst_core.session import Session
from fst_core.study import run_folder
from tests.runs import tiny_config

SMOKE = "configs/tiny/smoke.toml"


class Driven(threading.Thread):
    """Rank 0 in a thread; hangs up at its end."""

    def __init__(self, folder: Path, config: RunConfig, channel: Channel):
        super().__init__()
        self.given = config, folder, ALONE, channel
        self.error: Exception | None = None

    def run(self) -> None:
        channel = self.given[-1]
        with channel:
            try:
                with telling(channel):
                    obey(*self.given)
            except Exception as error:
                self.error = error


@contextmanager
def driven(folder: Path, config: RunConfig, ends: tuple[Channel, Channel]) -> Iterator[Driven]:
    thread = Driven(folder, config, ends[1])
    thread.start()
    with ends[0]:
        yield thread
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    first, second = socket.socketpair()
    return Channel(first), Channel(second)


def test_objects_go_both_ways_until_the_other_end_is_gone(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    with ours:
        ours.send(text='a "line"\nand another, é', count=3)
        received = iter(theirs)
        assert next(received) == {"text": 'a "line"\nand another, é', "count": 3}
        theirs.send(done=True)
        assert next(iter(ours)) == {"done": True}
    with theirs:
        assert list(theirs) == []


def test_a_torn_line_is_no_message() -> None:
    first, second = socket.socketpair()
    first.sendall(b'{"whole": 1}\n{"torn"')
    first.close()
    with Channel(second) as channel:
        assert list(channel) == [{"whole": 1}]


def test_a_driven_run_is_the_run_of_one_process(
    tmp_path: Path, ends: tuple[Channel, Channel]
) -> None:
    config = tiny_config()
    calls: list[int] = []
    with Session(config, tmp_path / "study/alone") as session:
        interleave(session)
    folder = tmp_path / "study/driven"
    with driven(folder, config, ends) as rank:
        other = RemoteSession(config, folder, ends[0])
        other.on_call = lambda: calls.append(other.ledger.generate_calls)
        interleave(other)
        assert other.step_done == config.loop.steps
        assert other.population.contexts == session.population.contexts
        assert calls == list(range(1, session.ledger.generate_calls + 1))
    assert rank.error is None
    ours, theirs = (
        comparable(read_events(tmp_path / "study" / name / "journal.jsonl"))
        for name in ("driven", "alone")
    )
    assert ours == theirs


def test_an_error_is_told_as_a_sentence_with_its_kinds(
    tmp_path: Path, ends: tuple[Channel, Channel]
) -> None:
    config = tiny_config(contexts={"start_from": "no/such-run"})
    folder = tmp_path / "study/run"
    failing = pytest.raises(RemoteFailed, match="no/such-run")
    with driven(folder, config, ends) as rank, failing as caught:
        RemoteSession(config, folder, ends[0])
    assert type(rank.error).__name__ == caught.value.kinds[0].rpartition(".")[2]
    assert str(rank.error) == str(caught.value)


@pytest.mark.parametrize("name", ["close", "__exit__", "_build", "policy"])
def test_a_driver_asks_for_a_runner_s_methods_only(
    tmp_path: Path, ends: tuple[Channel, Channel], name: str
) -> None:
    config = tiny_config()
    folder = tmp_path / "study/run"
    with driven(folder, config, ends) as rank:
        other = RemoteSession(config, folder, ends[0])
        with pytest.raises(RemoteFailed, match="nothing that a session is asked for"):
            other._do(name)
    assert isinstance(rank.error, ValueError)


def test_processes_that_are_gone_are_told_of(tmp_path: Path, ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    state = {"step_done": 0, "ledger": {"generate_calls": 0}}
    theirs.send(state=state, done=True)
    other = RemoteSession(tiny_config(), tmp_path, ours)
    with theirs:
        pass
    for ask in (other.step, other.save):
        with pytest.raises(RemoteFailed, match="the processes of the run are gone"):
            ask()


def end_at_once(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let another program stand where the launcher does."""
    monkeypatch.setattr(remote, "_command", lambda *given: ["/bin/sh", "-c", script])


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo noise; echo 'error: no card is free'; echo more", "no card is free"),
        ("echo first; echo last", "first\nlast"),
        ("exit 3", "ended with status 3"),
    ],
)
def test_processes_that_end_before_they_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    """Of the log, what they said, not what others had said before."""
    config, folder = tiny_config(), tmp_path / "study/run"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("error: of an earlier run\n")
    end_at_once(monkeypatch, script)
    with pytest.raises(RemoteFailed) as caught, launched(config, folder, [], 2):
        raise AssertionError("nobody answers")
    assert told in str(caught.value) and "earlier" not in str(caught.value)
    assert str(folder / "log.txt") in str(caught.value)


def test_a_temporary_folder_that_no_socket_fits_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    refused = pytest.raises(
        RemoteFailed, match=r"cannot hold a socket.*set TMPDIR to another, short"
    )
    with refused, launched(tiny_config(), tmp_path / "study/run", [], 2):
        raise AssertionError("nobody answers")
    assert list(deep.iterdir()) == []


def test_a_config_that_cannot_be_read_ends_in_its_sentence(tmp_path: Path) -> None:
    """The real launch, of processes that refuse what they are told."""
    config, _ = load_config(SMOKE, "fst", ["seed=0"])
    words = [SMOKE, "--arm", "nowhere", "--seed", "0", "--runs", str(tmp_path)]
    folder = run_folder(tmp_path, config)
    with pytest.raises(RemoteFailed, match="nowhere"), launched(config, folder, words, 2):
        raise AssertionError("nobody answers")
