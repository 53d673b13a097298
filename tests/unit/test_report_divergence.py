"""KL by hand: at the end, k1 and k3 against the exact sum, and saved at matched reward."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from fst_core.report.divergence import section
from tests.journals import end, evaluate
from tests.unit.section_studies import answer, begin, read_study, told

Points = Sequence[tuple[float, float]]
"""(reward, KL) per evaluation."""


def run(root: Path, arm: str, seed: int, points: Points, exact: bool = False) -> None:
    """An arm judged by its seed context, evaluated at steps 0, 1, 2, ..."""
    writer = begin(root, arm, seed)
    for step, (reward, kl) in enumerate(points):
        more = {"kl_k3": kl + 0.01, "kl_exact": kl + 0.02, "entropy": 1.0} if exact else {}
        evaluate(writer, step, "seed", reward, kl, more=more)
    end(writer, len(points) - 1)


def saved(found, arm: str, against: str = "rl"):
    pairs = found.summary["saved"]
    return next(p for p in pairs if (p["arm"], p["against"]) == (arm, against))


def test_kl_saved_at_matched_reward_by_hand(tmp_path: Path) -> None:
    # straight lines from the origin: fst pays .1 for a reward of .5 where rl pays .4
    for seed in (0, 1):
        run(tmp_path, "rl", seed, [(0.0, 0.0), (0.5, 0.4)])
        run(tmp_path, "fst", seed, [(0.0, 0.0), (0.5, 0.1 + 0.1 * seed)])
    found = answer(section, tmp_path)
    pair = saved(found, "fst")
    assert pair["saved"]["seeds"] == pytest.approx({"0": 0.75, "1": 0.5})
    assert pair["saved"]["mean"] == pytest.approx(0.625)
    assert pair["mean_curve"] == pytest.approx(1 - 0.15 / 0.4)
    assert pair["reward_range"] == pytest.approx([0.0, 0.5])
    assert found.summary["kl"] == "k1" and found.summary["agreement"] is None


def test_the_challenger_is_also_set_against_every_other_trained_arm(tmp_path: Path) -> None:
    for arm, kl in (("rl", 0.4), ("fst", 0.1), ("rl-kl", 0.2)):
        run(tmp_path, arm, 0, [(0.0, 0.0), (0.5, kl)])
    found = answer(section, tmp_path)
    pairs = [(p["arm"], p["against"]) for p in found.summary["saved"]]
    assert pairs == [("fst", "rl"), ("rl-kl", "rl"), ("fst", "rl-kl")]
    assert saved(found, "fst", "rl-kl")["saved"]["mean"] == pytest.approx(0.5)


def test_exact_kl_is_used_where_it_is_and_the_estimates_are_compared(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [(0.0, 0.0), (0.5, 0.4)], exact=True)
    found = answer(section, tmp_path)
    assert found.summary["kl"] == "exact"
    at_end = found.summary["at_end"]["rl"]["seed"]
    assert {name: at_end[name]["mean"] for name in at_end} == pytest.approx(
        {"kl": 0.4, "kl_k3": 0.41, "kl_exact": 0.42, "entropy": 1.0}
    )
    said = found.summary["agreement"]
    assert "k1 differs from the exact KL by at most 0.020" in said
    assert "k3 differs from the exact KL by at most 0.010" in said


def test_rewards_that_do_not_overlap_leave_it_undefined_with_the_reason(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [(0.0, 0.0), (0.3, 0.4)])
    run(tmp_path, "fst", 0, [(0.5, 0.0), (0.9, 0.1)])
    found = answer(section, tmp_path)
    pair = saved(found, "fst")
    assert pair["saved"]["mean"] is None and pair["mean_curve"] is None
    assert "No reward above both starts is reached by both arms" in pair["reasons"]["0"]
    assert "undefined: No reward above both starts" in told(found)


def test_a_missing_seed_and_a_kl_that_is_not_a_number_are_told(tmp_path: Path) -> None:
    run(tmp_path, "rl", 0, [(0.0, 0.0), (0.5, float("nan"))])
    run(tmp_path, "fst", 1, [(0.0, 0.0), (0.5, 0.1)])
    found = answer(section, tmp_path)
    assert "rl-s0: no finite KL in 1 of 2 evaluations." in told(found)
    assert "no paired seed" in told(found)


def test_no_kl_at_all_gives_no_section_and_one_arm_no_comparison(tmp_path: Path) -> None:
    run(tmp_path / "a", "rl", 0, [(0.0, float("nan"))])
    assert section(read_study(tmp_path / "a")) is None
    run(tmp_path / "b", "rl", 0, [(0.0, 0.0), (0.5, 0.1)])
    assert "it takes two arms that train weights" in told(answer(section, tmp_path / "b"))
