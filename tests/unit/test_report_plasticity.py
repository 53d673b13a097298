"""Plasticity: areas, last rewards and their ratios to the arm that starts from the base model."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from fst_core.report.plasticity import section
from tests.journals import end, evaluate
from tests.unit.section_studies import answer, begin, read_study, told


def train(root: Path, arm: str, seed: int, rewards: Sequence[float], start: str | None) -> None:
    """A run with an evaluation every 4 steps; it has ended if it got to step 8."""
    writer = begin(root, arm, seed, start_from=start)
    for index, reward in enumerate(rewards):
        evaluate(writer, 4 * index, "seed", reward, 0.1 * index)
    if len(rewards) == 3:
        end(writer, 8)


@pytest.fixture
def probes(tmp_path: Path) -> Path:
    train(tmp_path, "from-base", 0, (0.0, 0.4, 0.8), None)  # area (.2 + .6) / 2 = .4
    train(tmp_path, "from-base", 1, (0.2, 0.4, 0.4), None)  # area (.3 + .4) / 2 = .35
    train(tmp_path, "from-rl", 0, (0.0, 0.2, 0.4), "first/rl-s0")  # area (.1 + .3) / 2 = .2
    train(tmp_path, "from-rl", 1, (0.2, 0.4, 0.4), "first/rl-s1")
    return tmp_path


def test_without_start_from_no_section(tmp_path: Path) -> None:
    train(tmp_path, "rl", 0, (0.0, 0.1, 0.2), None)
    assert section(read_study(tmp_path)) is None


def test_areas_and_ratios_by_hand(probes: Path) -> None:
    found = answer(section, probes)
    assert found.summary["base_arm"] == "from-base"
    base, rl = (found.summary["arms"][arm] for arm in ("from-base", "from-rl"))
    assert base["area"]["seeds"] == pytest.approx({"0": 0.4, "1": 0.35})
    assert rl["area"]["seeds"] == pytest.approx({"0": 0.2, "1": 0.35})
    assert rl["area_ratio"]["seeds"] == pytest.approx({"0": 0.5, "1": 1.0})
    assert rl["final_ratio"]["seeds"] == pytest.approx({"0": 0.5, "1": 1.0})
    assert rl["area_ratio"]["interval"] == pytest.approx([0.0, 0.75 + 3.1766], abs=1e-3)
    assert rl["kl_end"]["mean"] == pytest.approx(0.2)
    assert "first/rl-s0, first/rl-s1" in told(found)
    assert found.summary["notes"] == []


def test_without_a_base_arm_the_ratios_are_undefined(tmp_path: Path) -> None:
    train(tmp_path, "from-rl", 0, (0.0, 0.2, 0.4), "first/rl-s0")
    found = answer(section, tmp_path)
    assert found.summary["arms"]["from-rl"]["area_ratio"]["mean"] is None
    assert "No arm starts from the base model" in told(found)
    assert "One seed, so no interval over seeds: from-rl." in told(found)


def test_a_dead_run_is_compared_over_the_steps_it_reached(tmp_path: Path) -> None:
    train(tmp_path, "from-base", 0, (0.0, 0.4, 0.8), None)
    train(tmp_path, "from-rl", 0, (0.0, 0.2), "first/rl-s0")
    found = answer(section, tmp_path)
    rl = found.summary["arms"]["from-rl"]
    assert rl["area_ratio"]["seeds"] == pytest.approx({"0": 0.5})  # .1 against .2, up to step 4
    assert rl["final_ratio"]["seeds"] == pytest.approx({"0": 0.5})  # .2 against .4, at step 4
    assert "from-rl-s0 has not ended (slow step 4): counted up to there." in told(found)


def test_a_dead_seed_beside_a_finished_one_is_drawn_but_not_counted(probes: Path) -> None:
    train(probes, "from-rl", 2, (0.0, 0.9), "first/rl-s2")
    found = answer(section, probes)
    assert "2" not in found.summary["arms"]["from-rl"]["area"]["seeds"]
    assert "from-rl-s2 has not ended (slow step 4): not counted." in told(found)


def test_unpaired_seed_zero_reference_and_nan(tmp_path: Path) -> None:
    train(tmp_path, "from-base", 0, (0.0, 0.0, 0.0), None)
    train(tmp_path, "from-rl", 0, (0.0, math.nan, 0.4), "first/rl-s0")
    train(tmp_path, "from-rl", 1, (0.0, 0.2, 0.4), "first/rl-s1")
    found = answer(section, tmp_path)
    page = told(found)
    assert found.summary["arms"]["from-rl"]["area_ratio"]["seeds"] == {"0": None, "1": None}
    assert found.summary["arms"]["from-rl"]["area"]["seeds"] == pytest.approx({"0": 0.2, "1": 0.2})
    assert "from-rl-s0: evaluations without a finite reward, left out: 1." in page
    assert "from-rl-s0: a ratio to from-base-s0 is undefined" in page
    assert "from-rl-s1 has no counted run of the base arm with its seed" in page


def test_runs_without_evaluations_or_all_nan(tmp_path: Path) -> None:
    begin(tmp_path, "from-base", 0)
    train(tmp_path, "from-rl", 0, (math.nan, math.nan, math.nan), "first/rl-s0")
    found = answer(section, tmp_path)
    assert found.summary["arms"]["from-rl"]["final"]["mean"] is None
    assert "from-base-s0 has not ended (slow step 0): not counted." in told(found)
