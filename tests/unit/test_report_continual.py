"""Continual learning: a worked sequence of two and of three tasks, and runs that did not end."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fst_core.report.continual import section
from tests.journals import JournalWriter, end, evaluate, fast_phase, slow_step
from tests.unit.section_studies import answer, begin, read_study, sequence, told

TASKS = ("echo", "sums")


def measure(writer: JournalWriter, step: int, context: str, *accuracy: float) -> None:
    tasks = dict(zip(("echo", "sums", "first"), accuracy, strict=False))
    evaluate(writer, step, context, sum(accuracy) / len(accuracy), tasks=tasks)


def train(
    root: Path, seed: int, curve: Mapping[int, Sequence[float]], arm: str = "rl", ended: bool = True
) -> None:
    """Two tasks of 4 steps; accuracies of (echo, sums) by step under the seed context."""
    writer = begin(root, arm, seed, **sequence(TASKS, 4))
    for step, accuracy in curve.items():
        measure(writer, step, "seed", *accuracy)
    if ended:
        end(writer, 8)


WORKED = {0: (0.1, 0.2), 2: (0.4, 0.2), 4: (0.8, 0.3), 6: (0.5, 0.5), 8: (0.6, 0.6)}


def test_single_tasks_are_no_sequence(tmp_path: Path) -> None:
    evaluate(begin(tmp_path, "rl", 0), 0, "seed", 0.5)
    assert section(read_study(tmp_path)) is None


def test_scores_of_one_run_by_hand(tmp_path: Path) -> None:
    train(tmp_path, 0, WORKED)
    found = answer(section, tmp_path)
    rl = found.summary["contexts"]["headline"]["arms"]["rl"]
    means = [[cell["mean"] for cell in row] for row in rl["matrix"]]
    assert means == [[0.1, 0.2], [0.8, 0.3], [0.6, 0.6]]
    assert {name: value["mean"] for name, value in rl["scores"].items()} == pytest.approx(
        {
            "average_accuracy": 0.6,
            "backward_transfer": -0.2,  # .6 - .8
            "forward_transfer": 0.1,  # .3 - .2
            "forgetting": 0.2,
            "average_minimum_accuracy": 0.5,
            "worst_case_accuracy": 0.55,  # .6 / 2 + .5 / 2
        }
    )
    (switch,) = rl["switches"]
    assert (switch["step"], switch["from"], switch["to"]) == (4, "echo", "sums")
    assert switch["before"]["mean"] == 0.8 and switch["minimum"]["mean"] == 0.5
    assert switch["gap"]["mean"] == pytest.approx(0.3)
    assert (switch["recovered"], switch["of"]) == (0, 1)
    assert list(found.summary["contexts"]) == ["headline"]  # nothing evolves


def test_share_of_the_peak_over_arms(tmp_path: Path) -> None:
    train(tmp_path, 0, WORKED, arm="rl")
    train(tmp_path, 0, {0: (0, 0), 2: (1.0, 0), 4: (0.9, 0), 6: (0, 0), 8: (0, 0.3)}, arm="other")
    found = answer(section, tmp_path).summary["contexts"]["headline"]
    echo, sums = found["stages"]
    assert (echo["peak"], sums["peak"]) == (1.0, 0.6)
    assert echo["arms"]["rl"]["share_of_peak"] == pytest.approx([0.4, 0.8])
    assert echo["arms"]["other"]["end_share_of_peak"]["mean"] == pytest.approx(0.9)
    assert sums["arms"]["other"]["end_share_of_peak"]["mean"] == pytest.approx(0.5)


def test_intervals_are_over_seeds(tmp_path: Path) -> None:
    train(tmp_path, 0, WORKED)
    train(tmp_path, 1, {**WORKED, 8: (0.8, 0.6)})
    scores = answer(section, tmp_path).summary["contexts"]["headline"]["arms"]["rl"]["scores"]
    assert scores["backward_transfer"]["seeds"] == pytest.approx({"0": -0.2, "1": 0.0})
    # -.1 -+ 12.7062 x .1 ends beyond both, and no change of an accuracy is beyond 1
    assert scores["backward_transfer"]["interval"] == [-1.0, 1.0]


def test_evolving_arms_are_judged_by_best_and_shown_under_seed(tmp_path: Path) -> None:
    writer = begin(tmp_path, "fst", 0, like="fst", **sequence(TASKS, 4))
    measure(writer, 0, "seed", 0.1, 0.2)
    fast_phase(writer, 0, 0, 0.5)
    for step, best in ((4, (0.9, 0.4)), (8, (0.7, 0.8))):
        measure(writer, step, "seed", 0.3, 0.3)
        measure(writer, step, "best", *best)
    end(writer, 8)
    contexts = answer(section, tmp_path).summary["contexts"]
    best, seed = contexts["headline"]["arms"]["fst"], contexts["seed"]["arms"]["fst"]
    assert [cell["mean"] for cell in best["matrix"][0]] == [0.1, 0.2]  # the seed stands for it
    assert (best["context"], best["scores"]["average_accuracy"]["mean"]) == ("best", 0.75)
    assert (seed["context"], seed["scores"]["average_accuracy"]["mean"]) == ("seed", 0.3)


def test_run_that_died_in_stage_two_is_shown_as_far_as_it_got(tmp_path: Path) -> None:
    train(tmp_path, 0, WORKED)
    train(tmp_path, 1, {s: WORKED[s] for s in (0, 2, 4, 6)}, ended=False)
    found = answer(section, tmp_path)
    rl = found.summary["contexts"]["headline"]["arms"]["rl"]
    assert rl["scores"]["average_accuracy"]["seeds"] == {"0": 0.6, "1": None}
    assert [row[0]["n"] for row in rl["matrix"]] == [2, 2, 1]
    assert rl["switches"][0]["gap"]["seeds"]["1"] is None
    page = told(found)
    assert "rl-s1 stands at slow step 6, in stage 2 of 2 (sums)" in page
    assert "1 of 2" in page
    assert len(found.tables["continual"].query("run == 'rl-s1'")) == 8


def test_alone_and_dead_nothing_is_reached(tmp_path: Path) -> None:
    train(tmp_path, 0, {0: (0.1, 0.2), 2: (0.4, 0.2)}, ended=False)
    found = answer(section, tmp_path)
    headline = found.summary["contexts"]["headline"]
    assert headline["stages"][0]["arms"]["rl"]["end"]["mean"] is None
    assert headline["stages"][0]["arms"]["rl"]["share_of_peak"] == pytest.approx([1.0])
    assert "not reached" in told(found)


def test_evaluations_that_miss_the_end_of_a_stage(tmp_path: Path) -> None:
    train(tmp_path, 0, {0: (0.1, 0.2), 3: (0.7, 0.2), 6: (0.5, 0.4), 8: (0.5, 0.5)})
    found = answer(section, tmp_path)
    matrix = found.summary["contexts"]["headline"]["arms"]["rl"]["matrix"]
    assert matrix[1][0]["mean"] == 0.7
    assert "last evaluated at step 3 of the stage that ends at step 4" in told(found)


def test_nan_and_evaluations_without_tasks(tmp_path: Path) -> None:
    train(tmp_path, 0, {**WORKED, 8: (math.nan, 0.6)})
    bare = begin(tmp_path, "rl", 1, **sequence(TASKS, 4))
    evaluate(bare, 0, "seed", 0.5)
    slow_step(bare, 1, 0.5, 0.0)
    found = answer(section, tmp_path)
    page = told(found)
    assert "accuracies that are not finite, left out: 1." in page
    assert "rl-s1 has no evaluation of its tasks under the seed context." in page


def test_other_sequences_and_single_tasks_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    train(tmp_path, 0, WORKED)
    measure(begin(tmp_path, "rl", 1, **sequence(("sums", "echo"), 4)), 0, "seed", 0.5, 0.5)
    evaluate(begin(tmp_path, "single", 0), 0, "seed", 0.5)
    page = told(answer(section, tmp_path))
    assert "rl-s1 has another task sequence (sums, echo; 4 steps each)" in page
    assert "single-s0 has no task sequence in its config" in page


def test_a_run_without_a_journal_leaves_a_sentence_alone(tmp_path: Path) -> None:
    begin(tmp_path, "rl", 0, **sequence(TASKS, 4)).path.unlink()
    page = told(answer(section, tmp_path))
    assert "rl-s0 has no journal to be read" in page


def test_three_tasks_average_old_tasks_at_each_switch(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0, **sequence((*TASKS, "first"), 2))
    for step, accuracy in ((0, (0, 0, 0)), (2, (0.8, 0, 0)), (4, (0.4, 0.6, 0.2)),
                           (5, (0.2, 0.6, 0.4)), (6, (0.4, 0.4, 0.7))):  # fmt: skip
        measure(writer, step, "seed", *accuracy)
    end(writer, 6)
    rl = answer(section, tmp_path).summary["contexts"]["headline"]["arms"]["rl"]
    second = rl["switches"][1]
    assert second["before"]["mean"] == pytest.approx(0.5)  # (.4 + .6) / 2
    assert second["minimum"]["mean"] == pytest.approx(0.3)  # (.2 + .4) / 2
    assert second["gap"]["mean"] == pytest.approx(0.2)
    assert (second["recovered"], second["of"]) == (1, 2)  # echo is back at .4, sums is not at .6
    assert rl["scores"]["worst_case_accuracy"]["mean"] == pytest.approx(0.7 / 3 + 2 / 3 * 0.3)
