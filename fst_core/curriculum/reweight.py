"""Replay whose shares follow what each task's recent rewards show."""

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, Literal

from pydantic import Field

from fst_core.curriculum.base import Curriculum, Outcome, StreamTools
from fst_core.curriculum.replay import Replayed, ReplaySettings


class Reweight(ReplaySettings):
    """Replay with dynamic reweighting of the tasks, in the manner of RECAP (arXiv 2510.21978).

    need_k = (1 - m_k) + s_k, with m_k the mean and s_k the standard deviation of task k's mean
             rewards over the latest `window` slow steps that showed it (1 before the first)
    w_k    = exp(need_k / temperature) / sum_i exp(need_i / temperature)

    over all tasks met so far, the one under way included. A step gives every task its share w_k of
    the problems: the earlier ones from replay's reservoir, at most `fraction` of the step in all
    and, where that has room, at least one each, so that a loss is seen. So saturated tasks get
    less, those that do badly or waver get more. The paper was read as far as its abstract, which
    names these signals and no formula: need, softmax and bounds are this lab's.
    Cost: none; new problems are fewer by the share.
    """

    type: Literal["reweight"] = "reweight"
    fraction: float = Field(0.5, gt=0, lt=1)
    """Largest share of every step's problems that are replayed, from the second stage on."""
    window: int = Field(5, ge=2)
    """Latest slow steps with a task that count."""
    temperature: float = Field(0.5, gt=0)
    """Of the softmax: lower follows the needs more sharply."""


class Reweighted(Replayed):
    """Replay that shares a step out among the tasks (see `Reweight`)."""

    def __init__(self, settings: Reweight, tools: StreamTools, inner: Curriculum):
        super().__init__(settings, tools, inner)
        self.window, self.temperature = settings.window, settings.temperature
        self.rewards: dict[str, list[float]] = {}
        """Mean reward of each task in the latest steps that showed it, oldest first."""

    def weights(self, tasks: Sequence[str]) -> list[float]:
        """w of each task, over these."""
        needs = [self._need(self.rewards.get(task, [])) for task in tasks]
        powers = [math.exp((need - max(needs)) / self.temperature) for need in needs]
        return [power / sum(powers) for power in powers]

    @staticmethod
    def _need(rewards: Sequence[float]) -> float:
        return 1 - fmean(rewards) + pstdev(rewards) if rewards else 1.0

    def _drawn(self, rng: random.Random) -> list[int]:
        """Positions of the reservoir for one step, by the weights of their tasks."""
        earlier: dict[str, list[int]] = defaultdict(list)
        for position in self.reservoir:
            earlier[self.tools.layout.task_of(position)].append(position)
        if not earlier:
            return []
        *old, new = self.weights([*earlier, self.tools.layout.task_of(self.stage)])
        batch, most = self.tools.run.loop.problems_per_step, self.settings.count(self.tools.run)
        total = min(most, max(len(old), round(batch * (1 - new))))
        shares = zip(earlier.values(), apportioned(total, old), strict=True)
        return [p for found, share in shares for p in rng.sample(found, min(share, len(found)))]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Keep each task's mean reward of the step, and hand on."""
        super().observe(outcomes)
        for task in dict.fromkeys(outcome.task for outcome in outcomes):
            rewards = self.rewards.setdefault(task, [])
            rewards.append(fmean(o.reward for o in outcomes if o.task == task))
            del rewards[: -self.window]

    def state(self) -> Mapping[str, Any]:
        """Replay's, and the rewards."""
        return {**super().state(), "rewards": self.rewards}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replay's, and the rewards."""
        super().restore(state)
        self.rewards = {task: list(rewards) for task, rewards in state["rewards"].items()}


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """Whole shares of a total by weight, one each before anyone has two (Adams' method)."""
    shares = [0] * len(weights)
    for _ in range(total):
        most = max(
            range(len(weights)),
            key=lambda i: (shares[i] == 0, weights[i] / max(shares[i], 1)),
        )
        shares[most] += 1
    return shares
