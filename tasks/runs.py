"""Runs of a study: which there are, and each as a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from fst_core.config import RunConfig
from fst_core.journal import effective, read_events

LOG_LINES = 12
STOP_SECONDS = 20

_CHILDREN: set[subprocess.Popen[str]] = set()


class RunFailed(RuntimeError):
    """A run's process failed; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """How one run of a study is started."""

    config_path: str
    arm: str
    seed: int
    overrides: tuple[str, ...]
    runs: str
    data: str | None
    track: bool

    def command(self) -> list[str]:
        """The command line of the run's process."""
        line = [sys.executable, "-m", "flows.train", self.config_path, "--arm", self.arm]
        line += ["--seed", str(self.seed), "--runs", self.runs]
        line += [word for pair in self.overrides for word in ("--set", pair)]
        line += ["--data", self.data] if self.data else []
        return line if self.track else [*line, "--no-track"]


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run's process ended."""

    folder: str
    seconds: float


def run_folder(config: RunConfig, runs: str) -> Path:
    """Where a run lives: runs/NAME/ARM-sSEED."""
    return Path(runs) / config.name / config.id


def has_ended(folder: Path) -> bool:
    """Whether a run folder's journal has reached its end."""
    events = effective(read_events(folder / "journal.jsonl"))
    return bool(events) and events[-1]["kind"] == "end"


@task(name="run", task_run_name="run {folder.name}", cache_policy=NO_CACHE)
def run_process(order: RunOrder, folder: Path) -> RunOutcome:
    """Train one run in a process of its own; its output goes to a log beside the run folders.

    Raises:
        RunFailed: if the process ends with an error.
    """
    began, log = time.perf_counter(), folder.parent / "logs" / f"{folder.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        code = _run(order.command(), file.fileno())
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        raise RunFailed(f"{folder.name} ended with status {code}; the end of {log}:\n{tail}")
    return RunOutcome(str(folder), time.perf_counter() - began)


def _run(command: Sequence[str], output: int) -> int:
    child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
    _CHILDREN.add(child)
    try:
        return child.wait()
    finally:
        _CHILDREN.discard(child)


@contextmanager
def children_ended() -> Iterator[None]:
    """End every run's process that is still alive when the block is left by an exception."""
    try:
        yield
    except BaseException:
        alive = list(_CHILDREN)
        for child in alive:
            child.terminate()
        for child in alive:
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
        raise


def thread_settings(threads: int) -> dict[str, str]:
    """Environment of a run's process: OpenMP threads that sleep at barriers, as many as asked."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        **{name: value for name, value in os.environ.items() if name.startswith("OMP_")},
    }
