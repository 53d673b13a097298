"""Forgetting: before - after by hand, its intervals, and everything that can be missing."""

import math
from pathlib import Path
from typing import Any

import pytest

from fst_core.report.forgetting import section
from tests.journals import end, evaluate, start, suite
from tests.unit.section_studies import answer, begin, read_study, told

NEAR, FAR = "in distribution", "cross domain"
Rewards = list[list[float]]


def measure(root: Path, arm: str, seed: int, suites: dict[str, tuple], **fields: Any) -> None:
    """A run with (axis, rewards before, rewards after or None) of each suite, without a context."""
    writer = begin(root, arm, seed, **fields)
    evaluate(writer, 0, "seed", 0.1)
    for name, (axis, before, _) in suites.items():
        suite(writer, 0, name, axis, "none", 0.0, rewards=before)
    for name, (axis, _, after) in suites.items():
        if after is not None:
            suite(writer, 8, name, axis, "none", 0.0, rewards=after)
    if any(after is not None for _, _, after in suites.values()):
        end(writer, 8)


@pytest.fixture
def two_seeds(tmp_path: Path) -> Path:
    measure(tmp_path, "rl", 0, {"sums": (NEAR, [[1, 0], [1, 1]], [[0, 0], [1, 0]])})
    measure(tmp_path, "rl", 1, {"sums": (NEAR, [[1, 1], [1, 1]], [[1, 1], [1, 0]])})
    return tmp_path


def test_no_suites_no_section(tmp_path: Path) -> None:
    evaluate(begin(tmp_path, "rl", 0), 0, "seed", 0.5)
    assert section(read_study(tmp_path)) is None


def test_forgetting_by_hand(two_seeds: Path) -> None:
    found = answer(section, two_seeds)
    rl = found.summary["axes"][NEAR]["suites"]["sums"]["rl"]
    assert rl["before"]["seeds"] == {"0": 0.75, "1": 1.0}
    assert rl["after"]["seeds"] == {"0": 0.25, "1": 0.75}
    assert rl["difference"]["seeds"] == {"0": 0.5, "1": 0.25}  # positive: lost
    assert rl["difference"]["mean"] == 0.375
    # t(.975; 1) x standard error of (.5, .25) is 1.59; no difference of rewards is beyond 1
    assert rl["difference"]["interval"] == [-1.0, 1.0]
    # the problems lose .25 and .5 in the mean over seeds; a draw of two has mean .25, .375 or .5
    assert rl["over_problems"] == pytest.approx([0.25, 0.5])
    assert rl["best_difference"]["seeds"] == {"0": 0.5, "1": 0.0}
    assert "positive is lost" in told(found) and "2 problems x 2 samples" in told(found)


def test_axis_average_weighs_suites_alike(tmp_path: Path) -> None:
    suites = {
        "sums": (NEAR, [[1.0], [1.0]], [[1.0], [0.0]]),
        "words": (NEAR, [[1.0], [1.0], [1.0], [1.0]], [[0.0], [0.0], [0.0], [0.0]]),
    }
    measure(tmp_path, "rl", 0, suites)
    found = answer(section, tmp_path)
    average = found.summary["axes"][NEAR]["average"]["rl"]
    assert average["difference"]["mean"] == 0.75  # (.5 + 1) / 2, not 5 of 6 problems
    assert average["over_problems"] is None
    assert "One seed, so no interval over seeds: rl." in told(found)


def test_a_seed_without_a_suite_is_left_out_of_the_average_only(tmp_path: Path) -> None:
    lost = (NEAR, [[1.0], [1.0]], [[0.0], [0.0]])
    kept = (NEAR, [[1.0], [1.0]], [[1.0], [1.0]])
    measure(tmp_path, "rl", 0, {"sums": lost, "words": kept})
    measure(tmp_path, "rl", 1, {"sums": kept})
    found = answer(section, tmp_path)
    near = found.summary["axes"][NEAR]
    assert near["suites"]["sums"]["rl"]["difference"]["mean"] == 0.5
    assert near["average"]["rl"]["difference"]["seeds"] == {"0": 0.5, "1": None}
    assert "rl-s1 was not measured on words." in told(found)


def test_arms_with_different_suites(tmp_path: Path) -> None:
    kept = [[1.0], [0.0]]
    measure(tmp_path, "fst", 0, {"sums": (NEAR, kept, kept), "words": (NEAR, kept, kept)})
    measure(tmp_path, "rl", 0, {"sums": (NEAR, kept, kept), "poems": (FAR, kept, kept)})
    page = told(answer(section, tmp_path))
    assert "not over the same suites in every arm (fst: sums, words; rl: sums)" in page


def test_run_that_died_is_not_reached(tmp_path: Path) -> None:
    measure(tmp_path, "rl", 0, {"sums": (NEAR, [[1.0], [1.0]], [[0.0], [1.0]])})
    measure(tmp_path, "rl", 1, {"sums": (NEAR, [[1.0], [1.0]], None)})
    found = answer(section, tmp_path)
    rl = found.summary["axes"][NEAR]["suites"]["sums"]["rl"]
    assert rl["difference"]["seeds"] == {"0": 0.5, "1": None}
    assert "rl-s1 was not measured after training (it stands at step 0)" in told(found)
    assert "1 of 2" in told(found)


def test_nan_reward_is_undefined_with_a_sentence(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0)
    suite(writer, 0, "sums", NEAR, "none", 0.5, rewards=[[0.5], [0.5]])
    suite(writer, 8, "sums", NEAR, "none", math.nan, rewards=[[math.nan], [1.0]])
    found = answer(section, tmp_path)
    assert found.summary["axes"][NEAR]["suites"]["sums"]["rl"]["difference"]["mean"] is None
    assert "no finite reward on sums after training" in told(found)


def test_ragged_or_absent_rewards_fall_back_to_the_metric(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0)
    suite(writer, 0, "sums", NEAR, "none", 0.5, rewards=[[0.5, 1.0], [0.5]])
    suite(writer, 8, "sums", NEAR, "none", 0.25, rewards=None)
    rl = answer(section, tmp_path).summary["axes"][NEAR]["suites"]["sums"]["rl"]
    assert rl["difference"]["mean"] == 0.25
    assert rl["over_problems"] is None


def test_suites_only_under_contexts_say_so(tmp_path: Path) -> None:
    suite(begin(tmp_path, "rl", 0), 0, "sums", NEAR, "seed", 0.5)
    found = answer(section, tmp_path)
    assert "No suite was measured without a context" in told(found)
    assert found.figures == {}


@pytest.mark.parametrize("suites", [1, 2, 3, 8, 9])
def test_any_number_of_suites_is_drawn(tmp_path: Path, suites: int) -> None:
    rewards = [[1.0], [0.0]]
    named = {f"suite {i}": (NEAR, rewards, rewards) for i in range(suites)}
    measure(tmp_path, "rl", 0, named)
    svg = answer(section, tmp_path).figures["forgetting"]
    assert ("before training" in svg) == (3 <= suites <= 8)  # the radar's own legend


def test_base_polygon_leaves_out_runs_from_other_weights(tmp_path: Path) -> None:
    rewards = [[1.0], [0.0]]
    named = {f"suite {i}": (NEAR, rewards, rewards) for i in range(3)}
    measure(tmp_path, "later", 0, named, start_from="first/rl-s0")
    assert "before training" not in answer(section, tmp_path).figures["forgetting"]


def test_a_run_that_learns_nothing_is_no_change_that_is_missing(tmp_path: Path) -> None:
    rewards = [[1.0], [1.0]]
    writer = start(tmp_path / "base-s0", "base", 0)
    suite(writer, 0, "sums", NEAR, "none", 1.0, rewards=rewards)
    end(writer, 0)
    alone = answer(section, tmp_path)
    assert "was not measured after training" not in told(alone)
    measure(tmp_path, "rl", 0, {"sums": (NEAR, rewards, [[0.0], [1.0]])})
    beside = answer(section, tmp_path)
    assert list(beside.summary["axes"][NEAR]["suites"]["sums"]) == ["rl"]
    assert "base" not in told(beside).replace("base model", "").replace("base weights", "")
