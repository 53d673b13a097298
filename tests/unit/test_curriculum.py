"""Curricula: the seam, and hand-computed choices of each."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fst_core.curriculum.adaptive import ByDifficulty
from fst_core.curriculum.base import Outcome, spread
from fst_core.curriculum.dump import TaskBandit
from fst_core.curriculum.problems import Problems, outcome
from fst_core.environments.tasks import Tasks
from fst_core.records import Completion, Problem, Rollout, StopReason, Verdict
from tests.unit.curricula import (
    MIXTURE,
    ONE_TASK,
    TASKS,
    config,
    cycles,
    made,
    saw,
    simulated,
)


def test_places_are_spread_evenly() -> None:
    assert spread(2, 4) == [False, True, False, True]
    assert spread(1, 4) == [False, False, False, True]
    assert spread(3, 4) == [False, True, True, True]
    assert spread(0, 2) == [False, False] and spread(2, 2) == [True, True]


# The seam


class Recorder:
    """Hands out positions backwards, and remembers what it was asked and told."""

    def __init__(self) -> None:
        self.asked: list[range] = []
        self.told: list[Outcome] = []

    def choose(self, slots: range) -> list[int]:
        self.asked.append(slots)
        return list(reversed(slots))

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self.told += outcomes

    def state(self) -> dict[str, Any]:
        return {"asked": len(self.asked)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.restored = state


def rollout(problem: Problem, reward: float) -> Rollout:
    return Rollout(
        problem.id,
        "c",
        Completion((), (), "", StopReason.STOP, 0),
        Verdict(reward),
        0,
        problem.text,
    )


def test_a_curriculum_is_asked_once_a_cycle_and_told_of_every_group() -> None:
    run_config = config(ONE_TASK, steps=5, cycle=2, batch=2)
    tasks = Tasks(run_config)
    problems = Problems(run_config, tasks)
    problems.curriculum = recorder = Recorder()
    assert problems.between(0, 2) == [tasks.train(p) for p in (3, 2, 1, 0)]
    assert problems.between(0, 1) == [tasks.train(p) for p in (3, 2)]
    assert problems.between(1, 2) == [tasks.train(p) for p in (1, 0)]
    rows = [(3, 1.0), (3, 0.0), (3, 0.0), (3, 0.0), (2, 1.0), (2, 1.0)]
    problems.observe(1, [rollout(tasks.train(p), reward) for p, reward in rows])
    assert recorder.told == [
        Outcome(3, "dashed", 1, 0.25, 0.375),
        Outcome(2, "dashed", 1, 1.0, 0.0),
    ]
    assert problems.rearranged(1) == {"positions": [3, 2]}
    problems.between(4, 5)
    assert recorder.asked == [range(0, 4), range(8, 10)]


def test_a_mean_absolute_deviation_by_hand() -> None:
    problem = Tasks(config(ONE_TASK, steps=1)).train(0)
    assert outcome(7, problem, 3, [0.5, 1.0, 0.0, 0.5]) == Outcome(7, "dashed", 3, 0.5, 0.25)


def test_a_cycle_under_way_is_restored_without_asking_again() -> None:
    run_config = config(ONE_TASK, steps=4, cycle=2, batch=2)
    tasks = Tasks(run_config)
    first, second = Problems(run_config, tasks), Problems(run_config, tasks)
    first.curriculum, second.curriculum = Recorder(), Recorder()
    first.between(2, 3)
    state = json.loads(json.dumps(first.state()))
    second.restore(state)
    assert state == {"first": 4, "positions": [7, 6, 5, 4], "curriculum": {"asked": 1}}
    assert second.between(3, 4) == first.between(3, 4) == [tasks.train(p) for p in (5, 4)]
    assert second.curriculum.asked == []


def test_stream_is_the_order_itself() -> None:
    run_config = config(ONE_TASK, steps=5, cycle=2)
    assert simulated(run_config, lambda c: c) == list(range(20))
    assert Problems(run_config, Tasks(run_config)).rearranged(3) == {}


# uniform


def test_uniform_draws_a_cycle_without_and_cycles_with_replacement() -> None:
    run_config = config(ONE_TASK, steps=20, cycle=2, curriculum={"type": "uniform"})
    chosen = simulated(run_config, lambda c: c)
    assert all(len(set(chosen[at : at + 8])) == 8 for at in range(0, 80, 8))
    assert set(chosen) < set(range(80))
    counts = sorted({chosen.count(p) for p in range(80)})
    assert counts[0] == 0 and counts[-1] > 1  # the stream would show each once


def test_uniform_goes_through_a_small_pool_as_often_as_it_must() -> None:
    """A pool of 3 for 8 slots: twice all of it, and two of the third round."""
    pool = {"type": "uniform", "pool": 3}
    chosen = made(config(ONE_TASK, steps=2, cycle=2, curriculum=pool)).choose(range(8))
    assert sorted(chosen[:3]) == sorted(chosen[3:6]) == [0, 1, 2]
    assert len({*chosen[6:]}) == 2 and {*chosen[6:]} < {0, 1, 2}


def test_uniform_knows_a_finite_split_as_one_pool() -> None:
    run_config = config(ONE_TASK, steps=4, cycle=1, curriculum={"type": "uniform"})
    curriculum = made(run_config, train_size=4)
    assert all(sorted(curriculum.choose(slots)) == [0, 1, 2, 3] for slots in cycles(run_config))


# adaptive


def adaptive(train_size: int | None = None, **options: Any) -> ByDifficulty:
    """Cycles of one step of four problems."""
    options = {"type": "adaptive", "decay": 0.0, "prefer": "informative", **options}
    found = made(config(ONE_TASK, steps=10, curriculum=options), train_size)
    assert isinstance(found, ByDifficulty)
    return found


def test_adaptive_brings_back_what_was_between_solved_and_hopeless() -> None:
    curriculum = adaptive()
    assert curriculum.choose(range(4)) == [0, 1, 2, 3]
    saw(curriculum, 1, {0: 0.5, 1: 1.0, 2: 0.0, 3: 0.25})
    chosen = curriculum.choose(range(4, 8))
    assert chosen[::2] == [4, 5] and sorted(chosen[1::2]) == [0, 3]


def test_adaptive_fills_its_share_with_the_most_informative() -> None:
    """A share of .25 has room for one: of 0 (2 x .25 = .5 apart) and 3 (.375), the first."""
    curriculum = adaptive(again=0.25)
    curriculum.choose(range(4))
    saw(curriculum, 1, {0: 0.5, 1: 1.0, 2: 0.0, 3: 0.25})
    assert curriculum.choose(range(4, 8)) == [4, 5, 6, 0]


def test_the_ends_of_the_band_are_outside() -> None:
    curriculum = adaptive(low=0.25, high=0.75)
    curriculum.choose(range(4))
    saw(curriculum, 1, {0: 0.25, 1: 0.75, 2: 0.5, 3: 0.2})
    assert curriculum.choose(range(4, 8)) == [4, 5, 6, 2]


def test_solved_problems_return_with_decreasing_probability() -> None:
    run_config = config(ONE_TASK, steps=4, batch=800, curriculum={"type": "adaptive", "again": 1})
    curriculum = made(run_config)
    first = curriculum.choose(range(800))
    saw(curriculum, 1, dict.fromkeys(first, 1.0))
    second = curriculum.choose(range(800, 1600))
    again = [p for p in second if p < 800]
    assert 0.45 < len(again) / 800 < 0.55
    saw(curriculum, 2, dict.fromkeys(second, 1.0))
    third = set(curriculum.choose(range(1600, 2400)))
    twice = set(again)
    assert 0.18 < len(twice & third) / len(twice) < 0.32


def test_one_group_inside_the_band_wipes_out_the_ones_outside() -> None:
    curriculum = adaptive()
    for step, reward in enumerate((1.0, 1.0, 0.5, 0.0), start=1):
        saw(curriculum, step, {0: reward})
    assert curriculum.seen[0].outside == 1


def test_a_split_gone_through_brings_back_those_longest_unseen() -> None:
    """Six problems: two are new in the second cycle, none in the third."""
    curriculum = adaptive(train_size=6)
    saw(curriculum, 1, dict.fromkeys(curriculum.choose(range(4)), 1.0))
    assert curriculum.choose(range(4, 8)) == [4, 0, 5, 1]
    saw(curriculum, 2, {4: 1.0, 0: 1.0, 5: 1.0, 1: 1.0})
    assert curriculum.choose(range(8, 12)) == [2, 3, 4, 0]


def test_a_split_smaller_than_a_cycle_is_filled_up_by_the_stream() -> None:
    curriculum = adaptive(train_size=3)
    assert curriculum.choose(range(4)) == [0, 1, 2, 3]
    saw(curriculum, 1, dict.fromkeys(range(4), 1.0))
    assert curriculum.choose(range(4, 8)) == [7, 0, 1, 2]
    assert sorted(curriculum.seen) == [0, 1, 2]


def test_adaptive_forgets_what_it_saw_longest_ago() -> None:
    curriculum = adaptive(memory=2)
    for step, position in enumerate((0, 1, 0, 2), start=1):
        saw(curriculum, step, {position: 0.5})
    assert list(curriculum.seen) == [0, 2]


# dump


def bandit(**options: Any) -> TaskBandit:
    """Two tasks, groups of four, windows of two groups."""
    environment = {**MIXTURE, "tasks": TASKS[:2]}
    options = {"type": "dump", "window": 8, **options}
    found = made(config(environment, steps=6, curriculum=options))
    assert isinstance(found, TaskBandit)
    return found


def test_dump_starts_even_and_follows_the_advantage() -> None:
    """Equal counts: the bonuses cancel, and P(dashed) = 1 / (1 + exp(-.5 / .1)) = .9933."""
    curriculum = bandit()
    assert curriculum.probabilities() == [0.5, 0.5]
    saw(curriculum, 1, {0: 0.5, 1: 1.0})  # positions 0, 1 are dashed, boxed
    assert curriculum.probabilities()[0] == pytest.approx(0.993307, abs=1e-6)


def test_dump_adds_a_bonus_for_what_was_seen_little() -> None:
    """n = 8, all dashed, |A| .2: .2 + sqrt(2 ln 9 / 9) = .898765 against sqrt(2 ln 9) = 2.096294;
    at temperature 1, P(dashed) = 1 / (1 + exp(1.197529)) = .231915."""
    curriculum = bandit(temperature=1.0)
    saw(curriculum, 1, {0: 0.5, 2: 0.5}, apart=0.2)
    assert curriculum.probabilities()[0] == pytest.approx(0.231915, abs=1e-6)


def test_dump_averages_the_latest_groups_only() -> None:
    """|A| of .5, .1, .3 over a window of two groups: .2, as exp(.2 / .1) says for equal counts."""
    curriculum = bandit()
    for step, apart in enumerate((0.5, 0.1, 0.3), start=1):
        saw(curriculum, step, {0: 0.5}, apart)
        saw(curriculum, step, {1: 0.5}, apart=1e-12)
    share = curriculum.probabilities()[0]
    assert share / (1 - share) == pytest.approx(math.exp(2), rel=1e-6)


def test_dump_takes_each_tasks_problems_in_order() -> None:
    """Position 2 i is the i-th dashed problem, 2 i + 1 the i-th boxed one."""
    curriculum = bandit()
    chosen = curriculum.choose(range(24))
    dashed, boxed = [p for p in chosen if p % 2 == 0], [p for p in chosen if p % 2]
    assert dashed == [2 * i for i in range(len(dashed))]
    assert boxed == [2 * i + 1 for i in range(len(boxed))]
    assert curriculum.next == [len(dashed), len(boxed)] and dashed and boxed


# easy_to_hard


def scheduled(**options: Any) -> list[list[int]]:
    """Task of each problem of five steps of four, by step."""
    run_config = config(MIXTURE, 5, cycle=2, curriculum={"type": "easy_to_hard", **options})
    tasks = [p % 3 for p in simulated(run_config, lambda c: c)]
    return [tasks[at : at + 4] for at in range(0, 20, 4)]


def test_a_linear_schedule_fades_from_task_to_task() -> None:
    """Places among three tasks at five steps: 0, .5, 1, 1.5, 2."""
    assert scheduled() == [[0] * 4, [0, 1, 0, 1], [1] * 4, [1, 2, 1, 2], [2] * 4]


def test_a_stepwise_schedule_has_one_task_at_a_time() -> None:
    """floor(3 s / 5) for s = 0 to 4."""
    assert scheduled(schedule="step") == [[0] * 4, [0] * 4, [1] * 4, [1] * 4, [2] * 4]


def test_a_share_of_each_step_goes_through_all_tasks() -> None:
    """One problem of four, the last: tasks 0, 1, 2, 0, 1 in turn."""
    found = scheduled(schedule="step", mix=0.25)
    assert found == [[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 2], [1, 1, 1, 0], [2, 2, 2, 1]]


def test_a_schedule_takes_each_tasks_problems_in_order() -> None:
    run_config = config(MIXTURE, 5, cycle=2, curriculum={"type": "easy_to_hard", "mix": 0.25})
    chosen = simulated(run_config, lambda c: c)
    for task in range(3):
        mine = [p for p in chosen if p % 3 == task]
        assert mine == [3 * i + task for i in range(len(mine))]
