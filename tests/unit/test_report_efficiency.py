"""Cost to rl's peak by hand: on mean curves, by paired seed, not reached, and no target."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from fst_core.report.efficiency import section
from tests.journals import end, evaluate, fast_phase, slow_step
from tests.unit.section_studies import answer, begin, told


def run(root: Path, arm: str, seed: int, rewards: Sequence[float]) -> None:
    """16 slow rollouts of 10 tokens a step; fst has one fast phase of 10 rollouts before them."""
    writer = begin(root, arm, seed, like="fst" if arm == "fst" else "rl")
    evaluate(writer, 0, "seed", rewards[0])
    if arm == "fst":
        fast_phase(writer, 0, 0, 0.5)
    for step, reward in enumerate(rewards[1:], 1):
        slow_step(writer, step, 0.0, 0.0)
        evaluate(writer, step, "best" if arm == "fst" else "seed", reward)
    end(writer, len(rewards) - 1)


def test_cost_of_mean_curves_and_paired_seeds_by_hand(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tmp_path, "rl", seed, [0.0, 0.1, 0.2, 0.3, 0.8])
    run(tmp_path, "fst", 0, [0.0, 0.9, 0.9, 0.9, 0.9])
    run(tmp_path, "fst", 1, [0.0, 0.1, 0.9, 0.9, 0.9])
    found = answer(section, tmp_path).summary
    assert found["target"] == pytest.approx(0.8)
    # fst's mean curve: 0, .5, .9
    assert found["mean_curve"]["rl"] == {
        "step": 4, "rollouts": 64, "slow_rollouts": 64, "fast_rollouts": 0, "tokens": 640
    }  # fmt: skip
    assert found["mean_curve"]["fst"] == {
        "step": 2, "rollouts": 42, "slow_rollouts": 32, "fast_rollouts": 10, "tokens": 420
    }  # fmt: skip
    paired = found["paired"]["fst"]
    assert paired["seeds"] == [0, 1] and paired["costs"]["step"] == [1, 2]
    ratio = paired["ratios"]["step"]
    assert ratio["value"] == pytest.approx(math.sqrt(4 * 2)) and ratio["bound"] == ""
    assert (ratio["reached"], ratio["of"]) == (2, 2)
    half = 12.706204736 * math.log(2) / 2  # t(.975; 1) s / sqrt(2), log ratios ln 4 and ln 2
    assert ratio["interval"]["high"] == pytest.approx(math.sqrt(8) * math.exp(half))


def test_not_reached_is_shown_and_bounds_the_ratio(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [0.0, 0.4, 0.8])
    run(tmp_path, "fst", 0, [0.0, 0.1, 0.2])
    answered = answer(section, tmp_path)
    assert answered.summary["mean_curve"]["fst"]["step"] is None
    ratio = answered.summary["paired"]["fst"]["ratios"]["step"]
    assert (ratio["bound"], ratio["value"], ratio["reached"]) == ("at most", 1.0, 0)
    assert "<td>not reached</td>" in told(answered)
    assert "1 of 1 seeds the arm compared did not reach the target" in told(answered)


def test_seeds_that_cannot_be_paired_are_told(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [0.0, 0.8])
    run(tmp_path, "rl", 1, [0.5, 0.1])  # never above its start
    run(tmp_path, "fst", 1, [0.0, 0.9])
    run(tmp_path, "gepa", 2, [0.0, 0.9])
    answered = answer(section, tmp_path)
    assert answered.summary["paired"]["fst"]["left_out"] == [1]
    assert "Seed 1: rl never rose above its start, so fst has no target there." in told(answered)
    assert "gepa shares no seed with rl" in told(answered)


@pytest.mark.parametrize(
    ("arm", "rewards", "words"),
    [
        ("fst", [0.0, 0.5], "No rl run has a finite evaluation"),
        ("rl", [0.5, 0.5], "rl never rose above its first evaluation"),
        ("rl", [math.nan, math.nan], "No rl run has a finite evaluation"),
    ],
)
def test_without_a_target_there_is_a_sentence(tmp_path: Path, arm, rewards, words) -> None:
    run(tmp_path, arm, 0, rewards)
    answered = answer(section, tmp_path)
    assert words in told(answered) and words in answered.summary["reason"]
