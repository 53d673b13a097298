"""A bandit over the tasks of a mixture."""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fst_core.config.curriculum import MixtureCurriculum
from fst_core.curriculum.base import Outcome, StreamTools
from fst_core.records import seed_of

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class Dump(MixtureCurriculum):
    """DUMP: distribution-level curriculum (Wang et al. 2025, arXiv 2504.09710).

    L_j = mean |advantage| of the latest `window` rollouts of task j (0 before the first)
    UCB_j = L_j + sqrt(2 ln(n + 1) / (n_j + 1)), n_j rollouts of task j so far, n of all tasks
    P(j) = exp(UCB_j / temperature) / sum_i exp(UCB_i / temperature)

    Every slot of a cycle draws its task from P and takes that task's next problem. P is renewed
    once a cycle, not once a step. An advantage is a reward less its group's mean, and comes from
    the slow steps alone (the authors' code, whose defaults these are, feeds rewards of validation
    problems instead). Without a slow part nothing is observed and P stays uniform.
    Cost: none; the rollouts are the slow part's own.
    """

    type: Literal["dump"] = "dump"
    window: int = Field(300, ge=1)
    """Latest rollouts of a task that count (whole groups, at least one)."""
    temperature: float = Field(0.1, gt=0)
    """Of the softmax: lower follows the bounds more sharply."""

    def refuse(self, run: "RunConfig") -> None:
        """Refuse what is no mixture, and weights that nothing would read.

        Raises:
            ValueError: naming the setting.
        """
        super().refuse(run)
        if run.environment.type == "mixture" and run.environment.weights:
            raise ValueError(
                'curriculum.type = "dump" sets the share of every task itself, so '
                "environment.weights would do nothing; remove them"
            )


class TaskBandit:
    """Slots hold the next problems of drawn tasks (see `curriculum.base.Curriculum`)."""

    def __init__(self, settings: Dump, tools: StreamTools):
        self.settings, self.tools = settings, tools
        self.group = tools.run.loop.group_size
        self.groups = max(1, settings.window // self.group)
        """Latest groups of a task that count."""
        tasks = len(tools.layout.names)
        self.next = [0] * tasks
        """Index of each task's next problem."""
        self.counts = [0] * tasks
        """n_j: rollouts seen of each task."""
        self.advantages: list[list[float]] = [[] for _ in range(tasks)]
        """Mean |advantage| of each task's latest groups, oldest first."""

    def probabilities(self) -> list[float]:
        """P of each task."""
        log = math.log(sum(self.counts) + 1)
        bounds = [
            (fmean(latest) if latest else 0.0) + math.sqrt(2 * log / (count + 1))
            for latest, count in zip(self.advantages, self.counts, strict=True)
        ]
        highest = max(bounds)
        powers = [math.exp((bound - highest) / self.settings.temperature) for bound in bounds]
        return [power / sum(powers) for power in powers]

    def choose(self, slots: range) -> list[int]:
        """Draw a task for each slot, and take its next problem."""
        rng = random.Random(seed_of(self.tools.run.seed, "dump", slots.start))
        tasks = rng.choices(range(len(self.next)), self.probabilities(), k=len(slots))
        return [self._take(task) for task in tasks]

    def _take(self, task: int) -> int:
        index = self.next[task]
        self.next[task] += 1
        return self.tools.layout.position(task, index)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Count a group's rollouts and keep its mean |advantage|."""
        for outcome in outcomes:
            task = self.tools.layout.names.index(outcome.task)
            self.counts[task] += self.group
            self.advantages[task].append(outcome.advantage)
            del self.advantages[task][: -self.groups]

    def state(self) -> Mapping[str, Any]:
        """Counters and windows."""
        return {"next": self.next, "counts": self.counts, "advantages": self.advantages}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Counters and windows."""
        self.next, self.counts = list(state["next"]), list(state["counts"])
        self.advantages = [list(latest) for latest in state["advantages"]]
