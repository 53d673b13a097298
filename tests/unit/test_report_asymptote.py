"""Fits of made curves: the known asymptote is found, a flat curve is refused with its reason."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fst_core.report.asymptote import section
from tests.journals import end, evaluate, slow_step
from tests.unit.section_studies import answer, begin, read_study, told


def run(root: Path, arm: str, curve: Callable[[int], float], like: str = "rl") -> None:
    """Evaluated every 4 of 40 steps of 16 rollouts."""
    writer = begin(root, arm, 0, like=like)
    for step in range(41):
        if step:
            slow_step(writer, step, 0.0, 0.0)
        if step % 4 == 0:
            evaluate(writer, step, "seed", curve(step))
    end(writer, 40)


def rising(step: int) -> float:
    return 0.1 + 0.6 / (1 + (8 / step) ** 2) if step else 0.1


def test_known_parameters_are_found_in_steps_and_rollouts(tmp_path: Path) -> None:
    run(tmp_path, "rl", rising)
    fits = answer(section, tmp_path).summary["rl"]
    assert fits["step"]["identifiable"] and fits["step"]["reason"] == ""
    assert fits["step"]["A"] == pytest.approx(0.7, abs=0.01)
    assert fits["step"]["C_mid"] == pytest.approx(8, abs=0.2)
    assert fits["rollouts"]["C_mid"] == pytest.approx(8 * 16, abs=4)
    interval = fits["step"]["interval"]
    assert interval["low"] - 1e-6 <= 0.7 <= interval["high"] + 1e-6


def test_a_flat_curve_is_not_identifiable(tmp_path: Path) -> None:
    run(tmp_path, "rl", lambda step: 0.25)
    found = answer(section, tmp_path)
    assert found.summary["rl"]["step"]["identifiable"] is False
    assert "not identifiable" in told(found) and "Reward does not change." in told(found)


def test_evaluations_without_a_reward_are_left_out_and_told(tmp_path: Path) -> None:
    run(tmp_path, "rl", lambda step: float("nan") if step == 20 else rising(step))
    found = answer(section, tmp_path)
    assert found.summary["rl"]["step"]["A"] == pytest.approx(0.7, abs=0.01)
    assert "rl: 1 evaluation without a reward left out." in told(found)


def test_too_few_points_are_told_and_arms_without_training_are_not_asked(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0)
    evaluate(writer, 0, "seed", 0.1)
    assert "1 measured point is fewer than 5." in told(answer(section, tmp_path))
    run(tmp_path / "base", "base", rising, like="base")
    assert section(read_study(tmp_path / "base")) is None
