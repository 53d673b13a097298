"""Final rewards by hand: mean@k, unbiased best@k, running maximum, tasks, and what is missing."""

from pathlib import Path

import pytest

from fst_core.report.rewards import section
from tests.journals import end, evaluate
from tests.unit.section_studies import answer, begin, read_study, told

ROWS = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]


def item(found, arm: str, context: str, task: str = ""):
    same = (arm, context, task)
    [one] = [x for x in found.summary["final"] if (x["arm"], x["context"], x["task"]) == same]
    return one


def test_mean_best_and_running_maximum_by_hand(tmp_path: Path) -> None:
    for seed, peak in ((0, 0.9), (1, 0.5)):
        writer = begin(tmp_path, "rl", seed)
        evaluate(writer, 0, "seed", 0.0)
        evaluate(writer, 1, "seed", peak)
        evaluate(writer, 2, "seed", 0.625, rewards=ROWS)
        evaluate(writer, 2, "none", 0.1, rewards=[[0.0, 0.2], [0.0, 0.2]])
        end(writer, 2)
    found = answer(section, tmp_path)
    seed = item(found, "rl", "seed")
    assert (seed["problems"], seed["samples"]) == (2, 4)
    assert seed["mean"]["mean"] == 0.625 and seed["mean"]["n"] == 2
    assert seed["running_max"] == pytest.approx(0.7)  # (.9 + .5) / 2 at step 1
    # problem 1: one of four samples right, so best@k = k / 4; problem 2: 1
    best = {k: value["mean"] for k, value in seed["best"].items()}
    assert best == pytest.approx({"1": 0.625, "2": 0.75, "4": 1.0})
    low, high = seed["over_problems"]
    assert (low, high) == (0.25, 1.0)  # of two problems a resample may hold either twice
    none = item(found, "rl", "none")
    assert none["mean"]["mean"] == pytest.approx(0.1) and none["running_max"] is None
    frame = found.tables["rewards"]
    assert frame[(frame["measure"] == "best") & (frame["k"] == 2)]["value"].tolist() == (
        pytest.approx([0.2, 0.75])
    )


def test_tasks_of_a_sequence_take_their_rows_in_order(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0)
    rows = [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    evaluate(writer, 0, "seed", 0.625, rewards=rows, tasks={"first": 0.25, "second": 1.0})
    end(writer, 0)
    found = answer(section, tmp_path)
    assert item(found, "rl", "seed", "first")["mean"]["mean"] == 0.25
    assert item(found, "rl", "seed", "second")["best"]["2"]["mean"] == 1.0
    assert item(found, "rl", "seed")["mean"]["mean"] == 0.625
    assert "<td>second</td>" in told(found)


def test_the_last_evaluated_step_counts_and_not_an_earlier_context(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0)
    evaluate(writer, 0, "none", 0.5)
    evaluate(writer, 0, "seed", 0.5)
    evaluate(writer, 3, "seed", 0.75)  # it died before the last evaluation, which has "none" too
    found = answer(section, tmp_path)
    assert [x["context"] for x in found.summary["final"]] == ["seed"]
    assert item(found, "rl", "seed")["mean"]["mean"] == 0.75


def test_a_reward_that_is_not_a_number_is_told_and_left_out(tmp_path: Path) -> None:
    for seed, reward in ((0, 0.5), (1, float("nan"))):
        writer = begin(tmp_path, "rl", seed)
        evaluate(writer, 0, "seed", reward, rewards=[[reward, reward], [reward, reward]])
        end(writer, 0)
    found = answer(section, tmp_path)
    assert "the last reward of seed 1 is not a number" in told(found)
    seed = item(found, "rl", "seed")
    assert seed["mean"]["mean"] == 0.5 and seed["mean"]["n"] == 1
    assert seed["over_problems"] is None and seed["best"] == {}


def test_without_rewards_by_problem_there_is_a_mean_and_a_sentence(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0)
    evaluate(writer, 0, "seed", 0.5, rewards=[])
    end(writer, 0)
    found = answer(section, tmp_path)
    assert item(found, "rl", "seed")["mean"]["mean"] == 0.5
    assert "no rewards by problem" in told(found) and "One seed" in told(found)


def test_nothing_evaluated_gives_no_section(tmp_path: Path) -> None:
    begin(tmp_path, "rl", 0)
    assert section(read_study(tmp_path)) is None
