"""The runs of a study, each a process of its own."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from fst_core.config import NoFast, RunConfig
from fst_core.journal import Event, read_events
from fst_core.processes import LOG, end_processes, log_end, spawn, why_ended
from fst_core.run_folder import holds_finished
from fst_core.study import data_override, refuse_named_apart, run_folder
from tasks.tries import Told

LOG_LINES = 12
BEAT_SECONDS = 2.0


class RunFailed(Told):
    """A run's process failed; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Order:
    """What every run of a study is started with."""

    config_path: str
    overrides: tuple[str, ...]
    runs: str
    track: bool
    on: str = "here"
    """ "here": processes of this machine; "workers": flow runs of the deployment."""
    deployment: str = "train/train"

    def command(self, arm: str, seed: int) -> list[str]:
        """The command line of one run's process."""
        line = [sys.executable, "-m", "flows.train", *self.words(arm, seed)]
        return line if self.track else [*line, "--no-track"]

    def words(self, arm: str, seed: int) -> list[str]:
        """What says which run it is, on a command line."""
        line = [self.config_path, "--arm", arm, "--seed", str(seed), "--runs", self.runs]
        return [*line, *(word for pair in self.overrides for word in ("--set", pair))]


def with_data(overrides: Sequence[str], data: str | None) -> tuple[str, ...]:
    """Overrides that also read problems from a folder of pools, if one is given.

    Raises:
        ConfigError: for an override of what the flows' own parameters say.
    """
    refuse_named_apart(overrides)
    return (*overrides, *([data_override(Path(data))] if data else []))


@task(name="run", task_run_name="run {config.arm}-s{config.seed}", cache_policy=NO_CACHE)
def run_process(order: Order, config: RunConfig) -> float:
    """Train one run in a process of its own; a finished one is kept. Its output goes to log.txt.

    Returns:
        Seconds it took.
    Raises:
        RunFailed: if the process ends with an error.
    """
    folder, began = run_folder(Path(order.runs), config), time.perf_counter()
    if holds_finished(folder, config):
        return 0.0
    folder.mkdir(parents=True, exist_ok=True)
    log, threads = folder / LOG, {"OMP_NUM_THREADS": str(config.threads)}
    headline = "seed" if isinstance(config.fast, NoFast) else "best"
    follower = Follower(folder, get_run_logger(), headline)
    begin = log_end(log)
    code = PROCESSES.run(order.command(config.arm, config.seed), log, threads, follower.look)
    if code:
        told = why_ended(log, begin, LOG_LINES)
        raise RunFailed(f"{config.id} ended with status {code}: {told} (its log is {log})")
    return time.perf_counter() - began


class Follower:
    """Tells a study's log about the evaluations of a run that another process writes.

    Of each evaluation it tells the reward under one context, that by which the arm is judged.
    """

    def __init__(self, folder: Path, logger: Logger | LoggerAdapter[Logger], context: str):
        self.folder = folder
        self.logger = logger
        self.context = context
        self.seen = len(self._events())

    def _events(self) -> list[Event]:
        return read_events(self.folder / "journal.jsonl")

    def look(self) -> None:
        """Log the evaluations since the last look."""
        events = self._events()
        for event in events[self.seen :]:
            if event["kind"] == "evaluation" and event["context"] == self.context:
                reward = event["metrics"]["evaluation/reward"]
                where = (self.folder.name, event["step"], reward, event["context"])
                self.logger.info("%s step %d: reward %.3f under the %s context", *where)
        self.seen = len(events)


class Processes:
    """Child processes of this one, so that none outlives it."""

    def __init__(self) -> None:
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        beat: Callable[[], None],
    ) -> int:
        """Run a command to its end, its output appended to a log, `beat` called meanwhile.

        Returns:
            Its exit status.
        """
        with log.open("ab") as output, self._lock:
            if self._closed:
                raise RunFailed("the study has been stopped")
            child = spawn(command, output, environment)  # `ended` is its one end
            self._alive.add(child)
        try:
            while child.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(BEAT_SECONDS)
                beat()
            return child.returncode
        finally:
            self._alive.discard(child)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """End every process that is alive when the block is left, and start no more until then."""
        self._closed = False
        try:
            yield
        finally:
            with self._lock:
                self._closed, alive = True, list(self._alive)
            end_processes(alive)


PROCESSES = Processes()
