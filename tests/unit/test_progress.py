"""Lines about a run: right singulars, and every task's reward where there are several."""

from typing import Any

import pytest

from fst_core.counting import counted
from fst_core.interleave import EvaluatePhase, FastPhase, SlowPhase
from fst_core.progress import evaluation_line, fast_line, phase_name, plan_line


@pytest.mark.parametrize(
    ("count", "nouns", "told"),
    [(0, "", "0 phases"), (1, "", "1 phase"), (2000, "", "2,000 phases"), (2, "geese", "2 geese")],
)
def test_counted(count: int, nouns: str, told: str) -> None:
    assert counted(count, "phase", nouns) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "1 rollout in 1 generate call; 1 of 1 proposed context accepted (1.0 s)"),
        (2, "2 rollouts in 2 generate calls; 2 of 2 proposed contexts accepted (1.0 s)"),
    ],
)
def test_a_fast_phase_in_singular_and_plural(count: int, told: str) -> None:
    names = ("metric_calls", "generate_calls", "accepted", "proposals")
    evolution: dict[str, Any] = {**dict.fromkeys(names, count), "population": {"scores": []}}
    assert told in fast_line({"cycle": 0, "evolution": evolution, "seconds": 1.0})


def test_what_a_context_was_scored_on_is_said_in_words() -> None:
    names = ("metric_calls", "generate_calls", "accepted", "proposals")
    population = {"scores": [[0.0, 1.0], [0.0, 0.0]]}
    evolution: dict[str, Any] = {**dict.fromkeys(names, 1), "population": population}
    line = fast_line({"cycle": 0, "evolution": evolution, "seconds": 1.0})
    assert "the best context has reward 0.500 on the cycle's anchors (train problems" in line


@pytest.mark.parametrize(
    ("context", "told"),
    [
        ("none", "evaluation at step 4 without a context: reward 0.500"),
        ("seed", "evaluation at step 4 under the seed context: reward 0.500"),
        ("best", "evaluation at step 4 under the best context: reward 0.500"),
    ],
)
def test_the_context_of_an_evaluation_is_told_in_words(context: str, told: str) -> None:
    assert evaluation_line(looked(context=context)).startswith(told)


def test_a_plan_in_singular_and_plural() -> None:
    one = [FastPhase(0, 0, 1), SlowPhase(0, 0, 1), EvaluatePhase(0, 1)]
    assert plan_line(one) == ("plan: 1 cycle in 3 phases: 1 fast phase, 1 slow step, 1 evaluation")
    more = [*one, FastPhase(1, 1, 3), SlowPhase(1, 1, 3), EvaluatePhase(1, 3)]
    assert plan_line(more) == (
        "plan: 2 cycles in 6 phases: 2 fast phases, 3 slow steps, 2 evaluations"
    )


@pytest.mark.parametrize(
    ("stop", "told"), [(3, "cycle 1: slow step 3"), (5, "cycle 1: slow steps 3 to 5")]
)
def test_slow_steps_by_number(stop: int, told: str) -> None:
    assert phase_name(SlowPhase(1, 2, stop)) == told


def looked(**more: Any) -> dict[str, Any]:
    metrics = {"evaluation/reward": 0.5, "evaluation/kl": 0.1}
    return {"step": 4, "context": "best", "metrics": metrics, **more}


def test_an_evaluation_of_several_tasks_tells_each() -> None:
    rewards = {"sums": 0.75, "letters": 0.25}
    tasks = {name: {"evaluation/reward": reward} for name, reward in rewards.items()}
    line = evaluation_line(looked(tasks=tasks))
    assert "reward 0.500 (sums 0.750, letters 0.250), k1 KL 0.1000" in line


def test_an_evaluation_tells_the_exact_kl_where_it_has_one_and_which() -> None:
    metrics = {"evaluation/reward": 0.5, "evaluation/kl": -0.1}
    exact = looked(metrics={**metrics, "evaluation/kl_exact": 0.02})
    assert evaluation_line(exact).endswith("reward 0.500, exact KL 0.0200")
    assert evaluation_line(looked(metrics=metrics)).endswith("reward 0.500, k1 KL -0.1000")
    none = looked(metrics={"evaluation/reward": 0.5})
    assert evaluation_line(none).endswith("reward 0.500")


def test_an_evaluation_of_one_task_tells_one_reward() -> None:
    assert evaluation_line(looked()).endswith("reward 0.500, k1 KL 0.1000")
