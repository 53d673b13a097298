"""Odd data never costs the report: it is made, and says in a sentence what is missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fst_core.report import make_report
from tests.journals import (
    JournalWriter,
    end,
    evaluate,
    fast_phase,
    quadrant,
    slow_step,
    start,
    suite,
    synthetic_run,
    synthetic_study,
)

NAN = float("nan")
ARCHIVE = Path(__file__).parents[2] / "docs" / "results" / "first" / "smollm2-anywhere"


def page_and_summary(folders: list[Path], out: Path) -> tuple[str, dict[str, Any]]:
    report = make_report(folders, out)
    assert all(path.exists() for path in report.paths.values())
    return report.paths["report"].read_text(), json.loads(report.paths["summary"].read_text())


def run(root: Path, arm: str, seed: int, rewards: list[float], finish: bool = True) -> Path:
    writer = start(root / f"{arm}-s{seed}", arm, seed)
    for step, reward in enumerate(rewards):
        if step:
            slow_step(writer, step, reward, 0.1 * step)
        elif arm == "fst":
            fast_phase(writer, 0, 0, 0.5)
        evaluate(writer, step, "best" if arm == "fst" else "seed", reward, 0.1 * step)
    if finish:
        end(writer, len(rewards) - 1)
    return writer.path.parent


@pytest.mark.parametrize(
    ("rl", "fst", "sentences"),
    [
        ([0.0, 0.3], [0.5, 0.9], ["No reward above both starts is reached by both arms"]),
        ([0.0, NAN, 0.5], [0.0, 0.5, NAN], ["the last reward of seed 0 is not a number"]),
        ([NAN, NAN], [NAN, NAN], ["No rl run has a finite evaluation"]),
        ([0.3] * 5, [0.3] * 5, ["rl never rose above its first evaluation", "does not change"]),
        ([0.2], [0.2], ["fewer than 5"]),
    ],
)
def test_odd_rewards(tmp_path: Path, rl: list[float], fst: list[float], sentences) -> None:
    folders = [run(tmp_path, "rl", 0, rl), run(tmp_path, "fst", 0, fst)]
    page, _ = page_and_summary(folders, tmp_path / "out")
    for sentence in sentences:
        assert sentence in page


def test_a_missing_seed(tmp_path: Path) -> None:
    folders = [
        *(run(tmp_path, "rl", seed, [0.0, 0.5, 0.6]) for seed in (0, 1)),
        run(tmp_path, "fst", 1, [0.0, 0.6, 0.7]),
    ]
    page, summary = page_and_summary(folders, tmp_path / "out")
    assert summary["efficiency"]["paired"]["fst"]["seeds"] == [1]
    assert "fst is paired with rl in one seed only" in page


def test_a_run_dead_at_step_3(tmp_path: Path) -> None:
    dead = run(tmp_path, "fst", 0, [0.0, 0.2, 0.4, 0.5], finish=False)
    page, summary = page_and_summary([synthetic_run(tmp_path, "rl", 0), dead], tmp_path / "out")
    assert "stands at slow step 3" in page
    assert summary["rewards"]["final"][-1]["mean"]["mean"] == 0.5
    assert "fst: base x seed was not measured." in page


def test_no_rl_arm(tmp_path: Path) -> None:
    folders = synthetic_study(tmp_path / "runs", arms=("base", "fst"), seeds=(0,))
    page, summary = page_and_summary(folders, tmp_path / "out")
    assert "No rl run has a finite evaluation, so there is no peak to reach." in page
    assert "paper" not in summary and summary["divergence"]["saved"] == []


def no_kl(writer: JournalWriter) -> None:
    metrics = {"evaluation/reward": 0.5}
    writer.add("evaluation", step=1, context="seed", metrics=metrics, rewards=[[0.5]])


def only_without_context(writer: JournalWriter) -> None:
    evaluate(writer, 0, "none", 0.5)


def unlike_rows(writer: JournalWriter) -> None:
    evaluate(writer, 1, "seed", 0.5, rewards=[[1.0, 0.0], [0.5]])


def rows_that_do_not_split_into_tasks(writer: JournalWriter) -> None:
    evaluate(writer, 1, "seed", 0.5, rewards=[[0.5]] * 3, tasks={"a": 0.2, "b": 0.8})


def infinite_kl(writer: JournalWriter) -> None:
    evaluate(writer, 1, "seed", 0.5, float("inf"))


def battery_of_one(writer: JournalWriter) -> None:
    evaluate(writer, 1, "seed", 0.5)
    quadrant(writer, 1, "seed", NAN)
    suite(writer, 1, "other", "cross domain", "none", NAN)


@pytest.mark.parametrize(
    "write",
    [
        no_kl,
        only_without_context,
        unlike_rows,
        rows_that_do_not_split_into_tasks,
        infinite_kl,
        battery_of_one,
    ],
)
@pytest.mark.parametrize("arm", ["rl", "fst"])
def test_one_odd_run_beside_a_whole_one(
    tmp_path: Path, arm: str, write: Callable[[JournalWriter], None]
) -> None:
    writer = start(tmp_path / f"{arm}-s0", arm, 0)
    write(writer)
    other = "fst" if arm == "rl" else "rl"
    whole = synthetic_run(tmp_path, other, 0)
    page, summary = page_and_summary([writer.path.parent, whole], tmp_path / "out")
    assert summary["arms"][other]["final_reward"]["mean"] is not None
    assert f"<strong>{arm}-s0</strong>: The run has not ended" in page


def test_journals_of_the_first_format(tmp_path: Path) -> None:
    folders = sorted(ARCHIVE.iterdir())
    page, summary = page_and_summary(folders, tmp_path / "out")
    assert "fst: base x best was not measured." in page
    assert summary["divergence"]["kl"] == "k1" and summary["divergence"]["agreement"] is None
    assert summary["divergence"]["saved"][0]["saved"]["mean"] == pytest.approx(0.319, abs=1e-3)
    assert summary["arms"]["rl"]["final_reward"]["mean"] == pytest.approx(0.46875)
