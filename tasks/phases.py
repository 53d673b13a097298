"""The phases of a run as task runs: the UI shows fast and slow weights taking turns.

A task that failed is never tried again by itself: its session is in an unknown state. The flow's
retry opens a new one at the last checkpoint.
"""

import time
from dataclasses import dataclass

from prefect import task
from prefect.cache_policies import NO_CACHE

from fst_core.interleave import EvaluatePhase, FastPhase, Phase, SlowPhase, run_phase
from tasks.progress import progress_shown
from tasks.sessions import find_session


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """What a phase left behind."""

    run_id: str
    step: int
    """Slow steps done."""
    saved: bool
    """Whether a checkpoint was written."""
    seconds: float


@task(name="fast", task_run_name="fast c{phase.cycle:02d} {run_id}", cache_policy=NO_CACHE)
def evolve_contexts(run_id: str, phase: FastPhase) -> PhaseRecord:
    """Evolve the contexts of one cycle."""
    return _perform(run_id, phase)


@task(
    name="slow",
    task_run_name="slow c{phase.cycle:02d} {phase.start}-{phase.stop} {run_id}",
    cache_policy=NO_CACHE,
)
def update_weights(run_id: str, phase: SlowPhase) -> PhaseRecord:
    """Take the slow steps of one phase."""
    return _perform(run_id, phase)


@task(name="evaluate", task_run_name="evaluate {phase.start} {run_id}", cache_policy=NO_CACHE)
def measure(run_id: str, phase: EvaluatePhase) -> PhaseRecord:
    """Measure on held-out problems."""
    return _perform(run_id, phase)


def perform(run_id: str, phase: Phase) -> PhaseRecord:
    """Run one phase as the task of its kind."""
    match phase:
        case FastPhase():
            return evolve_contexts(run_id, phase)
        case SlowPhase():
            return update_weights(run_id, phase)
        case EvaluatePhase():
            return measure(run_id, phase)


def _perform(run_id: str, phase: Phase) -> PhaseRecord:
    session, began = find_session(run_id), time.perf_counter()
    with progress_shown(session, phase):
        run_phase(session, phase)
    took = time.perf_counter() - began
    saved = (session.folder / "checkpoints" / f"{session.next_phase:04d}").is_dir()
    return PhaseRecord(run_id, session.step_done, saved, took)
