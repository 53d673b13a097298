"""The cost of a run, by hand and against what a run really used."""

import json
import subprocess
import sys

import pytest
from safetensors import safe_open

from fst_core.config import RunConfig, load_config
from fst_core.cost import cost_rows, count_parameters, estimate
from fst_core.journal import read_events
from fst_core.policy.locate import TINY
from tests.runs import tiny_config
from tests.unit.commands import finished


def test_hand_computed_cost() -> None:
    cost = estimate(tiny_config())  # 4 steps of 4 x 4, T = 2, looks at 0, 2 and 4
    assert cost.slow_rollouts == 64
    assert cost.optimizer_steps == 4
    assert (cost.fast_phases, cost.fast_rollouts) == (2, 80)
    # Two contexts three times; none at both ends; the base weights under both at the last.
    assert cost.evaluation_rollouts == (3 * 2 + 2 + 2) * 4
    assert cost.tokens == (64 + 80 + 40) * 10
    # Each search: 40 calls, 4 on anchors, 12 in reserve: 24 spare, 4 a round, so 7 rounds.
    assert cost.reflections == 2 * 7 * 2
    assert cost.generate_calls == 4 + 3 + 2 * (1 + 3 * 7)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"fast": {"type": "none"}}, (64, 0, 24)),
        ({"slow": {"type": "none"}}, (0, 80, 40)),
        ({"fast": {"type": "none"}, "slow": {"type": "none"}}, (0, 0, 8)),
        ({"fast": {"type": "none"}, "evaluation": {"ends": False}}, (64, 0, 12)),
    ],
)
def test_arms_cost_only_what_they_have(
    tables: dict[str, dict[str, str]], expected: tuple[int, int, int]
) -> None:
    cost = estimate(tiny_config(**tables))
    assert (cost.slow_rollouts, cost.fast_rollouts, cost.evaluation_rollouts) == expected


@pytest.mark.parametrize(
    ("calls", "rollouts", "reflections"), [(3, 0, 0), (15, 4, 0), (16, 16, 2), (20, 20, 4)]
)
def test_a_budget_below_one_search_step_buys_anchors_at_most(
    calls: int, rollouts: int, reflections: int
) -> None:
    # 4 anchors, then a reserve of 2 x 2 proposals x 2 problems + 4 anchors = 12: 16 in all.
    config = tiny_config(fast={"metric_calls": calls})
    bounds = config.fast.bounds(2 * config.loop.problems_per_step, config)
    assert (bounds.rollouts, bounds.reflections) == (rollouts, reflections)


def test_own_reflections_are_paid_in_tokens() -> None:
    reflection = {"type": "policy", "max_new_tokens": 100}
    plain, own = estimate(tiny_config()), estimate(tiny_config(fast={"reflection": reflection}))
    assert own.tokens - plain.tokens == 100 * plain.reflections
    assert own.generate_calls - plain.generate_calls == 2 * 7


def test_a_run_stays_within_its_estimate() -> None:
    path, folder, _ = finished()
    config, _ = load_config(path, "fst")
    cost = estimate(config)
    ledger = read_events(folder / "journal.jsonl")[-1]["ledger"]
    assert ledger["slow_rollouts"] == cost.slow_rollouts
    assert 0 < ledger["fast_rollouts"] <= cost.fast_rollouts
    assert 0 < ledger["evaluation_rollouts"] <= cost.evaluation_rollouts
    tokens = sum(ledger[f"{loop}_tokens"] for loop in ("slow", "fast", "evaluation"))
    assert tokens <= cost.tokens
    assert ledger["generate_calls"] <= cost.generate_calls


def test_checkpoint_size_is_what_lies_on_disk() -> None:
    path, folder, _ = finished()
    config, _ = load_config(path, "fst")
    newest = max((folder / "checkpoints").glob("[0-9]*"))
    heavy = [newest / "slow" / name for name in ("model.safetensors", "optimizer.pt")]
    size = sum(file.stat().st_size for file in heavy)
    expected = estimate(config).checkpoint_bytes
    assert expected == pytest.approx(size * (config.checkpoint.keep + 1), rel=0.05)


def test_parameters_are_counted_from_the_header() -> None:
    with safe_open(TINY / "model.safetensors", "numpy") as file:
        counted = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118
    assert count_parameters(tiny_config()) == counted


def test_a_model_that_is_not_here_has_no_size() -> None:
    config = tiny_config(policy={"type": "hub", "model": "someone/model"})
    cost = estimate(config)
    assert (cost.parameters, cost.checkpoint_bytes) == (None, None)
    rows = dict(cost_rows(cost, config))
    assert "not on this machine" in rows["parameters"]


def test_no_torch_is_loaded() -> None:
    config = json.dumps(tiny_config().model_dump(mode="json"))
    assert RunConfig.model_validate_json(config)
    code = (
        "import sys; from fst_core.config import RunConfig; from fst_core.cost import estimate; "
        f"estimate(RunConfig.model_validate_json({config!r})); "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_fast_part_without_reflection_is_not_taken_for_an_idle_search() -> None:
    assert estimate(tiny_config(fast={"type": "espl"})).idle_fast_phases == 0
    assert estimate(tiny_config(fast={"metric_calls": 4})).idle_fast_phases == 2
