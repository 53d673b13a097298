"""Replay by hand; what every curriculum keeps to, in simulated and in whole runs."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fst_core.config import RunConfig
from fst_core.curriculum.base import Curriculum
from fst_core.curriculum.replay import Replayed
from fst_core.curriculum.reweight import apportioned
from fst_core.environments.tasks import Tasks
from fst_core.records import Problem, Verdict, seed_of
from tests.runs import run
from tests.unit.curricula import (
    MIXTURE,
    ONE_TASK,
    REPLAY,
    REWEIGHT,
    config,
    cycles,
    made,
    saw,
    sequence,
    simulated,
)

CURRICULA: dict[str, dict[str, Any]] = {
    "stream": {"type": "stream"},
    "uniform": {"type": "uniform"},
    "small pool": {"type": "uniform", "pool": 3},
    "adaptive": {"type": "adaptive"},
    "informative": {"type": "adaptive", "prefer": "informative", "again": 1.0, "memory": 9},
}
CHOOSERS: dict[str, dict[str, Any]] = {
    "dump": {"type": "dump", "window": 8},
    "linear": {"type": "easy_to_hard", "mix": 0.3},
    "step": {"type": "easy_to_hard", "schedule": "step"},
}


# replay


def by_hash(positions: Sequence[int], capacity: int) -> list[int]:
    return sorted(positions, key=lambda p: seed_of(0, "reservoir", p))[:capacity]


def test_replay_gives_every_second_slot_to_the_stage_before() -> None:
    run_config = config(sequence(2, tasks=2), steps=4, cycle=2, retention=[REPLAY])
    curriculum = made(run_config)
    assert curriculum.choose(range(8)) == list(range(8))
    second = curriculum.choose(range(8, 16))
    assert second[::2] == [8, 10, 12, 14]
    kept = set(by_hash(range(8), 3))
    assert {*second[1:4:2]} < kept and {*second[5::2]} < kept
    assert len({*second[1:4:2]}) == len({*second[5::2]}) == 2


def test_a_reservoir_samples_all_stages_before_alike() -> None:
    """In the third stage: of what the first (0 to 7) and the second (8, 10, 12, 14) showed."""
    run_config = config(sequence(2), steps=6, cycle=3, retention=[REPLAY])
    curriculum = made(run_config)
    for slots in cycles(run_config):  # the second cycle begins inside the second stage
        curriculum.choose(slots)
    assert isinstance(curriculum, Replayed)
    assert curriculum.reservoir == by_hash([*range(8), 8, 10, 12, 14], 3)
    assert curriculum.shown == by_hash([16, 18, 20, 22], 3)


def test_a_small_reservoir_fills_fewer_slots() -> None:
    replay = {**REPLAY, "capacity": 1}
    run_config = config(sequence(1, tasks=2), steps=2, retention=[replay])
    curriculum = made(run_config)
    curriculum.choose(range(4))
    assert curriculum.choose(range(4, 8)) == [4, 5, 6, by_hash(range(4), 1)[0]]


# reweight


def reweighted() -> Any:
    """In the third stage of three, 8 problems a step, of which at most 4 are replayed."""
    run_config = config(sequence(2), steps=6, batch=8, retention=[{**REWEIGHT, "capacity": 32}])
    curriculum = made(run_config)
    for slots in list(cycles(run_config))[:5]:
        curriculum.choose(slots)
    return curriculum


def drawn(curriculum: Any) -> list[str]:
    """Tasks of the last step's problems."""
    return [curriculum.tools.layout.task_of(p) for p in curriculum.choose(range(40, 48))]


def test_need_is_what_is_missing_and_what_wavers() -> None:
    """Needs 0, .5 + .5 and 1 (never seen): powers exp(-2), 1, 1 at temperature .5."""
    curriculum = reweighted()
    saw(curriculum, 1, {0: 1.0})
    saw(curriculum, 2, {0: 1.0, 16: 0.0})
    saw(curriculum, 3, {16: 1.0})
    low = math.exp(-2)
    wanted = [low / (low + 2), 1 / (low + 2), 1 / (low + 2)]
    assert curriculum.weights(["dashed", "boxed", "dotted"]) == pytest.approx(wanted)
    tasks = drawn(curriculum)  # round(8 x .532) = 4: one each, then by weight
    assert [tasks.count(name) for name in ("dashed", "boxed", "dotted")] == [1, 3, 4]


def test_tasks_that_are_learned_keep_one_problem_each_so_that_a_loss_is_seen() -> None:
    curriculum = reweighted()
    for step in (1, 2):
        saw(curriculum, step, {0: 1.0, 16: 1.0, 32: 0.0})
    tasks = drawn(curriculum)
    assert [tasks.count(name) for name in ("dashed", "boxed", "dotted")] == [1, 1, 6]


def test_only_the_latest_steps_count() -> None:
    curriculum = reweighted()
    for step, reward in enumerate([0.0, 0.0, 1.0, 1.0], 1):
        saw(curriculum, step, {0: reward})
    assert curriculum.weights(["dashed", "dotted"])[1] == pytest.approx(1 / (1 + math.exp(-2)))


def test_a_step_has_one_mean_however_many_problems_it_showed_of_a_task() -> None:
    curriculum = reweighted()
    saw(curriculum, 1, {0: 0.0, 1: 1.0})
    assert curriculum.rewards == {"dashed": [0.5]}


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (0, [0.5, 0.5], [0, 0]),
        (1, [0.2, 0.8], [0, 1]),
        (2, [0.01, 0.99], [1, 1]),
        (5, [0.2, 0.8], [1, 4]),
        (3, [0.5, 0.5], [2, 1]),
    ],
)
def test_shares_by_adams_method(total: int, weights: list[float], shares: list[int]) -> None:
    assert apportioned(total, weights) == shares


# What every one keeps to


def every_kind() -> Iterator[Any]:
    """(environment, curriculum, retention) of every combination that is not refused."""
    for name, chosen in CURRICULA.items():
        yield pytest.param(ONE_TASK, chosen, [], id=f"{name} alone")
        yield pytest.param(sequence(4), chosen, [], id=f"{name} staged")
        yield pytest.param(sequence(4), chosen, [REPLAY], id=f"{name} replayed")
        yield pytest.param(sequence(4), chosen, [REWEIGHT], id=f"{name} reweighted")
    for name, chosen in {**CURRICULA, **CHOOSERS}.items():
        yield pytest.param(MIXTURE, chosen, [], id=f"{name} mixed")


KINDS = pytest.mark.parametrize(("environment", "curriculum", "retention"), [*every_kind()])


def through_json(
    run_config: RunConfig, train_size: int | None
) -> Callable[[Curriculum], Curriculum]:
    """A curriculum made anew from the state of the old one, as a checkpoint keeps it."""

    def again(old: Curriculum) -> Curriculum:
        state = json.loads(json.dumps(old.state()))
        new = made(run_config, train_size)
        new.restore(state)
        assert json.loads(json.dumps(new.state())) == state
        return new

    return again


@KINDS
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 9),
    cycle=st.integers(1, 7),
    batch=st.integers(2, 5),
    size=st.sampled_from([None, 5]),
)
def test_a_restored_curriculum_chooses_as_if_undisturbed(
    environment: Any,
    curriculum: Any,
    retention: Any,
    seed: int,
    cycle: int,
    batch: int,
    size: int | None,
) -> None:
    tables = {"curriculum": curriculum, "retention": retention, "seed": seed}
    run_config = config(environment, 12, cycle, batch, **tables)
    straight = simulated(run_config, lambda c: c, size)
    assert straight == simulated(run_config, through_json(run_config, size), size)


@KINDS
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 9),
    cycle=st.integers(1, 7),
    batch=st.integers(2, 5),
    size=st.sampled_from([None, 5]),
)
def test_every_choice_is_of_its_own_stage_or_replayed_from_an_earlier_one(
    environment: Any,
    curriculum: Any,
    retention: Any,
    seed: int,
    cycle: int,
    batch: int,
    size: int | None,
) -> None:
    tables = {"curriculum": curriculum, "retention": retention, "seed": seed}
    run_config = config(environment, 12, cycle, batch, **tables)
    chosen, rows = simulated(run_config, lambda c: c, size), 12 * batch
    stage_rows = rows // 3 if environment["type"] == "sequence" else None
    chooses_tasks = curriculum["type"] in ("dump", "easy_to_hard")
    for step in range(12):
        stages = [
            p // stage_rows if stage_rows else 0 for p in chosen[step * batch : (step + 1) * batch]
        ]
        now = step * batch // stage_rows if stage_rows else 0
        earlier = [stage for stage in stages if stage != now]
        assert all(stage < now for stage in earlier)
        wanted = round(0.5 * batch) if retention and now else 0
        if retention == [REWEIGHT]:  # a small reservoir may hold nothing of one of two tasks
            assert min(1, wanted) <= len(earlier) <= wanted
        else:
            assert len(earlier) == wanted
    assert chooses_tasks or max(chosen) < rows


@KINDS
def test_no_choice_is_ever_held_out(environment: Any, curriculum: Any, retention: Any) -> None:
    run_config = config(environment, 12, 2, curriculum=curriculum, retention=retention)
    tasks = Tasks(run_config)
    shown = {tasks.train(p).text for p in simulated(run_config, lambda c: c)}
    for task in tasks.trained:
        held = tasks.held_out(task.name, "validation", 32) + tasks.held_out(task.name, "test", 32)
        assert shown.isdisjoint(problem.text for problem in held)


@pytest.mark.parametrize(
    ("environment", "tables", "said"),
    [
        (ONE_TASK, {"curriculum": {"type": "dump"}}, "'dump' chooses among the tasks of a mixture"),
        (sequence(4), {"curriculum": {"type": "easy_to_hard"}}, "environment.type is 'sequence'"),
        (
            {**MIXTURE, "weights": [1, 1, 2]},
            {"curriculum": {"type": "dump"}},
            "environment.weights would do nothing",
        ),
        (ONE_TASK, {"retention": [REPLAY]}, "'directives' has no stages"),
        (MIXTURE, {"retention": [REPLAY]}, "'mixture' has no stages"),
        (sequence(4), {"retention": [{**REPLAY, "fraction": 0.1}]}, "= 4 is 0 whole problems"),
        (sequence(4), {"retention": [{**REPLAY, "fraction": 0.9}]}, "= 4 is 4 whole problems"),
        (
            ONE_TASK,
            {"curriculum": {"type": "adaptive", "low": 0.5, "high": 0.5}},
            "curriculum.low = 0.5 is not below curriculum.high = 0.5",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    environment: dict[str, Any], tables: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        config(environment, 12, **tables)


# Whole runs


class Killed(Exception):
    """Stands for the end of a process."""


def run_killed(run_config: RunConfig, folder: Path, after: int) -> None:
    """Run until `after` slow steps are done, and let go of everything."""
    from fst_core.interleave import interleave
    from fst_core.session import Session

    with pytest.raises(Killed), Session(run_config, folder) as session:
        step = session.step

        def once_more() -> None:
            if session.step_done == after:
                raise Killed
            step()

        session.step = once_more  # type: ignore[method-assign]
        interleave(session)


@pytest.mark.parametrize(
    "tables",
    [
        {
            "environment": sequence(2, tasks=2),
            "curriculum": {"type": "adaptive"},
            "retention": [REPLAY],
        },
        {"environment": MIXTURE, "curriculum": {"type": "dump"}, "fast": {"type": "none"}},
    ],
)
def test_a_killed_run_goes_on_with_the_same_problems(
    tmp_path: Path, tables: dict[str, Any]
) -> None:
    from fst_core.journal import comparable

    looks = {"every": 0, "problems": 2, "samples": 1, "ends": False, "kl": False}
    run_config = config(steps=4, cycle=2, evaluation=looks, **tables)
    run_killed(run_config, tmp_path / "killed", after=3)
    resumed = comparable(run(run_config, tmp_path / "killed"))
    assert resumed == comparable(run(run_config, tmp_path / "straight"))


def test_a_replayed_problem_is_judged_by_its_own_task(tmp_path: Path) -> None:
    """Two of four problems of every step of the second stage belong to the first task."""
    from fst_core.interleave import interleave
    from fst_core.session import Session

    run_config = config(
        sequence(2, tasks=2), steps=4, cycle=2, fast={"type": "none"}, retention=[REPLAY]
    )
    judged: list[str] = []
    with Session(run_config, tmp_path) as session:
        judge = session.tasks.judge

        def watched(problem: Problem, completion: str) -> Verdict:
            judged.append(problem.environment)
            return judge(problem, completion)

        step = session.step

        def counted() -> None:
            judged.clear()
            step()
            dashed = 16 if session.step_done <= 2 else 8
            assert (judged.count("dashed"), judged.count("boxed")) == (dashed, 16 - dashed)

        session.tasks.judge = watched  # type: ignore[method-assign]
        session.step = counted  # type: ignore[method-assign]
        interleave(session)
        assert session.step_done == 4
