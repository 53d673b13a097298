"""The tasks of a run: its training stream over one task or several, and one judge for all."""

import random
from collections.abc import Iterator, Mapping

from fst_core.config import RunConfig, SuiteConfig, TaskConfig, tasks_of
from fst_core.environments.base import Environment
from fst_core.environments.layout import layout_of, train_rows
from fst_core.environments.registry import make_environment
from fst_core.records import Problem, Split, Verdict, seed_of


def task_configs(config: RunConfig) -> list[TaskConfig]:
    """Every environment a run reads: its tasks in order, then its suites under their own names."""
    return [*tasks_of(config.environment), *(suite_task(s) for s in config.evaluation.suites)]


def suite_task(suite: SuiteConfig) -> TaskConfig:
    """A suite's environment under the suite's name."""
    return suite.environment.model_copy(update={"name": suite.name})


def problems_read(config: RunConfig) -> Iterator[tuple[Environment, dict[Split, int]]]:
    """Every environment of a run, from its generator, and how many problems it reads of each split.

    Of a task's test split, which no run reads, as many as of its validation split; a suite reads
    its test split alone. Never more than a split holds, but for validation, whose lack is an error.
    """
    tasks = Tasks(config.model_copy(update={"data": None}))
    held_out = config.evaluation.problems
    for environment, rows in zip(tasks.trained, train_rows(config), strict=True):
        read: dict[Split, int] = {
            "train": _at_most(environment, "train", rows),
            "validation": held_out,
            "test": _at_most(environment, "test", held_out),
        }
        yield environment, read
    for suite in config.evaluation.suites:
        yield tasks.by_name[suite.name], {"train": 0, "validation": 0, "test": suite.problems}


def _at_most(environment: Environment, split: Split, count: int) -> int:
    known = environment.size(split)
    return count if known is None else min(count, known)


class Tasks:
    """The environments of a run by name (see `environments.base.Judge`).

    Raises:
        ConfigError: for settings an environment refuses.
        DataError: for problem files that are missing or broken.
    """

    def __init__(self, config: RunConfig):
        made = [make_environment(task, config.data) for task in task_configs(config)]
        self.by_name: Mapping[str, Environment] = {e.name: e for e in made}
        self.trained = made[: len(tasks_of(config.environment))]
        self.name = ", ".join(environment.name for environment in self.trained)
        self.seed = config.seed
        self.layout = layout_of(config)
        self._orders: dict[tuple[str, int], list[int]] = {}

    def train(self, position: int) -> Problem:
        """The problem at a position of the run's training stream.

        A finite train split is gone through in order once, then in a new seeded order each time.
        """
        task, at = self.layout.at(position)
        environment = self.trained[task]
        size = environment.size("train")
        if size is None or at < size:
            return environment.problem("train", at)
        epoch, index = divmod(at, size)
        return environment.problem("train", self._order(environment.name, epoch, size)[index])

    def is_first(self, position: int) -> bool:
        """Whether a position is the first of its problem: false where a split begins again."""
        task, at = self.layout.at(position)
        size = self.trained[task].size("train")
        return size is None or at < size

    def _order(self, name: str, epoch: int, size: int) -> list[int]:
        if (name, epoch) not in self._orders:
            order = list(range(size))
            random.Random(seed_of(self.seed, "epoch", epoch)).shuffle(order)
            self._orders[name, epoch] = order
        return self._orders[name, epoch]

    def held_out(self, name: str, split: Split, count: int) -> list[Problem]:
        """The first problems of an environment's validation or test split.

        Raises:
            PastTheEnd: if it holds fewer.
        """
        return [self.by_name[name].problem(split, i) for i in range(count)]

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """The verdict of the problem's own environment."""
        return self.by_name[problem.environment].judge(problem, completion)

    def solution(self, problem: Problem) -> str | None:
        """A full solution, by the problem's own environment."""
        return self.by_name[problem.environment].solution(problem)
