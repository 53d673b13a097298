"""The problems of slow steps: the training stream as the curriculum has ordered it."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fst_core.config import RunConfig
from fst_core.curriculum.base import Curriculum, Outcome, StreamTools
from fst_core.curriculum.registry import make_curriculum
from fst_core.environments.tasks import Tasks
from fst_core.records import Problem, Rollout, seed_of


class Problems:
    """Asks the curriculum once a cycle, and tells it what each slow step showed."""

    def __init__(self, run: RunConfig, tasks: Tasks):
        self.loop, self.tasks = run.loop, tasks
        self.seed, self.most_further = run.seed, run.slow.refills * run.loop.problems_per_step
        tools = StreamTools(run, tasks.layout, tasks.is_first)
        self.curriculum: Curriculum = make_curriculum(tools)
        self.first = 0
        """First slot of the cycle under way."""
        self.positions: list[int] = []
        """Stream position at each slot of the cycle under way."""

    def between(self, start: int, stop: int) -> list[Problem]:
        """The problems of slow steps [start, stop), which lie within one cycle."""
        batch = self.loop.problems_per_step
        return [self.tasks.train(p) for p in self._positions(start * batch, stop * batch)]

    def _positions(self, first: int, last: int) -> list[int]:
        cycle = self.loop.cycle_steps * self.loop.problems_per_step
        begin = first // cycle * cycle
        if not self.positions or self.first != begin:
            end = min(begin + cycle, self.loop.steps * self.loop.problems_per_step)
            self.first, self.positions = begin, self.curriculum.choose(range(begin, end))
        return self.positions[first - self.first : last - self.first]

    def further(self, step: int) -> dict[int, Problem]:
        """By position, what slow step `step` (from 0) may draw beside its own problems.

        Others of its cycle, and in a sequence of its stage, each once and in a random order.
        """
        batch = self.loop.problems_per_step
        own = self._positions(step * batch, (step + 1) * batch) if self.most_further else []
        seen = {self.tasks.train(position).id for position in own}
        found: dict[int, Problem] = {}
        for position in self._shuffled(step) if own else ():
            problem = self.tasks.train(position)
            if problem.id not in seen and len(found) < self.most_further:
                found[position] = problem
                seen.add(problem.id)
        return found

    def _shuffled(self, step: int) -> list[int]:
        """The positions at the slots of a step's stage in the cycle under way."""
        slots = range(self.first, self.first + len(self.positions))
        first = step * self.loop.problems_per_step
        part = next(part for _, part in self.tasks.layout.stages(slots) if first in part)
        chosen = sorted({self.positions[slot - self.first] for slot in part})
        random.Random(seed_of(self.seed, "further", step)).shuffle(chosen)
        return chosen

    def observe(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Tell the curriculum of slow step `step` (from 1), whose rollouts these all are."""
        batch = self.loop.problems_per_step
        positions = self._positions((step - 1) * batch, step * batch)
        rewards: dict[str, list[float]] = defaultdict(list)
        for rollout in rollouts:
            rewards[rollout.problem_id].append(rollout.verdict.reward)
        problems = {p: self.tasks.train(p) for p in positions} | self.further(step - 1)
        self.curriculum.observe(
            [
                outcome(position, problem, step, rewards[problem.id])
                for position, problem in problems.items()
                if problem.id in rewards
            ]
        )

    def rearranged(self, step: int) -> dict[str, Any]:
        """For the journal: the positions of slow step `step`, where they are not the slots."""
        batch = self.loop.problems_per_step
        slots = range((step - 1) * batch, step * batch)
        positions = self._positions(slots.start, slots.stop)
        return {} if positions == list(slots) else {"positions": positions}

    def state(self) -> dict[str, Any]:
        """Plain JSON for a checkpoint."""
        own = dict(self.curriculum.state())
        return {"first": self.first, "positions": self.positions, "curriculum": own}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.first, self.positions = state["first"], list(state["positions"])
        self.curriculum.restore(state["curriculum"])


def outcome(position: int, problem: Problem, step: int, rewards: Sequence[float]) -> Outcome:
    """What the rewards of one problem's group show."""
    mean = fmean(rewards)
    apart = fmean(abs(reward - mean) for reward in rewards)
    return Outcome(position, problem.environment, step, mean, apart)
