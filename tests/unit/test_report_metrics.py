"""What DVC compares between versions, made from a report's summary."""

import csv
import json
from pathlib import Path

import pytest

from fst_core.report.metrics import curves_of, main, metrics_of, write

ARM = {
    "final_reward": {"mean": 0.5},
    "best_reward": {"mean": 0.75},
    "final_seed_reward": {"mean": None},
    "final_kl": {"mean": 0.25},
    "used": {"slow_rollouts": 32.0, "fast_rollouts": 8.0, "evaluation_rollouts": 100.0},
    "seconds": {"total": 12.5},
    "counted": ["fst-s0", "fst-s1"],
    "evaluations": [
        {"step": 0, "reward": {"mean": 0.0}},
        {"step": 4, "reward": {"mean": 0.5}},
        {"step": 8, "reward": {"mean": None}},
    ],
}
BASE = ARM | {"evaluations": [{"step": 0, "reward": {"mean": 0.125}}], "counted": ["base-s0"]}
STUDY = {"experiment": "demo", "arms": {"base": BASE, "fst": ARM}}


def test_metrics_are_means_by_arm_and_nothing_that_depends_on_the_clock():
    assert metrics_of(STUDY)["fst"] == {
        "final_reward": 0.5,
        "best_reward": 0.75,
        "final_seed_reward": None,
        "final_kl": 0.25,
        "slow_rollouts": 32.0,
        "fast_rollouts": 8.0,
        "reflection_rollouts": None,
        "seeds": 2,
    }


def test_a_curve_has_a_row_for_every_step_at_which_an_arm_has_a_reward():
    assert curves_of(STUDY) == [{"step": 0, "base": 0.125, "fst": 0.0}, {"step": 4, "fst": 0.5}]


@pytest.mark.parametrize("several", [False, True])
def test_every_study_of_a_summary_gets_its_numbers_and_its_curves(tmp_path: Path, several: bool):
    other = STUDY | {"experiment": "other"}
    write({"studies": {"demo": STUDY, "other": other}} if several else STUDY, tmp_path)
    names = {"demo", "other"} if several else {"demo"}
    assert json.loads((tmp_path / "metrics.json").read_text()).keys() == names
    assert {path.stem for path in (tmp_path / "curves").iterdir()} == names
    with (tmp_path / "curves/demo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"step": "0", "base": "0.125", "fst": "0.0"},
        {"step": "4", "base": "", "fst": "0.5"},
    ]


def test_the_command_reads_a_summary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps(STUDY))
    monkeypatch.setattr("sys.argv", ["metrics", str(summary), "--out", str(tmp_path / "out")])
    main()
    assert (tmp_path / "out/metrics.json").is_file()
