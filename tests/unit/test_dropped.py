"""What a changed type resets is told."""

from pathlib import Path

import pytest

from fst_core.config import load_config
from fst_core.dropped import dropped_settings

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "configs/tiny/demo.toml"


def notes(*overrides: str, arm: str | None = None, config: Path = DEMO) -> list[str]:
    return list(dropped_settings(load_config(config)[0], load_config(config, arm, overrides)[0]))


def test_settings_of_both_types_that_fall_back_to_defaults_are_named() -> None:
    (note,) = notes('slow={"type":"dr_grpo"}')
    assert "learning_rate = 1e-06 (the file has 0.0005)" in note
    assert "warmup_steps = 10 (the file has 5)" in note
    assert "beta" not in note  # 0 in the file, and by default


def test_what_is_written_beside_the_type_is_not() -> None:
    (note,) = notes('slow={"type":"dr_grpo","learning_rate":5e-4,"warmup_steps":5}')
    assert "learning_rate" not in note and "micro_batch" in note
    every = '{"type":"dr_grpo","learning_rate":5e-4,"warmup_steps":5,"micro_batch":256}'
    assert notes(f"slow={every}") == []


@pytest.mark.parametrize("arm", ["rl", "gepa", "base", "fst"])
def test_a_part_left_out_or_kept_resets_nothing(arm: str) -> None:
    assert notes(arm=arm) == []


def test_arms_of_the_comparison_say_all_they_mean() -> None:
    config = ROOT / "configs/tiny/methods.toml"
    _, study = load_config(config)
    assert not any(notes(arm=arm, config=config) for arm in study.arms)


def test_a_sweep_over_types_keeps_them() -> None:
    sweeps = 'study.sweeps=[{"name":"o","key":"slow.type","values":["dr_grpo"]}]'
    assert notes(sweeps, arm="o-dr_grpo") == []
