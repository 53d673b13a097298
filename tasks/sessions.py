"""Live sessions of this process, found by run id: a task is told an id, never handed a model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import get_run_logger

from fst_core.config import RunConfig
from fst_core.processes import LOG
from fst_core.quiet import settle_for
from fst_core.remote import RemoteSession, launched

if TYPE_CHECKING:
    from fst_core.session import Session

    AnySession = Session | RemoteSession

_LIVE: dict[str, "AnySession"] = {}


@dataclass(frozen=True, slots=True)
class Spread:
    """How many processes of this host a run has."""

    processes: int = 1
    sharded: bool = False
    """Whether they share out the weights and the optimizer (FSDP) or each hold all (DDP)."""
    words: Sequence[str] = ()
    """What they are started with (see `fst_core.driven`)."""


@contextmanager
def live_session(config: RunConfig, folder: Path, spread: Spread) -> Iterator["AnySession"]:
    """Open a run at its last checkpoint, findable by its id until the block ends.

    Raises:
        RuntimeError: if this process already has a session; it can train one model at a time.
    """
    if _LIVE:
        raise RuntimeError(f"this process already holds run {', '.join(_LIVE)}")
    with _opened(config, folder, spread) as session:
        _LIVE[config.id] = session
        try:
            yield session
        finally:
            del _LIVE[config.id]


@contextmanager
def _opened(config: RunConfig, folder: Path, spread: Spread) -> Iterator["AnySession"]:
    settle_for(config)
    if spread.processes > 1:
        told = "%s runs in %d processes, which take a while to start; their own output is in %s"
        get_run_logger().info(told, folder, spread.processes, folder / LOG)
        with launched(config, folder, spread.words, spread.processes, spread.sharded) as remote:
            yield remote
        return
    from fst_core.session import Session

    with Session(config, folder) as session:
        yield session


def find_session(run_id: str) -> "AnySession":
    """The live session of a run of this process."""
    return _LIVE[run_id]
