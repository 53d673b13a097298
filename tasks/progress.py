"""How far a long phase is, as a progress artifact of the UI.

It is kept up from the run's own thread, after engine calls and slow steps, so that nothing runs
beside the phase. A phase that ends within seconds shows none.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from fst_core.interleave import EvaluatePhase, FastPhase, Phase, SlowPhase
from fst_core.progress import phase_name
from tasks.show import artifact_key

if TYPE_CHECKING:
    from tasks.sessions import AnySession

UPDATE_SECONDS = 3.0
"""Least time between two updates, and before the first."""


@contextmanager
def progress_shown(session: "AnySession", phase: Phase) -> Iterator[None]:
    """Show how far a fast or slow phase of a session is, while the block lasts."""
    if isinstance(phase, EvaluatePhase):
        yield
        return
    progress = PhaseProgress(session, phase)
    session.observer = session.on_call = progress.look
    try:
        yield
    finally:
        session.observer = session.on_call = None
    progress.end()


class PhaseProgress:
    """The progress artifact of one phase."""

    def __init__(self, session: "AnySession", phase: FastPhase | SlowPhase):
        self.session = session
        self.phase = phase
        self.calls = session.ledger.generate_calls
        self.last = time.monotonic()
        self.artifact: UUID | None = None
        self.given_up = False

    def look(self, *_: Any) -> None:
        """Show where the phase stands, unless that was shown only just now."""
        now = time.monotonic()
        if now - self.last >= UPDATE_SECONDS:
            self.last = now
            done, total = self.position()
            self._show(min(100.0, 100.0 * done / max(1, total)))

    def end(self) -> None:
        """The phase is done; where it was never shown, it stays so."""
        if self.artifact is not None:
            self._show(100.0)

    def position(self) -> tuple[int, int]:
        """Slow steps done, and all; of a fast phase engine calls, and the most it can use."""
        if isinstance(self.phase, SlowPhase):
            return self.session.step_done - self.phase.start, self.phase.stop - self.phase.start
        config = self.session.config
        problems = (self.phase.stop - self.phase.start) * config.loop.problems_per_step
        most = config.fast.bounds(problems, config).calls
        return self.session.ledger.generate_calls - self.calls, most

    def _show(self, percent: float) -> None:
        if self.given_up:
            return
        done, total = self.position()
        config, slow = self.session.config, isinstance(self.phase, SlowPhase)
        of = f"{total} slow steps" if slow else f"at most {total} engine calls"
        text = f"{config.id}, {phase_name(self.phase)}: {done} of {of}"
        try:
            if self.artifact is None:
                key = artifact_key(config.name, config.id, "progress")
                made = create_progress_artifact(percent, key=key, description=text)
                assert isinstance(made, UUID)
                self.artifact = made
            else:
                update_progress_artifact(self.artifact, percent, description=text)
        except httpx.HTTPError as error:  # nothing to stop a run for
            self.given_up = True
            get_run_logger().warning("the progress of this phase is not shown: %r", error)
