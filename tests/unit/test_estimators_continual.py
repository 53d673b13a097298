import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fst_core.estimators.continual import (
    ContinualScores,
    StabilityGap,
    average_minimum_accuracy,
    continual_scores,
    normalised_by_peak,
    stability_gap,
    worst_case_accuracy,
)

WORKED = [
    [0.1, 0.0, 0.2],
    [0.8, 0.1, 0.2],
    [0.9, 0.7, 0.5],
    [0.6, 0.5, 0.9],
]
"""Row 0 before training, then after each of three stages."""

SQUARE = arrays(float, (4, 3), elements=st.floats(0, 1))


def test_a_worked_matrix():
    """ACC (.6+.5+.9)/3. BWT ((.6-.8)+(.5-.7))/2. FWT ((.1-0)+(.5-.2))/2.

    Forgetting: task 1 was best after stage 2 (.9), task 2 too (.7): ((.9-.6)+(.7-.5))/2.
    """
    found = continual_scores(WORKED)
    assert found.average_accuracy == pytest.approx(2 / 3)
    assert found.backward_transfer == pytest.approx(-0.2)
    assert found.forward_transfer == pytest.approx(0.2)
    assert found.forgetting == pytest.approx(0.25)
    assert (found.stages, found.tasks, found.reason) == (3, 3, "")


def test_an_unfinished_run_counts_as_far_as_it_got():
    """Two stages: ACC (.9+.7)/2, BWT .9-.8, FWT .1-0, forgetting .8-.9."""
    found = continual_scores(WORKED[:3])
    assert found.average_accuracy == pytest.approx(0.8)
    assert found.backward_transfer == pytest.approx(0.1)
    assert found.forward_transfer == pytest.approx(0.1)
    assert found.forgetting == pytest.approx(-0.1)
    assert (found.stages, found.reason) == (2, "2 of 3 stages are complete.")


def test_one_stage_has_an_accuracy_only():
    told = "Transfer and forgetting need two stages."
    one = ContinualScores(0.8, None, None, None, 1, 1, told)
    assert continual_scores([[0.1], [0.8]]) == one
    found = continual_scores(WORKED[:2])
    assert found.average_accuracy == 0.8 and found.backward_transfer is None
    assert found.reason == f"1 of 3 stages are complete. {told}"


def test_no_stage_at_all():
    assert continual_scores([]).reason == "No stage was measured."
    assert continual_scores([[]]).average_accuracy is None
    found = continual_scores(WORKED[:1])
    assert (found.average_accuracy, found.forgetting) == (None, None)
    assert found.reason == "0 of 3 stages are complete."


def test_a_missing_cell_undefines_only_what_needs_it():
    rows = [list(row) for row in WORKED]
    rows[0][1] = math.nan
    found = continual_scores(rows)
    assert found.forward_transfer is None and found.forgetting == pytest.approx(0.25)
    assert found.reason == "An accuracy that a score needs was not measured."
    rows[3][0] = math.nan
    assert continual_scores(rows).average_accuracy is None
    assert continual_scores(rows).backward_transfer is None


def test_a_matrix_of_another_shape_is_an_error():
    with pytest.raises(ValueError, match="stages"):
        continual_scores([[0.1], [0.2], [0.3]])


@given(SQUARE, st.floats(0.1, 2), st.floats(-1, 1))
def test_scores_are_bounded_and_move_with_accuracy(R, scale, shift):
    found, moved = continual_scores(R), continual_scores(scale * R + shift)
    assert found.average_accuracy is not None and 0 <= found.average_accuracy <= 1
    assert found.backward_transfer is not None and found.forgetting is not None
    assert found.forgetting >= -found.backward_transfer - 1e-12
    expected = scale * found.average_accuracy + shift
    assert moved.average_accuracy == pytest.approx(expected, abs=1e-9)
    for name in ("backward_transfer", "forward_transfer", "forgetting"):
        assert -1 <= getattr(found, name) <= 1
        assert getattr(moved, name) == pytest.approx(scale * getattr(found, name), abs=1e-9)


STEPS = [0, 10, 20, 22, 25, 30, 40, 50]
FALLS = [0.1, 0.5, 0.8, 0.3, 0.2, 0.6, 0.8, 0.7]


def test_a_fall_and_a_recovery():
    found = stability_gap(STEPS, FALLS, switch_step=20, until=40)
    assert found == StabilityGap(0.8, 0.2, 25, pytest.approx(0.6), 40)
    reverse = stability_gap(STEPS[::-1], FALLS[::-1], switch_step=20, until=40)
    assert reverse == found


def test_what_lies_after_until_plays_no_part():
    found = stability_gap(STEPS, [*FALLS[:-1], 0.0], switch_step=20, until=30)
    assert (found.minimum, found.recovered_at) == (0.2, None)


def test_a_task_that_never_falls_is_back_at_once():
    found = stability_gap([0, 10, 20], [0.2, 0.5, 0.6], switch_step=0, until=20)
    assert found == StabilityGap(0.2, 0.5, 10, pytest.approx(-0.3), 10)


def test_no_gap_without_both_sides_of_the_switch():
    after = stability_gap([0, 10], [0.1, 0.2], switch_step=10, until=20)
    assert after.gap is None and after.reason.endswith("evaluated after the switch at step 10.")
    before = stability_gap([30, 40], [0.1, 0.2], switch_step=20, until=40)
    assert before.gap is None and "before the switch" in before.reason
    assert stability_gap([], [], 10, 20).gap is None
    missing = stability_gap([10, 15, 20], [0.5, math.nan, 0.4], switch_step=10, until=20)
    assert missing.minimum is None and "is missing" in missing.reason
    unneeded = stability_gap([0, 10, 15], [math.nan, 0.5, 0.4], switch_step=10, until=20)
    assert unneeded.gap == pytest.approx(0.1)
    with pytest.raises(ValueError):
        stability_gap([1], [], 0, 2)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=8), st.floats(0.1, 2), st.floats(-0.5, 0.5))
def test_a_gap_moves_with_accuracy(accuracy, scale, shift):
    steps = list(range(len(accuracy)))
    found = stability_gap(steps, accuracy, 1, len(steps))
    moved = stability_gap(steps, [scale * a + shift for a in accuracy], 1, len(steps))
    assert found.gap is not None and found.minimum == min(accuracy[2:])
    assert moved.gap == pytest.approx(scale * found.gap, abs=1e-9)
    assert found.recovered_at is None or accuracy[int(found.recovered_at)] >= accuracy[1] - 1e-9


def test_worst_case_accuracy_of_three_tasks():
    """min-ACC (.2 + .4) / 2; WC-ACC .9 / 3 + (2 / 3) .3."""
    assert average_minimum_accuracy([0.2, 0.4]) == pytest.approx(0.3)
    assert worst_case_accuracy(0.9, [0.2, 0.4], 3) == pytest.approx(0.5)
    assert worst_case_accuracy(0.9, [], 1) == 0.9


def test_worst_case_accuracy_of_odd_input():
    assert average_minimum_accuracy([]) is None
    assert average_minimum_accuracy([0.2, math.nan]) is None
    assert worst_case_accuracy(math.nan, [0.2], 2) is None
    assert worst_case_accuracy(0.5, [math.nan], 2) is None
    with pytest.raises(ValueError, match="task 3 has 2 old tasks, not 1"):
        worst_case_accuracy(0.5, [0.2], 3)
    with pytest.raises(ValueError):
        worst_case_accuracy(0.5, [], 0)


@given(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_worst_case_accuracy_lies_between_its_parts(current, minima):
    found = worst_case_accuracy(current, minima, len(minima) + 1)
    assert found is not None
    assert min(current, *minima) - 1e-12 <= found <= max(current, *minima) + 1e-12
    average = average_minimum_accuracy(minima)
    k = len(minima) + 1
    assert average is not None and found == pytest.approx(current / k + (1 - 1 / k) * average)


def test_the_peak_is_over_all_arms_and_steps():
    found = normalised_by_peak({"rl": [0.2, 0.4], "fst": [0.8, math.nan]})
    assert found == {"rl": [0.25, 0.5], "fst": [1.0, None]}
    assert normalised_by_peak({"rl": [0.0], "fst": []}) == {"rl": [None], "fst": []}
    assert normalised_by_peak({"rl": [math.nan]}) == {"rl": [None]}
    assert normalised_by_peak({}) == {}


@given(st.lists(st.floats(0.01, 1), min_size=1), st.floats(0.1, 10))
def test_normalised_values_know_no_unit(values, scale):
    found = normalised_by_peak({"a": values})["a"]
    assert max(v for v in found if v is not None) == 1
    scaled = normalised_by_peak({"a": [scale * v for v in values]})["a"]
    assert np.array(scaled, float) == pytest.approx(np.array(found, float))


def test_scores_are_plain_json():
    for found in (continual_scores(WORKED), stability_gap(STEPS, FALLS, 20, 40)):
        loaded = json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))
        assert loaded == dataclasses.asdict(found)
