"""Which problem of which task stands at each position of a run's training stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fst_core.config.curriculum import MixtureCurriculum
from fst_core.config.environment import (
    MixtureConfig,
    SequenceConfig,
    environment_name,
    tasks_of,
)
from fst_core.config.run import RunConfig


@dataclass(frozen=True)
class Layout:
    """One task; or several one after another (a sequence); or several in turn (a mixture)."""

    names: tuple[str, ...]
    """Of the tasks, in the config's order."""
    rows: int
    """Problems of the whole run: slow steps times problems per step."""
    stage_rows: int | None = None
    """Of one stage of a sequence; None where tasks do not follow one another."""
    turns: tuple[int, ...] = (0,)
    """Task at each position of one round of a mixture; rounds repeat for ever."""

    def at(self, position: int) -> tuple[int, int]:
        """(task, index in the task's train split) at a position of the stream."""
        if self.stage_rows is not None:
            return divmod(position, self.stage_rows)
        round_, place = divmod(position, len(self.turns))
        task = self.turns[place]
        return task, round_ * len(self._places[task]) + self._ranks[place]

    def position(self, task: int, index: int) -> int:
        """Inverse of `at`."""
        if self.stage_rows is not None:
            return task * self.stage_rows + index
        round_, rank = divmod(index, len(self._places[task]))
        return round_ * len(self.turns) + self._places[task][rank]

    def task_of(self, position: int) -> str:
        """Name of the task at a position of the stream."""
        return self.names[self.at(position)[0]]

    def stages(self, slots: range) -> Iterator[tuple[range, range]]:
        """(all positions of the stage, its part of `slots`) for each stage that `slots` meets.

        A run without stages is one stage, as long as the run.
        """
        size = self.stage_rows or max(self.rows, slots.stop)
        for stage in range(slots.start // size, -(-slots.stop // size)):
            positions = range(stage * size, (stage + 1) * size)
            first, last = max(slots.start, positions.start), min(slots.stop, positions.stop)
            yield positions, range(first, last)

    @cached_property
    def _places(self) -> list[list[int]]:
        """Places of each task in a round."""
        tasks = range(len(self.names))
        return [[i for i, turn in enumerate(self.turns) if turn == task] for task in tasks]

    @cached_property
    def _ranks(self) -> list[int]:
        """How often the task at each place came before in the round."""
        return [self.turns[:place].count(task) for place, task in enumerate(self.turns)]


def layout_of(run: RunConfig) -> Layout:
    """The layout of a run's training stream."""
    environment, batch = run.environment, run.loop.problems_per_step
    names = tuple(map(environment_name, tasks_of(environment)))
    rows = run.loop.steps * batch
    if isinstance(environment, SequenceConfig):
        return Layout(names, rows, stage_rows=environment.task_steps * batch)
    if isinstance(environment, MixtureConfig):
        return Layout(names, rows, turns=turns_of(environment.weights or (1,) * len(names)))
    return Layout(names, rows)


def turns_of(weights: Sequence[int]) -> tuple[int, ...]:
    """One round of tasks, each as often as its weight and spread evenly: smooth round robin.

    In every turn each task gains its weight; the first of those that have most comes, and pays the
    sum of all weights.
    """
    gained, turns = [0] * len(weights), []
    for _ in range(sum(weights)):
        gained = [have + weight for have, weight in zip(gained, weights, strict=True)]
        turns.append(gained.index(max(gained)))
        gained[turns[-1]] -= sum(weights)
    return tuple(turns)


def train_rows(run: RunConfig) -> list[int]:
    """Most train problems that a run reads of each task.

    A curriculum that chooses among a mixture's tasks may take every problem from one of them; any
    other keeps to the positions that the stream itself shows.
    """
    layout = layout_of(run)
    if layout.stage_rows is not None:
        return [layout.stage_rows] * len(layout.names)
    if isinstance(run.curriculum, MixtureCurriculum):
        return [layout.rows] * len(layout.names)
    rounds, rest = divmod(layout.rows, len(layout.turns))
    return [
        rounds * layout.turns.count(task) + layout.turns[:rest].count(task)
        for task in range(len(layout.names))
    ]
