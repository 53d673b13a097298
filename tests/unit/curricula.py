"""Runs with a curriculum, simulated without a policy, for the tests of curricula."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fst_core.config import RunConfig
from fst_core.curriculum.base import Curriculum, Outcome, StreamTools
from fst_core.curriculum.registry import make_curriculum
from fst_core.environments.layout import layout_of
from fst_core.records import seed_of
from tests.runs import tiny_config

TASKS = [
    {"type": "directives", "task": "echo", "name": "dashed", "required": ["dashes"]},
    {"type": "directives", "task": "echo", "name": "boxed", "required": ["boxed"]},
    {"type": "directives", "task": "echo", "name": "dotted", "required": ["dots"]},
]
MIXTURE = {"type": "mixture", "tasks": TASKS}
ONE_TASK = TASKS[0]
REPLAY = {"type": "replay", "fraction": 0.5, "capacity": 3}
REWEIGHT = {"type": "reweight", "capacity": 8, "window": 2}


def sequence(task_steps: int, tasks: int = 3) -> dict[str, Any]:
    return {"type": "sequence", "task_steps": task_steps, "tasks": TASKS[:tasks]}


def config(
    environment: Mapping[str, Any], steps: int, cycle: int = 1, batch: int = 4, **tables: Any
) -> RunConfig:
    """A run of `steps` slow steps of `batch` problems, G = 4."""
    loop = {"steps": steps, "cycle_steps": cycle, "problems_per_step": batch, "group_size": 4}
    return tiny_config(environment=environment, loop=loop, **tables)


def made(run_config: RunConfig, train_size: int | None = None) -> Curriculum:
    """A run's curriculum, over endless train splits or such of `train_size` problems each."""
    layout = layout_of(run_config)

    def is_first(position: int) -> bool:
        return train_size is None or layout.at(position)[1] < train_size

    return make_curriculum(StreamTools(run_config, layout, is_first))


def saw(curriculum: Any, step: int, rewards: Mapping[int, float], apart: float = 0.0) -> None:
    """Tell a curriculum of one step: mean reward by position, mean |advantage| p (1 - p) or so."""
    task_of = curriculum.tools.layout.task_of
    curriculum.observe(
        [Outcome(p, task_of(p), step, r, apart or 2 * r * (1 - r)) for p, r in rewards.items()]
    )


def cycles(run_config: RunConfig) -> Iterator[range]:
    """The slots of each cycle."""
    batch, loop = run_config.loop.problems_per_step, run_config.loop
    for start in range(0, loop.steps, loop.cycle_steps):
        yield range(start * batch, min(start + loop.cycle_steps, loop.steps) * batch)


def simulated(
    run_config: RunConfig,
    between: Callable[[Curriculum], Curriculum],
    train_size: int | None = None,
) -> list[int]:
    """All choices of a run whose rewards are hashes, with something done between its cycles."""
    curriculum, chosen = made(run_config, train_size), []
    layout, batch = layout_of(run_config), run_config.loop.problems_per_step
    for slots in cycles(run_config):
        curriculum = between(curriculum)
        found = curriculum.choose(slots)
        assert len(found) == len(slots)
        for at in range(0, len(found), batch):
            step = (slots.start + at) // batch + 1
            rewards = {p: seed_of("reward", p, step) % 5 / 4 for p in found[at : at + batch]}
            curriculum.observe(
                [Outcome(p, layout.task_of(p), step, r, r / 2) for p, r in rewards.items()]
            )
        chosen += found
    return chosen
