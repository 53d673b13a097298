"""Live sessions of this process, found by run id: a task is told an id, never handed a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fst_core.config import RunConfig
from fst_core.quiet import settle_for

if TYPE_CHECKING:
    from fst_core.session import Session

_LIVE: dict[str, "Session"] = {}


@contextmanager
def live_session(config: RunConfig, folder: Path) -> Iterator["Session"]:
    """Open a run at its last checkpoint, findable by its id until the block ends.

    Raises:
        RuntimeError: if this process already has a session; it can train one model at a time.
    """
    if _LIVE:
        raise RuntimeError(f"this process already holds run {', '.join(_LIVE)}")
    settle_for(config)
    from fst_core.session import Session

    with Session(config, folder) as session:
        _LIVE[config.id] = session
        try:
            yield session
        finally:
            del _LIVE[config.id]


def find_session(run_id: str) -> "Session":
    """The live session of a run of this process."""
    return _LIVE[run_id]
