"""Leaving zero by hand: the first of two measurements in a row, per seed and on the mean curve."""

from collections.abc import Sequence
from pathlib import Path

from fst_core.report.escape import section
from tests.journals import end, evaluate, slow_step
from tests.unit.section_studies import answer, begin, read_study, told


def run(root: Path, arm: str, seed: int, rewards: Sequence[float]) -> None:
    writer = begin(root, arm, seed)
    for step, reward in enumerate(rewards):
        if step:
            slow_step(writer, step, 0.0, 0.0)
        evaluate(writer, step, "seed", reward)
    end(writer, len(rewards) - 1)


def test_per_seed_and_mean_curve(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [0.0, 0.08, 0.0, 0.2, 0.3])  # up at 1, but not for good
    run(tmp_path, "rl", 1, [0.0, 0.0, 0.0, 0.0, 0.0])
    found = answer(section, tmp_path)
    arm = found.summary["arms"]["rl"]
    assert arm["seeds"] == {"0": {"step": 3.0, "rollouts": 48.0}, "1": None}
    assert arm["mean_curve"] == {"step": 3.0, "rollouts": 48.0}  # means 0, .04, 0, .1, .15
    assert "s1: not left" in told(found)


def test_the_last_evaluation_has_no_next_one_to_confirm_it(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [0.0, 0.0, 0.0, 0.7])
    run(tmp_path, "rl", 1, [0.0, 0.0, 0.6, 0.7])
    run(tmp_path, "rl", 2, [0.0, 0.0, 0.0, 0.0])
    found = answer(section, tmp_path)
    arm = found.summary["arms"]["rl"]
    assert arm["seeds"] == {"0": None, "1": {"step": 2.0, "rollouts": 32.0}, "2": None}
    assert found.summary["notes"] == [
        "rl-s0 is above zero at its last evaluation, which no next one confirms."
    ]


def test_shown_only_where_an_arm_starts_at_zero(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [0.5, 0.6])
    assert section(read_study(tmp_path)) is None
    run(tmp_path, "fst", 0, [0.0, 0.6])
    assert "rl does not start at zero." in told(answer(section, tmp_path))


def test_a_start_that_is_not_a_number_is_told(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [float("nan"), 0.6])
    run(tmp_path, "fst", 0, [0.0, 0.6])
    found = answer(section, tmp_path)
    assert found.summary["arms"]["rl"]["start"] is None
    assert "rl has no finite reward at its first evaluation." in told(found)
