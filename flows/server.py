"""A Prefect server for as long as a command runs, where none is configured.

The server listens on the loopback interface, keeps its SQLite file in a folder of the study, knows
of this host's cards, and is shared by every process the command starts, through PREFECT_API_URL.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

import httpx
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from fst_core.cli_options import say
from fst_core.processes import PARENT
from infra.deploy import DeployError, server_url
from infra.servers import PREFECT_UI
from tasks.cards import make_limit
from tasks.tries import Told

START_SECONDS = 120
STOP_SECONDS = 10
DRAIN_SECONDS = 10
GRACE_SECONDS = 10.0
"""Time that a command whose server is gone has to leave its flow."""
IDLE_SERVICES = (
    "CANCELLATION_CLEANUP",
    "CLEANUP_RECONCILER",
    "DB_VACUUM",
    "FOREMAN",
    "LATE_RUNS",
    "PAUSE_EXPIRATIONS",
    "SCHEDULER",
    "TRIGGERS",
)
"""Services that only deployments need; without them the server starts in half the time."""


class ServerError(Told):
    """No Prefect server that would do; the message is a sentence."""


def refuse_without_server(need: str, otherwise: str) -> None:
    """Raise unless a Prefect server is configured and answers.

    Args:
        need: Why a server that ends with this command would not do.
        otherwise: What can be done without one.
    Raises:
        ServerError: saying so.
    """
    if not get_current_settings().api.url:
        raise ServerError(
            f"no Prefect server is configured, and {need}: set PREFECT_API_URL, or {otherwise}"
        )
    _refuse_wrong_address()


def _refuse_wrong_address() -> None:
    try:
        server_url()
    except DeployError as error:
        if not isinstance(error.__cause__, httpx.ReadTimeout):  # busy: Prefect waits for it
            raise ServerError(str(error)) from error


class ServerGone(ServerError):
    """The server of this command has ended: what is queued for it would be tried for minutes."""


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """The address of the configured Prefect API, or of a server that ends with the block.

    Args:
        home: Folder of the temporary server's SQLite file and log.

    Raises:
        ServerError: if the server does not answer.
    """
    configured = get_current_settings().api.url
    if configured:
        _refuse_wrong_address()
        yield configured
        return
    home = home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.log").open("w") as log, ended_by_sigterm():
        with one_at_a_time(home):  # two first starts would race in the schema migration
            process, url = _start(home, log)
        before = os.environ.get("PREFECT_API_URL")
        os.environ["PREFECT_API_URL"] = url
        try:
            with temporary_settings({PREFECT_API_URL: url}), missed_if_gone(process, home):
                try:
                    make_limit()
                    yield url
                finally:
                    if process.poll() is None:
                        _drain()
        finally:
            os.environ.pop("PREFECT_API_URL")
            if before is not None:
                os.environ["PREFECT_API_URL"] = before
            _stop(process)


def _start(home: Path, log: IO[str]) -> tuple[subprocess.Popen[str], str]:
    port = free_port()
    command = [sys.executable, "-m", "flows.prefect_process", "server", "start"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--analytics-off"]
    off = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in IDLE_SERVICES}
    env = {**os.environ, **off, **PREFECT_UI, "PREFECT_HOME": str(home), "DO_NOT_TRACK": "1"}
    env[PARENT] = str(os.getpid())
    # A session of its own: Ctrl-C in the terminal must reach the runs before their server goes.
    process = subprocess.Popen(
        command, env=env, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}/api"
    try:
        _wait(process, url, Path(log.name))
    except BaseException:
        _stop(process)
        raise
    return process, url


@contextmanager
def missed_if_gone(process: subprocess.Popen[str], home: Path) -> Iterator[None]:
    """End the block, as SIGTERM would, when the server that it needs has ended.

    Prefect asks a server that is gone again and again, for minutes: where the block does not end
    in time, the process does. Its runs go on as after any kill.

    Raises:
        ServerGone: saying so, whatever came of the signal.
    """
    over, left = threading.Event(), threading.Event()

    def watch() -> None:
        process.wait()
        if over.is_set():
            return
        os.kill(os.getpid(), signal.SIGTERM)
        if not left.wait(GRACE_SECONDS):
            say(f"error: {lost()}")
            os._exit(1)

    def lost() -> str:
        return (
            f"the Prefect server of this command ended ({process.returncode}); its log is "
            f"{home / 'server.log'}; the same command, without --fresh, goes on at the last "
            "checkpoint"
        )

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except BaseException as error:
        if process.poll() is None:
            raise
        raise ServerGone(lost()) from error
    finally:
        (over if process.poll() is None else left).set()


def _wait(process: subprocess.Popen[str], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    state = "is not answering" if process.poll() is None else f"ended ({process.returncode})"
    raise ServerError(f"the Prefect server {state}; its log is {log}")


def _drain() -> None:
    """Send what is queued; without it the exit waits minutes for a server that is gone."""
    APILogWorker.drain_all(timeout=DRAIN_SECONDS)
    EventsWorker.drain_all(timeout=DRAIN_SECONDS)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process is inside such a block of the same folder."""
    with (folder / "start.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that what the block started is ended too."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
