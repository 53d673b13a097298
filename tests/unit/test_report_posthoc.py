"""Post-hoc search: gains of the same search on different weights."""

import math
from pathlib import Path
from typing import Any

import pytest

from fst_core.report.posthoc import section
from tests.journals import end, evaluate, fast_phase
from tests.unit.section_studies import answer, begin, read_study, told

HALF, THREE, ALL = [[1, 0], [0, 1]], [[1, 1], [0, 1]], [[1, 1], [1, 1]]
NONE = [[0, 0], [0, 0]]


def search(
    root: Path,
    arm: str,
    seed: int,
    start: str | None,
    before: list,
    after: list | None,
    **more: Any,
) -> None:
    """A search of one cycle, ended if it has an `after`."""
    writer = begin(root, arm, seed, like="gepa", start_from=start, **more)
    evaluate(writer, 0, "seed", float(sum(map(sum, before)) / 4), rewards=before)
    fast_phase(writer, 0, 0, 0.5)
    if after is not None:
        evaluate(writer, 8, "seed", 0.9)
        evaluate(writer, 8, "best", float(sum(map(sum, after)) / 4), rewards=after)
        end(writer, 8)


def test_an_ordinary_gepa_arm_is_no_post_hoc_search(tmp_path: Path) -> None:
    search(tmp_path, "gepa", 0, None, HALF, ALL)
    assert section(read_study(tmp_path)) is None


def test_gains_by_hand(tmp_path: Path) -> None:
    search(tmp_path, "on-base", 0, None, NONE, HALF)  # gain .5
    search(tmp_path, "on-base", 1, None, HALF, THREE)  # gain .25
    search(tmp_path, "on-rl", 0, "first/rl-s0", HALF, THREE)  # gain .25
    search(tmp_path, "on-rl", 1, "first/rl-s1", HALF, ALL)  # gain .5
    found = answer(section, tmp_path)
    arms = found.summary["arms"]
    assert arms["on-base"]["difference"]["seeds"] == {"0": 0.5, "1": 0.25}
    assert arms["on-rl"]["difference"]["seeds"] == {"0": 0.25, "1": 0.5}
    assert arms["on-rl"]["over_base"]["seeds"] == {"0": -0.25, "1": 0.25}
    # problems gain (0 + 0)/2... seed 0: .5, 0; seed 1: .5, .5: in the mean .5 and .25
    assert arms["on-rl"]["over_problems"] == pytest.approx([0.25, 0.5])
    assert arms["on-base"]["over_base"]["mean"] is None
    assert found.summary["notes"] == []
    assert "first/rl-s0, first/rl-s1" in told(found) and "base model" in told(found)


def test_missing_base_dead_run_and_nan(tmp_path: Path) -> None:
    search(tmp_path, "on-rl", 0, "first/rl-s0", HALF, None)
    search(tmp_path, "on-rl", 1, "first/rl-s1", HALF, [[math.nan, 1], [1, 1]])
    found = answer(section, tmp_path)
    page = told(found)
    assert found.summary["arms"]["on-rl"]["difference"]["seeds"] == {"0": None, "1": None}
    assert found.summary["arms"]["on-rl"]["over_base"]["mean"] is None
    assert "No arm searches on the base model" in page
    assert "on-rl-s0 has not ended (step 0): its gain is not reached." in page
    assert "on-rl-s1 has no finite reward at the end" in page


def test_unpaired_seeds_and_unequal_budgets(tmp_path: Path) -> None:
    search(tmp_path, "on-base", 0, None, HALF, ALL)
    search(tmp_path, "on-rl", 3, "first/rl-s3", HALF, ALL, fast={"type": "gepa", "metric_calls": 7})
    page = told(answer(section, tmp_path))
    assert "on-rl-s3 has no run of on-base with its seed" in page
    assert "The search budgets differ" in page and "on-rl-s3: 7 metric calls a cycle" in page
    assert "One seed, so no interval over seeds: on-base, on-rl." in page


def test_ended_run_without_its_last_evaluation(tmp_path: Path) -> None:
    writer = begin(tmp_path, "on-rl", 0, like="gepa", start_from="first/rl-s0")
    end(writer, 8)
    page = told(answer(section, tmp_path))
    assert "no evaluation of its best context at the end" in page
    assert "no evaluation of the seed context at its start" in page
