"""A run over several processes, driven from here as if it were a session of this process.

    with launched(config, folder, words, processes=8) as session:
        interleave(session)

The processes are started by accelerate with one of infra/accelerate's files, and end with this one;
`fst_core.driven` is their side. They write the run folder and its log.txt.
"""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fst_core.channel import Channel
from fst_core.config import RunConfig
from fst_core.interleave import Runner
from fst_core.processes import GRACE_SECONDS, LOG, end_processes, spawn, why_ended
from fst_core.records import Population, population_from_json

LAUNCHERS = Path(__file__).parents[1] / "infra" / "accelerate"
POLL_SECONDS = 0.5
LOG_LINES = 12
"""Lines told of processes that ended without a sentence."""


class RemoteFailed(RuntimeError):
    """The processes of a run have ended, or will, with an error.

    Attributes:
        kinds: qualified names of the error's class and its bases, where rank 0 told them.
    """

    def __init__(self, message: str, kinds: Sequence[str] = ()):
        super().__init__(message)
        self.kinds = tuple(kinds)


@dataclass
class RemoteLedger:
    """What the run has used, as far as it is told (see `fst_core.session.Ledger`)."""

    generate_calls: int = 0


class RemoteSession(Runner):
    """A session of other processes (see `fst_core.session.Session`).

    Attributes:
        on_call: told after every engine call of the run.
        observer: never told: the run's journal holds its events.
    """

    def __init__(self, config: RunConfig, folder: Path, channel: Channel):
        self.config, self.folder = config, folder
        self.on_call: Callable[[], None] | None = None
        self.observer: Callable[[dict[str, Any]], None] | None = None
        self.ledger = RemoteLedger()
        self.next_phase = self.step_done = 0
        self.population: Population
        self._channel, self._messages = channel, iter(channel)
        self._wait()

    def evolve(self, cycle: int, start: int, stop: int) -> None:
        """Fast phase."""
        self._do("evolve", cycle, start, stop)

    def step(self) -> None:
        """One slow step."""
        self._do("step")

    def evaluate(self, step: int) -> None:
        """Held-out measurements."""
        self._do("evaluate", step)

    def save(self) -> None:
        """Write a checkpoint."""
        self._do("save")

    def finish(self) -> None:
        """Close the run's books."""
        self._do("finish")

    def _do(self, name: str, *given: int) -> None:
        try:
            self._channel.send(do=name, given=given, next_phase=self.next_phase)
        except OSError as error:
            raise RemoteFailed("the processes of the run are gone") from error
        self._wait()

    def _wait(self) -> None:
        for message in self._messages:
            if "error" in message:
                raise RemoteFailed(message["error"], message["kinds"])
            self._take(message["state"])
            if message["done"]:
                return
            if self.on_call is not None:
                self.on_call()
        raise RemoteFailed("the processes of the run are gone")

    def _take(self, state: dict[str, Any]) -> None:
        self.step_done = state["step_done"]
        self.ledger.generate_calls = state["ledger"]["generate_calls"]
        self.next_phase = state.get("next_phase", self.next_phase)
        if "population" in state:
            self.population = population_from_json(state["population"])


@contextmanager
def launched(
    config: RunConfig, folder: Path, words: Sequence[str], processes: int, sharded: bool = False
) -> Iterator[RemoteSession]:
    """Processes on this host that hold a run, for as long as a block lasts.

    Args:
        folder: the run's; `run_folder` of what `words` say.
        words: the command line of `fst_core.driven` behind its socket.
        sharded: FSDP in place of DDP.
    Yields:
        The session to drive them by.
    Raises:
        RemoteFailed: if the processes cannot begin, or, from a method of the session, go on.
        RunBusy: if another process writes the run's log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    place = tempfile.TemporaryDirectory(prefix="fst-")
    with place, socket.socket(socket.AF_UNIX) as door:
        address = _bound(door, Path(place.name))
        with log.open("ab") as output:
            begin = output.tell()
            command = _command([address, *words], processes, sharded)
            process = spawn(command, output, {"OMP_NUM_THREADS": str(config.threads)})
        try:
            with Channel(_answered(door, process)) as channel:
                place.cleanup()  # now, since nobody would if this process were killed
                yield RemoteSession(config, folder, channel)
            process.wait(GRACE_SECONDS)
        except (RemoteFailed, subprocess.TimeoutExpired) as error:
            end_processes([process])
            kinds = getattr(error, "kinds", ())
            told = str(error) if kinds else why_ended(log, begin, LOG_LINES) or str(error)
            raise RemoteFailed(f"{config.id}: {told} (its log is {log})", kinds) from error
        finally:
            end_processes([process])


def _bound(door: socket.socket, place: Path) -> str:
    """The address of a socket in a folder, at which somebody may now call."""
    address = str(place / "socket")
    try:
        door.bind(address)
    except OSError as error:  # "AF_UNIX path too long" has no number
        raise RemoteFailed(
            f"{place} cannot hold a socket ({error.strerror or error}); set TMPDIR to another, "
            "short folder"
        ) from error
    door.listen(1)
    door.settimeout(POLL_SECONDS)
    return address


def _command(words: Sequence[str], processes: int, sharded: bool) -> list[str]:
    settings = LAUNCHERS / ("fsdp.yaml" if sharded else "ddp.yaml")
    launch = [sys.executable, "-m", "fst_core.launcher", "--config_file", str(settings)]
    where = ["--num_processes", str(processes), "--main_process_port", "0"]  # any that is free
    return [*launch, *where, "-m", "fst_core.driven", *words]


def _answered(door: socket.socket, process: "subprocess.Popen[bytes]") -> socket.socket:
    while process.poll() is None:
        try:
            line, _ = door.accept()
        except TimeoutError:
            continue
        line.setblocking(True)
        return line
    raise RemoteFailed(f"its processes ended with status {process.returncode}")
