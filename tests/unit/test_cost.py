"""The cost of a run, by hand and against what a run really used."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from fst_core.config import RunConfig, load_config
from fst_core.cost import cost_rows, estimate
from fst_core.gpu_cost import Amounts, gpu_hours, gpu_memory
from fst_core.journal import read_events
from fst_core.model_size import ModelSize, size_of
from fst_core.policy.locate import TINY
from fst_core.sizing import QWEN3_8B, Card, Load, Shape, memory, shape_in
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
    # Steps, looks, the base weights at the last of them, and the searches.
    assert cost.generate_calls == 4 + 3 + 1 + 2 * (1 + 3 * 7)


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
    assert size_of(tiny_config().policy).parameters == counted


def test_a_model_that_is_not_here_has_no_size() -> None:
    config = tiny_config(policy={"type": "hub", "model": "someone/model"})
    cost = estimate(config)
    assert (cost.model.parameters, cost.checkpoint_bytes) == (None, None)
    rows = dict(cost_rows(cost, config))
    assert "not on this machine" in rows["parameters"]
    assert not any(what.startswith(("GPU-hours", "memory")) for what in rows)


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


SMALL = Shape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocabulary=32)
QWEN_JSON = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
NO_REFLECTION = Amounts(slow=0, fast=0, fast_calls=0, evaluation=0, reflections=0)


def hub_config(**policy: Any) -> RunConfig:
    return tiny_config(policy={"type": "hub", "model": "someone/model", **policy})


def test_parameters_of_a_shape_by_hand() -> None:
    # q, k, v, o: 8 x 4 x 2 x 3; gate, up, down: 3 x 8 x 16; norms: 2 x 8 + 2 x 4.
    assert SMALL.layer == 192 + 384 + 24
    assert SMALL.parameters == 2 * 600 + 2 * 32 * 8 + 8
    assert SMALL.cache_bytes == 2 * 2 * 2 * 1 * 4
    assert QWEN3_8B.parameters == 8_190_735_360


def test_the_size_comes_from_the_best_that_is_here(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN_JSON))
    size = size_of(hub_config(model=str(folder), parameters=5).policy)
    assert size.shape == QWEN3_8B and size.parameters == 8_190_735_360
    assert "config.json" in size.told
    given = size_of(hub_config(parameters=5).policy)
    assert (given.parameters, given.shape) == (5, None) and "policy.parameters" in given.told
    known = size_of(hub_config(model="Qwen/Qwen3-8B").policy)
    assert known.parameters == 8_190_735_360 and "published shape" in known.told


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({**QWEN_JSON, "num_experts": 8})])
def test_a_config_that_tells_no_dense_shape(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert shape_in(tmp_path / "config.json") is None
    assert shape_in(tmp_path / "absent.json") is None


def test_memory_by_part_by_hand() -> None:
    gib = 2**30
    load = Load(rollouts=8, sequence_tokens=10, concurrent=4, pass_tokens=20)
    one = memory(gib, SMALL, load)
    assert one["master weights (fp32)"] == one["gradients (fp32)"] == 4
    assert one["Adam (2 x fp32)"] == 8 and one["engine's copy (bf16)"] == 2
    assert one["KV cache"] == 4 * 10 * SMALL.cache_bytes / gib
    assert one["logits and their gradient"] == 8 * 20 * 32 / gib
    assert one["activations, checkpointed"] == 40 * (16 + SMALL.layer_activations) / gib
    shared = memory(gib, SMALL, load, cards=4, fsdp=True)
    assert shared["Adam (2 x fp32)"] == 2 and shared["engine's copy (bf16)"] == 2
    assert shared["KV cache"] == 2 * 10 * SMALL.cache_bytes / gib


def test_memory_of_what_a_run_has_not_is_zero() -> None:
    frozen = memory(2**30, None, Load(trained=False, base=False, generates=False))
    assert frozen.pop("master weights (fp32)") == 4 and not any(frozen.values())
    unknown = memory(2**30, None, Load())
    assert unknown["KV cache"] is None and unknown["gradients (fp32)"] == 4


def test_memory_follows_the_config() -> None:
    size = ModelSize(2**30, "", SMALL)
    small = hub_config(dtype="bfloat16", engine="vllm", batch_size=4)
    parts = gpu_memory(small, size)["1 card"]
    assert parts["master weights (bf16)"] == 2 and parts["reference for KL (bf16)"] == 0
    assert parts["engine's copy (bf16)"] == 2 and "activations" in parts
    server = {"mode": "server", "url": "http://localhost:1", "weights_folder": "w"}
    remote = gpu_memory(hub_config(engine="vllm", vllm=server), size)["1 card"]
    assert remote["engine's copy (bf16)"] == 0 == remote["KV cache"]
    assert gpu_memory(tiny_config(), size) == {}


def test_gpu_time_by_hand() -> None:
    card = Card("test", 1e12, 1e9, train_share=0.5, forward_share=0.25, decode_share=0.5)
    assert card.forward_seconds(1000, 500) == 2 * 1000 * 500 / 0.25e12
    assert card.train_seconds(1000, 500, False) == 6 * 1000 * 500 / 0.5e12
    assert card.train_seconds(1000, 500, True) == 8 * 1000 * 500 / 0.5e12
    # 8 rollouts of 10 tokens, 4 at once: 20 steps, each reads 2000 + 4 x (6 + 5) x 16 bytes.
    seconds = card.generate_seconds(1000, 16, 8, (6, 10), 4)
    assert seconds == pytest.approx(card.forward_seconds(1000, 48) + 20 * (2000 + 704) / 0.5e9)
    # Many at once are bound by operations, not by the memory.
    slow = Card("test", 1e3, 1e9, forward_share=1.0)
    assert slow.generate_seconds(1000, 0, 4, (0, 10), 4) == 10 * 2 * 1000 * 4 / 1e3


def test_hours_grow_with_their_own_amounts_alone() -> None:
    config, size = hub_config(), ModelSize(8 * 10**9, "", QWEN3_8B)
    none = gpu_hours(config, size, NO_REFLECTION)
    assert all(hours == (0, 0) for hours in none.values())
    slow = gpu_hours(config, size, replace(NO_REFLECTION, slow=100))
    assert {part for part, hours in slow.items() if hours[1]} == {
        "slow, generation",
        "slow, training",
    }
    assert all(low < high for low, high in slow.values() if high)
    few = gpu_hours(config, size, replace(NO_REFLECTION, fast=100, fast_calls=1))
    many = gpu_hours(config, size, replace(NO_REFLECTION, fast=100, fast_calls=50))
    assert many["fast, generation"][1] > 3 * few["fast, generation"][1]
    assert gpu_hours(hub_config(), ModelSize(None, "", None), NO_REFLECTION) == {}


def test_what_the_cost_tells_of_a_model_by_its_parameters_alone() -> None:
    config = hub_config(parameters=8_000_000_000)
    rows = dict(cost_rows(estimate(config), config))
    assert "8,000,000,000" in rows["parameters"] and "GPU-hours, all" in rows
    assert rows["memory, KV cache"].startswith("unknown") and "config.json" in rows["hours assume"]
    assert rows["memory, together"].startswith("unknown")
