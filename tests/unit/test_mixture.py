"""Mixtures of tasks: who stands where, what is read, measured and reported of each task."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fst_core.config import MixtureConfig, RunConfig
from fst_core.cost import estimate
from fst_core.environments.layout import Layout, layout_of, train_rows, turns_of
from fst_core.environments.pools import build_pools
from fst_core.environments.tasks import Tasks, problems_read
from fst_core.preflight import preflight
from fst_core.report import rewards
from tests.runs import run, tiny_config
from tests.unit.section_studies import read_study

TASKS: list[dict[str, Any]] = [
    {"type": "directives", "task": "echo", "name": "dashed", "required": ["dashes"]},
    {"type": "directives", "task": "sum", "name": "boxed", "required": ["boxed"]},
    {"type": "directives", "task": "first", "name": "dotted", "required": ["dots"]},
]


def mixture_config(weights: tuple[int, ...] = (), tasks: int = 3, **tables: Any) -> RunConfig:
    environment = {"type": "mixture", "tasks": TASKS[:tasks], "weights": weights}
    return tiny_config(environment=environment, **tables)


@pytest.mark.parametrize(
    ("weights", "turns"),
    [
        ((1, 1, 1), (0, 1, 2)),
        ((2, 1), (0, 1, 0)),
        ((3, 1), (0, 0, 1, 0)),
        ((1, 2, 1), (1, 0, 2, 1)),
        ((2, 2), (0, 1, 0, 1)),
    ],
)
def test_turns_follow_the_weights_and_are_spread(
    weights: tuple[int, ...], turns: tuple[int, ...]
) -> None:
    assert turns_of(weights) == turns


def test_each_task_of_a_mixture_comes_in_its_own_order() -> None:
    layout = Layout(("a", "b"), 6, turns=(0, 1, 0))
    assert [layout.at(i) for i in range(6)] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]
    assert [layout.position(0, i) for i in range(5)] == [0, 2, 3, 5, 6]
    assert [layout.task_of(i) for i in range(4)] == ["a", "b", "a", "a"]


def test_a_sequence_is_cut_at_its_stages() -> None:
    layout = Layout(("a", "b"), 16, stage_rows=8)
    assert [layout.at(i) for i in (0, 7, 8, 15)] == [(0, 0), (0, 7), (1, 0), (1, 7)]
    assert list(layout.stages(range(4, 12))) == [
        (range(8), range(4, 8)),
        (range(8, 16), range(8, 12)),
    ]
    assert list(Layout(("a",), 16).stages(range(4, 12))) == [(range(16), range(4, 12))]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 200),
)
def test_position_is_the_inverse_of_at(
    weights: list[int], stage_rows: int | None, position: int
) -> None:
    layout = Layout(tuple("abcd"[: len(weights)]), 0, stage_rows, turns_of(weights))
    assert layout.position(*layout.at(position)) == position


def test_the_stream_of_a_mixture_is_each_tasks_own_stream_in_turn() -> None:
    tasks = Tasks(mixture_config())
    alone = [Tasks(tiny_config(environment=task)) for task in TASKS]
    for position in range(12):
        assert tasks.train(position) == alone[position % 3].train(position // 3)


def test_tasks_are_read_by_their_share_unless_a_curriculum_chooses_among_them() -> None:
    """16 rows: with weights 2, 1 five rounds and one problem more of the first task."""
    assert train_rows(mixture_config()) == [6, 5, 5]
    assert train_rows(mixture_config((2, 1), tasks=2)) == [11, 5]
    assert train_rows(mixture_config(curriculum={"type": "adaptive"})) == [6, 5, 5]
    assert train_rows(mixture_config(curriculum={"type": "dump"})) == [16, 16, 16]
    assert train_rows(tiny_config()) == [16]
    sequence = {"type": "sequence", "task_steps": 2, "tasks": TASKS[:2]}
    assert train_rows(tiny_config(environment=sequence)) == [8, 8]


def test_pools_of_a_mixture_hold_what_its_run_reads(tmp_path: Path) -> None:
    config = mixture_config((2, 1, 1))
    for environment, read in problems_read(config):
        assert read["validation"] == config.evaluation.problems
        build_pools(environment, tmp_path / environment.name, read)
    live, pooled = Tasks(config), Tasks(config.model_copy(update={"data": str(tmp_path)}))
    assert [pooled.train(i) for i in range(16)] == [live.train(i) for i in range(16)]
    assert all(pooled.is_first(i) for i in range(16))
    assert preflight(config.model_copy(update={"data": str(tmp_path)})) == []


def test_a_pool_that_is_too_small_is_told(tmp_path: Path) -> None:
    """Twelve rounds of three tasks over pools of two: six times through each of them."""
    config = mixture_config(loop={"steps": 9})
    for environment, read in problems_read(config):
        build_pools(environment, tmp_path / environment.name, {**read, "train": 2})
    pooled = config.model_copy(update={"data": str(tmp_path)})
    assert preflight(pooled) == [
        f"the run reads 12 train problems of {name}, which has 2: 6.0 times through"
        for name in ("dashed", "boxed", "dotted")
    ]
    assert [Tasks(pooled).is_first(i) for i in range(8)] == [True] * 6 + [False] * 2


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"tasks": [TASKS[0], TASKS[0]]}, "two tasks are named 'dashed'"),
        ({"tasks": TASKS, "weights": [1, 2]}, "weights has 2 entries for 3 tasks"),
        ({"tasks": TASKS[:2], "weights": [1, 0]}, "greater than or equal to 1"),
        ({"tasks": TASKS[:1]}, "at least 2 items"),
        ({"tasks": [TASKS[0], {**TASKS[1], "name": "Dashed"}]}, "two tasks are named 'Dashed'"),
        ({"tasks": TASKS[:2], "name": "a/b"}, "name"),
    ],
)
def test_a_mixture_that_does_not_add_up_is_refused(environment: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        MixtureConfig.model_validate(environment)


def test_evaluation_is_paid_for_each_task() -> None:
    """Evaluations at 0, 2, 4 on 4 problems x 1 sample, seed and best context: 24; ends: 2 x 4
    without a context, 2 x 4 with base weights, 40 in all; three tasks triple that."""
    assert estimate(tiny_config()).evaluation_rollouts == 40
    assert estimate(mixture_config()).evaluation_rollouts == 120


def test_a_run_measures_and_reports_every_task(tmp_path: Path) -> None:
    config = mixture_config(fast={"type": "none"}, arm="rl", curriculum={"type": "dump"})
    events = run(config, tmp_path / config.name / config.id)
    measured = [event for event in events if event["kind"] == "evaluation"]
    assert [list(event["tasks"]) for event in measured] == [["dashed", "boxed", "dotted"]] * len(
        measured
    )
    section = rewards.section(read_study(tmp_path / config.name))
    assert section is not None
    final = [item for item in section.summary["final"] if item["context"] == "seed"]
    told = [(item["task"], item["problems"]) for item in final]
    assert told == [("", 12), ("dashed", 4), ("boxed", 4), ("dotted", 4)]


def test_layout_of_reads_the_config() -> None:
    assert layout_of(mixture_config((2, 1), tasks=2)) == Layout(
        ("dashed", "boxed"), 16, turns=(0, 1, 0)
    )
