"""What a run measures of itself: under which contexts, on which problems, at which steps."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fst_core.config import RunConfig, SuiteConfig
from fst_core.environments.tasks import Tasks
from fst_core.evaluation.reward import Evaluation, evaluate
from fst_core.policy.base import Policy
from fst_core.records import Context, Problem
from fst_core.rollouts import RollOut

NO_CONTEXT = Context("")
"""No system message beyond what a chat template adds by itself."""
Labelled = Mapping[str, Context]
"""Contexts by what they are to the run: "seed", "best" or "none"."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement, for the journal's event of this kind."""

    kind: str
    """ "evaluation" on validation problems, "quadrant" there with the base weights, or "suite"."""
    label: str
    found: Evaluation
    seconds: float
    """Wall time; contexts measured in one engine call share it equally."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the event."""


class Measuring:
    """Measures on problems that no training draws, with seeds of the run's and the step alone.

    Args:
        held_out: the validation problems.
        roll_out, base_roll_out: by the policy, and by its base model.
    """

    def __init__(
        self,
        run: RunConfig,
        tasks: Tasks,
        held_out: Sequence[Problem],
        policy: Policy,
        roll_out: RollOut,
        base_roll_out: RollOut,
    ):
        self.run, self.tasks, self.held_out, self.policy = run, tasks, held_out, policy
        self.roll_out, self.base_roll_out = roll_out, base_roll_out

    def held(self) -> Iterator[Problem]:
        """Every problem that is measured on."""
        yield from self.held_out
        for suite in self.run.evaluation.suites:
            yield from self._problems_of(suite)

    def at(self, step: int, contexts: Labelled) -> Iterator[Measured]:
        """The measurements of a step under the seed context and the population's best.

        The first and the last also measure without any context, the suites, and (the last, of a
        run that learned) the base weights, on the same problems with the same sampling seeds.
        """
        settings, steps = self.run.evaluation, self.run.loop.steps
        ends = step in (0, steps)
        bare = {"none": NO_CONTEXT} if ends and settings.ends else {}
        yield from self._validation("evaluation", step, {**contexts, **bare})
        if step == steps and settings.ends and self.run.learns:
            yield from self._validation("quadrant", step, contexts)
        for suite in settings.suites if ends else ():
            yield from self._suite(step, suite, {**contexts, "none": NO_CONTEXT})

    def _validation(self, kind: str, step: int, contexts: Labelled) -> Iterator[Measured]:
        base = kind == "quadrant"
        settings = self.run.evaluation
        scorer = self.policy if settings.kl and not base else None
        roll_out = self.base_roll_out if base else self.roll_out
        seed = (self.run.seed, "evaluation", step)
        return _timed(
            kind,
            contexts,
            lambda cs: evaluate(roll_out, cs, self.held_out, settings.samples, seed, scorer),
            {"weights": "base"} if base else {},
        )

    def _suite(self, step: int, suite: SuiteConfig, contexts: Labelled) -> Iterator[Measured]:
        problems = self._problems_of(suite)
        chosen = {str(label): contexts[label] for label in suite.contexts if label in contexts}
        seed = (self.run.seed, f"suite {suite.name}", step)
        return _timed(
            "suite",
            chosen,
            lambda cs: evaluate(self.roll_out, cs, problems, suite.samples, seed),
            {"suite": suite.name, "axis": suite.axis, "environment": suite.name},
        )

    def _problems_of(self, suite: SuiteConfig) -> Sequence[Problem]:
        return self.tasks.held_out(suite.name, "test", suite.problems)


def _timed(
    kind: str,
    contexts: Labelled,
    measure: Callable[[Sequence[Context]], list[Evaluation]],
    about: Mapping[str, str],
) -> Iterator[Measured]:
    """Measure distinct contexts once; every label gets its context's result."""
    began = time.perf_counter()
    results = measure(list({c.id: c for c in contexts.values()}.values()))
    took = time.perf_counter() - began
    by_id = {result.context.id: result for result in results}
    for label, context in contexts.items():
        yield Measured(kind, label, by_id[context.id], took / len(contexts), about)
