"""The tasks of a mixture from first to last."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fst_core.config.curriculum import MixtureCurriculum
from fst_core.curriculum.base import Outcome, StreamTools, spread


class EasyToHard(MixtureCurriculum):
    """Easy to hard: a mixture's tasks in the order given (Bengio et al. 2009; arXiv 2506.06632).

    "linear": at progress x in [0, 1] of the run (0 in the first step, 1 in the last) the place
    among n tasks is x (n - 1); its whole part is the task, its fraction the share of the next one.
    "step": each task alone, for an equal part of the run. Besides, a share `mix` of every step is
    drawn from all tasks in turn, by the mixture's weights, so that none is ever quite absent.
    Cost: none.
    """

    type: Literal["easy_to_hard"] = "easy_to_hard"
    schedule: Literal["linear", "step"] = "linear"
    """Whether one task fades into the next or ends where the next begins."""
    mix: float = Field(0.0, ge=0, lt=1)
    """Share of every step's problems that come from all tasks in turn."""


class InSchedule:
    """Slots hold the next problems of scheduled tasks (see `curriculum.base.Curriculum`)."""

    def __init__(self, settings: EasyToHard, tools: StreamTools):
        self.settings, self.tools, self.loop = settings, tools, tools.run.loop
        self.tasks = len(tools.layout.names)
        self.next = [0] * self.tasks
        """Index of each task's next problem."""
        self.mixed = 0
        """Problems taken from all tasks in turn so far."""

    def choose(self, slots: range) -> list[int]:
        """The tasks of one step after the other, each step's spread evenly."""
        batch = self.loop.problems_per_step
        steps = range(slots.start // batch, slots.stop // batch)
        return [self._take(task) for step in steps for task in self._tasks(step)]

    def _tasks(self, step: int) -> list[int]:
        """Task of each problem of a slow step (from 0)."""
        batch = self.loop.problems_per_step
        mixed = round(self.settings.mix * batch)
        scheduled = iter(self._scheduled(step, batch - mixed))
        return [self._in_turn() if turn else next(scheduled) for turn in spread(mixed, batch)]

    def _scheduled(self, step: int, count: int) -> list[int]:
        if self.settings.schedule == "step":
            return [step * self.tasks // self.loop.steps] * count
        last = max(1, self.loop.steps - 1)
        task, further = divmod(step * (self.tasks - 1), last)
        harder = round(count * further / last)
        return [task + turn for turn in spread(harder, count)]

    def _in_turn(self) -> int:
        self.mixed += 1
        return self.tools.layout.at(self.mixed - 1)[0]

    def _take(self, task: int) -> int:
        index = self.next[task]
        self.next[task] += 1
        return self.tools.layout.position(task, index)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing is learned."""

    def state(self) -> Mapping[str, Any]:
        """Counters."""
        return {"next": self.next, "mixed": self.mixed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Counters."""
        self.next, self.mixed = list(state["next"]), state["mixed"]
