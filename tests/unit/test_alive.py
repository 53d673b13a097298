"""A flow run that was given to another process, and the wait for a run folder that is held."""

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Crashed, Running

from fst_core.run_folder import RunBusy, lock
from tasks import alive
from tasks.alive import Attempt, Lost
from tasks.tries import is_lasting


class Server:
    """A Prefect server that knows one flow run, or raises an error when it is asked."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.after_asking = lambda: None
        self.set(Running())

    def set(self, state: State, run_count: int = 1) -> None:
        self.run = SimpleNamespace(
            id=uuid4(), state=state, state_name=state.name, run_count=run_count
        )

    def read_flow_run(self, _: object) -> SimpleNamespace:
        if self.error:
            raise self.error
        self.after_asking()
        return self.run

    def set_flow_run_state(self, _: object, state: State) -> None:
        self.set(state, self.run.run_count)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()

    @contextmanager
    def client(sync_client: bool) -> Iterator[Server]:
        yield server

    monkeypatch.setattr(alive, "get_client", client)
    monkeypatch.setattr(alive, "get_run_logger", lambda: logging.getLogger("flow"))
    monkeypatch.setattr(alive, "POLL_SECONDS", 0.01)
    return server


@pytest.fixture
def attempt(server: Server) -> Attempt:
    return Attempt(uuid4(), 1)


class Session:
    """What is asked of a session at a boundary."""

    folder = Path("runs/demo/fst-s0")

    def __init__(self) -> None:
        self.saves = 0

    def save(self) -> None:
        self.saves += 1


def test_a_run_whose_flow_run_is_its_own_goes_on(attempt, server):
    session = Session()
    attempt.stop_if_lost(session, saved=False)
    assert session.saves == 0


@pytest.mark.parametrize(
    ("state", "run_count", "why"),
    [
        (Crashed(message="no heartbeat for 90 s"), 1, "Crashed: no heartbeat for 90 s"),
        (Running(), 2, r"started again \(start 2\)"),
    ],
)
@pytest.mark.parametrize("saved", [True, False])
def test_one_whose_flow_run_is_another_s_stops_with_a_checkpoint(
    attempt, server, state, run_count, why, saved
):
    server.set(state, run_count)
    session = Session()
    with pytest.raises(Lost, match=rf"^{session.folder}: stopped at a checkpoint.*{why}"):
        attempt.stop_if_lost(session, saved)
    assert session.saves == (not saved)
    assert server.run.state == state


def test_one_whose_flow_run_was_deleted_stops(attempt, server):
    server.error = ObjectNotFound(Exception())
    with pytest.raises(Lost, match="has been deleted"):
        attempt.stop_if_lost(Session(), saved=True)


def test_one_that_nobody_else_can_cancel_is_cancelled(attempt, server):
    server.set(Cancelling())
    with pytest.raises(Lost, match="Cancelling"):
        attempt.stop_if_lost(Session(), saved=True)
    assert server.run.state.is_cancelled()


def test_a_server_that_does_not_answer_stops_nothing(attempt, server, caplog):
    server.error = httpx.ConnectError("refused")
    attempt.stop_if_lost(Session(), saved=False)
    assert "could not be asked" in caplog.text


def test_lost_is_no_error_that_prefect_would_try_again():
    assert not issubclass(Lost, Exception)


def test_a_folder_that_is_not_there_is_not_made(attempt, tmp_path):
    attempt.wait_for(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_held_folder_is_waited_for(attempt, server, tmp_path, caplog):
    holder = lock(tmp_path)
    server.after_asking = holder.close
    with caplog.at_level(logging.INFO):
        attempt.wait_for(tmp_path)
    assert "waiting for its next checkpoint" in caplog.text


def test_a_holder_that_stops_for_us_may_write_its_checkpoint(attempt, server, tmp_path):
    holder = lock(tmp_path)
    asked = []

    def checkpoint_then_end() -> None:
        asked.append(1)
        write(tmp_path, "slow")
        if len(asked) == 2:
            write(tmp_path, "checkpoint")
        if len(asked) == 3:
            holder.close()

    server.after_asking = checkpoint_then_end
    attempt.wait_for(tmp_path)
    assert len(asked) == 3


def test_a_holder_that_goes_on_beyond_boundaries_is_a_run_of_its_own(attempt, server, tmp_path):
    server.after_asking = lambda: write(tmp_path, "checkpoint")
    with lock(tmp_path), pytest.raises(RunBusy) as busy:
        attempt.wait_for(tmp_path)
    assert f"(pid {os.getpid()}), which is a run of its own and goes on; wait" in str(busy.value)
    assert "another name (name=... among the overrides)" in str(busy.value)
    assert is_lasting(busy.value)


def test_a_holder_that_does_nothing_is_not_waited_for(attempt, monkeypatch, tmp_path):
    monkeypatch.setattr(alive, "QUIET_SECONDS", 0.05)
    with lock(tmp_path), pytest.raises(RunBusy, match="has written nothing for") as busy:
        attempt.wait_for(tmp_path)
    assert f"pid {os.getpid()}" in str(busy.value) and "stop it" in str(busy.value)
    assert not is_lasting(busy.value)


@pytest.mark.parametrize(
    ("left", "who", "remedy"),
    [
        (f"12 {socket.gethostname()}", " (pid 12);", "stop it (kill 12), then"),
        ("12 far-away", " (pid 12 on far-away);", "stop it (kill 12), then"),
        ("12", " (pid 12);", "stop it (kill 12), then"),
        ("", " process;", "stop it, then"),
        ("garbage", " process;", "stop it, then"),
    ],
)
def test_who_holds_a_folder_is_told_as_far_as_it_is_known(tmp_path, left, who, remedy):
    with lock(tmp_path):
        (tmp_path / "lock").write_text(left)
        with pytest.raises(RunBusy) as busy:
            lock(tmp_path)
    assert f"is being written by another process{who.removeprefix(' process')}" in str(busy.value)
    assert remedy in str(busy.value)
    assert "(" not in busy.value.holder and not is_lasting(busy.value)


def test_the_lock_names_its_host(tmp_path):
    with lock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()} {socket.gethostname()}"


def test_a_wait_ends_where_the_flow_run_is_another_s(attempt, server, tmp_path):
    server.set(Running(), 2)
    with lock(tmp_path), pytest.raises(Lost, match="waits no longer"):
        attempt.wait_for(tmp_path)


def test_a_process_outlives_the_reader_of_its_output():
    read, written = os.pipe()
    alive.outlive_reader([written])
    assert os.write(written, b"read") == 4
    os.close(read)
    deadline = time.monotonic() + 30
    while not outlived(written):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.close(written)


def outlived(descriptor: int) -> bool:
    try:
        return os.write(descriptor, b"dropped") > 0
    except BrokenPipeError:
        return False


def write(folder: Path, kind: str) -> None:
    with (folder / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"kind": kind}) + "\n")
