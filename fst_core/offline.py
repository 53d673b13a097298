"""The offline runner: one run in this process, watched, tracked and resumable, without Prefect."""

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.counting import counted
from fst_core.interleave import plan, remaining, run_phase
from fst_core.journal import Event
from fst_core.processes import LOG
from fst_core.progress import watched
from fst_core.run_folder import (
    ARRIVING,
    BUSY,
    EARLIER,
    JOURNAL,
    LOCK,
    REMOVED,
    REPLACES,
    RunMismatch,
    forget_earlier,
    lock,
    read_config,
    set_aside,
    settle,
)

if TYPE_CHECKING:
    from fst_core.ranks import Ranks

Say = Callable[[str], None]

TRACKING_SHARE = 0.05
"""Most of a run's time that tracking may take between checkpoints."""
RUN_FILES = frozenset(
    {LOG, LOCK, JOURNAL, f".{JOURNAL}", f"{JOURNAL}.gz", "config.json", ".config.json"}
    | {"checkpoints", ".mlflow.lock", ".DS_Store", BUSY, REPLACES, ARRIVING, EARLIER, REMOVED}
)
"""Everything a run writes into its folder; --fresh touches no folder that holds anything else."""
NOT_INSTALLED = "MLflow is not installed, so this run is not tracked (pip install 'fst-lab[lab]')."


class Tracker:
    """Sends a run to MLflow after its checkpoints; what fails is said once and stops nothing."""

    def __init__(self, folder: Path, say: Say):
        self.folder = folder
        self.say = say
        self.behind = False
        """Whether the newest try failed, so that MLflow lacks what the journal holds."""
        self._warned = False
        self._not_before = 0.0

    def see(self, event: Event) -> None:
        """Sync after a checkpoint, unless the last sync was slow and only just ended."""
        if event["kind"] == "checkpoint" and time.monotonic() >= self._not_before:
            self.sync()

    def sync(self) -> None:
        """Send what MLflow does not have yet."""
        from fst_core.tracking import TrackingError, sync  # noqa: PLC0415  (seconds to import)

        began = time.monotonic()
        try:
            sync(self.folder)
            self.behind = False
        except TrackingError as error:
            self.behind = True
            if not self._warned:
                self.say(f"warning: {error}; the run goes on")
            self._warned = True
        ended = time.monotonic()
        self._not_before = ended + (ended - began) / TRACKING_SHARE


def make_tracker(folder: Path, wanted: bool, say: Say) -> Tracker | None:
    """The tracker of a run; None where it is not wanted or MLflow is not installed."""
    if not wanted:
        return None
    if importlib.util.find_spec("mlflow") is None:
        say(NOT_INSTALLED)
        return None
    return Tracker(folder, say)


def execute(
    config: RunConfig,
    folder: Path,
    console: Console,
    say: Say,
    track: bool = True,
    ranks: "Ranks | None" = None,
) -> Tracker | None:
    """Run what is left of a run, to its end.

    Args:
        ranks: the processes of the run, this one the first; None: this one alone.
    Returns:
        Its tracker, whose `behind` says whether MLflow lacks something.
    Raises:
        RunBusy: if another process runs it.
        RunMismatch: if the folder holds a run of another config.
        ConfigError: if the folder cannot be made.
    """
    _make_folder(folder)
    say(f"{folder}: loading the policy")
    from fst_core.ranks import ALONE  # noqa: PLC0415  (torch, transformers)
    from fst_core.session import Session  # noqa: PLC0415

    tracker = make_tracker(folder, track, say)
    sinks: list[Callable[[Event], None]] = []

    def observe(event: Event) -> None:
        for sink in sinks:
            sink(event)

    with Session(config, folder, observe, ranks or ALONE) as session:
        if forget_earlier(folder):
            say(f"removed the earlier run in {folder}")
        if session.next_phase:
            left = len(plan(config)) - session.next_phase
            say(f"resuming {folder} after step {session.step_done}; {counted(left, 'phase')} left")
        with watched(config, session.next_phase, console) as watcher:
            sinks += [watcher.see, *([tracker.see] if tracker else [])]
            for phase in remaining(session):
                watcher.begin(phase)
                run_phase(session, phase)
        session.finish()
    if tracker is not None:
        tracker.sync()
    return tracker


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made ({error.strerror}); choose another --runs folder"
        ) from error


@contextmanager
def replaced(folders: Sequence[Path], say: Say) -> Iterator[None]:
    """Set earlier runs aside while new ones start in their folders; logs stay.

    A new run that opens removes the earlier one; where none has by the end of the block, the
    earlier one is put back.

    Raises:
        ConfigError: if a folder holds anything that no run wrote.
        RunBusy: if another process writes one.
    """
    for folder in folders:
        _refuse_foreign(folder)
    with ExitStack() as stack:
        for folder in folders:
            held = set_aside(folder, {LOG})
            if held is not None:
                stack.enter_context(held)
                stack.callback(_end_start, folder, say)
        yield


def _end_start(folder: Path, say: Say) -> None:
    if settle(folder):
        say(f"the earlier run in {folder} is kept, since no new one started")


def _refuse_foreign(folder: Path) -> None:
    """Raise if a folder holds what --fresh must not touch.

    Raises:
        ConfigError: naming it.
        RunBusy: if another process writes the folder.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--fresh: {folder} is a file; choose another --runs folder or name")
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    foreign = sorted(found - RUN_FILES)
    if LOCK in found and not foreign:
        lock(folder).close()
    if "config.json" in found and JOURNAL not in found and not _begun_by_us(folder):
        foreign = ["config.json"]
    if foreign:
        raise ConfigError(
            f"--fresh: {folder} holds {foreign[0]!r}, which is no part of a run, so nothing was "
            "removed; choose another --runs folder or name"
        )


def _begun_by_us(folder: Path) -> bool:
    """Whether a config.json without a journal is a run's: models have files of that name too."""
    if not (folder / "config.json").stat().st_size:
        return True  # its writer died
    try:
        return "loop" in read_config(folder)
    except RunMismatch:
        return False
