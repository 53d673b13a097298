"""DAPO's dynamic sampling by hand: an engine that only counts, a judge whose groups are known."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fst_core.config import RunConfig
from fst_core.cost import cost_rows, estimate
from fst_core.curriculum.problems import Problems
from fst_core.environments.tasks import Tasks
from fst_core.journal import read_events
from fst_core.policy.base import Sampling
from fst_core.records import (
    Completion,
    Context,
    Population,
    Problem,
    StopReason,
    Verdict,
    seed_of,
)
from fst_core.session import Session
from fst_core.slow.advantages import unequal
from fst_core.slow.objectives import Dapo
from tests.runs import tiny_config
from tests.unit.curricula import MIXTURE, ONE_TASK, REPLAY, sequence
from tests.unit.curricula import config as curriculum_config

SHORT, LONG = Context("Be brief."), Context("You are a helpful assistant.")
BATCH, GROUP = 4, 4


def config_of(resamples: int, cycle: int = 4, **slow: Any) -> RunConfig:
    """Two contexts, 4 problems a step of 4 rollouts each."""
    chosen = {"type": "dapo", "micro_batch": 8, "max_resamples": resamples, **slow}
    return tiny_config(
        fast={"type": "gepa", "metric_calls": 0},
        loop={"steps": 4, "cycle_steps": cycle, "problems_per_step": BATCH, "group_size": GROUP},
        slow=chosen,
    )


@pytest.mark.parametrize(
    ("baseline", "rewards", "expected"),
    [
        ("problem", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1], [1, 0, 1, 1]], [0, 0, 1, 1]),
        ("problem", [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.25]], [0, 1]),
        ("leave_one_out", [[0, 0, 1, 1], [1, 1, 1, 1]], [1, 0]),
        ("batch", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]], [0, 0, 1]),
        # Two contexts of two rollouts each: what differs between them only has no advantage.
        ("context", [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1]], [0, 1, 1, 0]),
    ],
)
def test_a_group_is_kept_where_its_rewards_differ(
    baseline: str, rewards: list[list[float]], expected: list[int]
) -> None:
    settings = Dapo.model_validate({"type": "dapo", "baseline": baseline})
    found = unequal(torch.tensor(rewards, dtype=torch.float32).flatten(), settings, GROUP, 2)
    assert found.tolist() == [bool(e) for e in expected]


class CountingEngine:
    """One token for every prompt, and a note of every call's seeds."""

    def __init__(self) -> None:
        self.rollouts = self.calls = self.tokens = 0
        self.seeds: list[list[int]] = []

    def sync(self, version: int) -> None:
        pass

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        self.calls, self.rollouts = self.calls + 1, self.rollouts + len(prompts)
        self.tokens += len(prompts)
        self.seeds.append(list(seeds))
        return [Completion((5,), (-1.0,), "x", StopReason.LENGTH, len(p)) for p in prompts]


class KnownJudge:
    """1 for every answer to a problem of `flat`, and 1 for every second answer to any other."""

    name = "known"

    def __init__(self, flat: set[str]):
        self.flat, self.asked = flat, Counter[str]()

    def judge(self, problem: Problem, completion: str) -> Verdict:
        self.asked[problem.id] += 1
        return Verdict(float(problem.id in self.flat or self.asked[problem.id] % 2))


class OneStep:
    """The first slow step of a session whose own problems number 0 and 2 have equal rewards.

    Args:
        flat: how many of the further problems, in the order they are drawn, have equal rewards too.
    """

    def __init__(self, config: RunConfig, folder: Path, flat: int):
        with Session(config, folder) as session:
            session.population = Population((SHORT, LONG))
            self.own = session.problems.between(0, 1)
            self.further = list(session.problems.further(0).values())
            equal = {self.own[0].id, self.own[2].id, *(p.id for p in self.further[:flat])}
            self.engine = session.policy.engine = CountingEngine()  # type: ignore[union-attr]
            self.trainer = session.slow.trainer  # type: ignore[union-attr]
            self.trainer.environment = KnownJudge(equal)
            score = self.trainer._generate_and_score_completions
            self.trainer._generate_and_score_completions = lambda rows: self._note(score(rows))
            take = session.slow.step  # type: ignore[union-attr]
            session.slow.step = lambda *given: self._keep(take(*given))  # type: ignore[union-attr]
            observe = session.problems.curriculum.observe
            session.problems.curriculum.observe = (  # type: ignore[method-assign]
                lambda outcomes: self._told(outcomes, observe)
            )
            session.step()
            self.ledger, self.positions = session.ledger, session.problems.positions
        self.event = next(e for e in read_events(folder / "journal.jsonl") if e["kind"] == "slow")

    def _note(self, batch: Any) -> Any:
        self.batch = batch
        return batch

    def _keep(self, report: Any) -> Any:
        self.report = report
        return report

    def _told(self, outcomes: Any, observe: Any) -> None:
        self.outcomes = outcomes
        observe(outcomes)

    def trained(self) -> list[str]:
        """The problem of each group of the batch."""
        ids = [r.problem_id for r in self.report.rollouts]
        assert all(len(set(ids[i : i + GROUP])) == 1 for i in range(0, len(ids), GROUP))
        return ids[::GROUP]


@pytest.mark.parametrize(
    ("resamples", "flat", "places", "calls"),
    [
        # (place of the batch -> number of the further problem), rollouts of each further call
        (1, 0, {0: 0, 2: 1}, [8]),
        (1, 1, {0: 0, 2: 1}, [8]),
        (2, 1, {0: 2, 2: 1}, [8, 4]),
        (9, 1, {0: 2, 2: 1}, [8, 4]),
        (3, 4, {0: 4, 2: 5}, [8, 8, 8]),
    ],
)
def test_other_problems_take_the_place_of_equal_groups(
    tmp_path: Path, resamples: int, flat: int, places: dict[int, int], calls: list[int]
) -> None:
    step = OneStep(config_of(resamples, zero_variance="keep"), tmp_path / "run", flat)
    expected = [step.further[places[i]] if i in places else p for i, p in enumerate(step.own)]
    assert step.trained() == [p.id for p in expected]
    assert [r.context_id for r in step.report.rollouts] == [*[SHORT.id] * 2, *[LONG.id] * 2] * BATCH

    assert [len(rollouts) for rollouts in step.report.replaced] == calls
    assert {r.problem_id for r in step.report.replaced[0]} == {step.own[0].id, step.own[2].id}
    drawn = BATCH * GROUP + sum(calls)
    assert step.ledger.slow_rollouts == step.engine.rollouts == step.ledger.slow_tokens == drawn
    assert step.ledger.generate_calls == step.engine.calls == 1 + len(calls)
    metrics = step.event["metrics"]
    assert metrics["slow/replaced_rollouts"] == sum(calls)
    assert metrics["slow/replaced_groups"] == sum(calls) / GROUP
    assert step.event["ledger"]["slow_rollouts"] == drawn

    still_equal = {place for place, number in places.items() if number < flat}
    assert metrics["slow/zero_variance_frac"] == len(still_equal) / BATCH
    # Rewards 1, 0, 1, 0: each half over a standard deviation of sqrt(1 / 3), Bessel's.
    unit = torch.tensor([1.0, -1.0, 1.0, -1.0]) * 0.5 / (1 / 3) ** 0.5
    for place, found in enumerate(step.batch["advantages"].view(BATCH, GROUP)):
        by_hand = torch.zeros(GROUP) if place in still_equal else unit
        torch.testing.assert_close(found, by_hand, rtol=1e-3, atol=1e-6)


def test_every_draw_has_seeds_of_its_own(tmp_path: Path) -> None:
    step = OneStep(config_of(2), tmp_path / "run", flat=1)
    first, second, third = step.engine.seeds
    assert first == [seed_of(0, "slow", 0, n) for n in range(16)]
    rows = [0, 1, 2, 3, 8, 9, 10, 11]
    assert second == [seed_of(0, "refill", 0, 1, n) for n in rows]
    assert third == [seed_of(0, "refill", 0, 2, n) for n in rows[:4]]
    assert len({*first, *second, *third}) == 28


@pytest.mark.parametrize("zero_variance", ["drop", "keep"])
def test_when_the_cycle_has_no_other_problem_equal_groups_stay(
    tmp_path: Path, zero_variance: str
) -> None:
    step = OneStep(
        config_of(9, cycle=2, zero_variance=zero_variance, max_grad_norm=1.0),
        tmp_path / "run",
        flat=4,
    )
    assert len(step.further) == BATCH
    assert [len(rollouts) for rollouts in step.report.replaced] == [8, 8]
    assert step.trained() == [
        step.further[2].id, step.own[1].id, step.further[3].id, step.own[3].id
    ]  # fmt: skip
    assert step.event["metrics"]["slow/zero_variance_frac"] == 0.5
    trained_tokens = int(step.batch["completion_mask"].sum())
    assert trained_tokens == (8 if zero_variance == "drop" else 16)


def test_the_curriculum_learns_of_every_group_that_was_drawn(tmp_path: Path) -> None:
    step = OneStep(config_of(2), tmp_path / "run", flat=1)
    drawn = [*step.own, *step.further[:3]]
    tasks = Tasks(config_of(2))
    assert [tasks.train(o.position).id for o in step.outcomes] == [p.id for p in drawn]
    assert [o.reward for o in step.outcomes] == [1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    "tables",
    [
        {"environment": ONE_TASK},
        {"environment": MIXTURE},
        {"environment": sequence(5)},
        {"environment": sequence(5), "retention": [REPLAY]},
        {"environment": ONE_TASK, "curriculum": {"type": "uniform", "pool": 6}},
        {"environment": ONE_TASK, "curriculum": {"type": "adaptive"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("resamples", [0, 1, 3])
def test_further_problems_are_others_of_the_cycle_and_stage(
    tables: dict[str, Any], resamples: int
) -> None:
    slow = {"type": "dapo", "micro_batch": 8, "max_resamples": resamples}
    run = curriculum_config(steps=15, cycle=4, slow=slow, **tables)
    tasks, found = Tasks(run), 0
    problems = Problems(run, tasks)
    for step in range(15):
        own = problems.between(step, step + 1)
        further = problems.further(step)
        again = Problems(run, tasks)
        again.restore(problems.state())
        assert again.further(step) == further
        assert all(tasks.train(position) == p for position, p in further.items())
        ids = [p.id for p in further.values()]
        assert len({*ids}) == len(ids) <= resamples * 4
        assert not {*ids} & {p.id for p in own}
        cycle = range(step // 4 * 4, min(step // 4 * 4 + 4, 15))
        stage = [s for s in cycle if run.task_at(s + 1) == run.task_at(step + 1)]
        beside = {p.id for s in stage for p in problems.between(s, s + 1)} - {p.id for p in own}
        assert {*ids} <= beside
        assert len(ids) == min(resamples * 4, len(beside))
        found += len(ids)
        problems.observe(step + 1, [])
    assert bool(found) == bool(resamples)


def test_further_problems_of_two_steps_are_drawn_apart() -> None:
    problems = Problems(run := config_of(2), Tasks(run))
    orders = [list(problems.further(step)) for step in range(4)]
    last = [position for position in orders[3] if position not in orders[2]]
    assert orders[0] != sorted(orders[0]) and last


def test_none_is_drawn_unless_asked_for() -> None:
    plain = config_of(0).model_dump(mode="json")
    assert "max_resamples" not in plain["slow"]
    assert "max_resamples" in config_of(1).model_dump(mode="json")["slow"]


def test_a_cycle_of_one_step_has_no_other_problem() -> None:
    with pytest.raises(ValueError, match=r"max_resamples = 2 .* raise loop\.cycle_steps"):
        config_of(2, cycle=1)
    assert config_of(0, cycle=1).slow.refills == 0


def test_the_estimate_counts_every_draw() -> None:
    plain, drawn = estimate(config_of(0)), estimate(config_of(3))
    assert (plain.slow_rollouts, drawn.slow_rollouts) == (64, 4 * 64)
    assert drawn.generate_calls - plain.generate_calls == 3 * 4
    rows = dict(cost_rows(drawn, config_of(3)))
    assert rows["slow rollouts"] == "at most 256"
    assert dict(cost_rows(plain, config_of(0)))["slow rollouts"] == "64"
