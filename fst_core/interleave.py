"""THE algorithm: fast and slow phases, interleaved.

    cycle c:  1. evolve the K contexts on the problems of the next T steps, against the current
                 weights, starting from the contexts of cycle c - 1          (fast weights)
              2. take T optimizer steps on those problems, every group's G rollouts spread over
                 the K contexts, the advantage taken once per problem        (slow weights)

Phases are plain records. Whoever runs them (the command line, a Prefect flow) calls `run_phase`
on each in order; a run that died goes on at its checkpoint's next phase.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fst_core.config import NoFast, NoSlow, RunConfig, SequenceConfig
from fst_core.interrupts import stop_if_asked


class Runner(Protocol):
    """What can be driven through a plan; `fst_core.session.Session` is the one there is."""

    config: RunConfig
    next_phase: int
    """Index in the plan of the phase to run next."""

    def evolve(self, cycle: int, start: int, stop: int) -> None: ...

    def step(self) -> None: ...

    def evaluate(self, step: int) -> None: ...

    def save(self) -> None: ...

    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FastPhase:
    """Evolve contexts on the problems of slow steps [start, stop)."""

    cycle: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SlowPhase:
    """Take slow steps [start, stop)."""

    cycle: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class EvaluatePhase:
    """Measure on held-out problems after `start` slow steps."""

    cycle: int
    start: int


Phase = FastPhase | SlowPhase | EvaluatePhase


def plan(config: RunConfig) -> list[Phase]:
    """Every phase of a run, in order; the index in this list is what a checkpoint remembers."""
    steps, measured = config.loop.steps, evaluation_steps(config)
    if isinstance(config.fast, NoFast) and isinstance(config.slow, NoSlow):
        return [EvaluatePhase(0, 0)]
    phases: list[Phase] = [EvaluatePhase(0, 0)]
    for cycle, start in enumerate(range(0, steps, config.loop.cycle_steps)):
        stop = min(start + config.loop.cycle_steps, steps)
        if not isinstance(config.fast, NoFast):
            phases.append(FastPhase(cycle, start, stop))
        marks = [s for s in range(start + 1, stop) if s in measured]
        for a, b in zip([start, *marks], [*marks, stop], strict=True):
            if not isinstance(config.slow, NoSlow):
                phases.append(SlowPhase(cycle, a, b))
            if b in measured:
                phases.append(EvaluatePhase(cycle, b))
    return phases


def evaluation_steps(config: RunConfig) -> frozenset[int]:
    """Slow steps after which a run evaluates, beside its start: regular ones, the end, switches."""
    steps, every = config.loop.steps, config.evaluation.every
    found = {steps, *(range(every, steps, every) if every else ())}
    if isinstance(config.environment, SequenceConfig):
        switches = range(0, steps, config.environment.task_steps)[1:]
        found |= {switch + after for switch in switches for after in config.evaluation.after_switch}
        found |= {*switches}
    return frozenset(step for step in found if step <= steps)


def run_phase(runner: Runner, phase: Phase) -> None:
    """Do one phase: everything it measures goes to the journal, then maybe a checkpoint."""
    match phase:
        case FastPhase(cycle, start, stop):
            runner.evolve(cycle, start, stop)
        case SlowPhase(_, start, stop):
            for _ in range(start, stop):
                runner.step()
        case EvaluatePhase(_, step):
            runner.evaluate(step)
    runner.next_phase += 1
    if checkpoint_due(runner, phase):
        runner.save()


def checkpoint_due(runner: Runner, phase: Phase) -> bool:
    """After every fast phase (if set), in every n-th cycle, and at the end of the run."""
    settings = runner.config.checkpoint
    in_cycle = phase.cycle % settings.every_cycles == 0
    after_fast = settings.after_fast and isinstance(phase, FastPhase)
    return is_last(runner.config, phase) or in_cycle or after_fast


def is_last(config: RunConfig, phase: Phase) -> bool:
    """Whether a phase ends its plan: every plan ends with the evaluation after all steps."""
    if isinstance(config.fast, NoFast) and isinstance(config.slow, NoSlow):
        return True
    return isinstance(phase, EvaluatePhase) and phase.start == config.loop.steps


def remaining(runner: Runner) -> Iterator[Phase]:
    """The phases that are still to be run, from the runner's position on.

    Raises:
        KeyboardInterrupt: between two phases, if this process was asked to stop.
    """
    for phase in plan(runner.config)[runner.next_phase :]:
        stop_if_asked()
        yield phase


def interleave(runner: Runner) -> None:
    """Run everything that is left of a run, in this process."""
    for phase in remaining(runner):
        run_phase(runner, phase)
    runner.finish()
