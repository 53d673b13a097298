import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fst_core.estimators.curves import area_under, leaves_zero, ratio

REWARDS = st.lists(st.floats(0, 1), min_size=2, max_size=10)


def test_area_by_hand():
    """From 0 to 10 at mean .25, from 10 to 30 at mean .75: (2.5 + 15) / 30."""
    assert area_under([0, 10, 30], [0, 0.5, 1.0]) == pytest.approx(17.5 / 30)
    assert area_under([30, 0, 10], [1.0, 0, 0.5]) == pytest.approx(17.5 / 30)


def test_curves_without_an_area():
    assert area_under([], []) is None
    assert area_under([0], [0.5]) is None
    assert area_under([5, 5], [0.5, 0.6]) is None
    assert area_under([0, 1], [0.5, math.nan]) is None
    assert area_under([0, math.inf], [0.5, 0.5]) is None
    with pytest.raises(ValueError):
        area_under([0, 1], [0.5])


@given(REWARDS, st.floats(0.1, 10), st.floats(-5, 5), st.floats(-1, 1))
def test_an_area_is_a_height(rewards, stretch, start, shift):
    steps = list(range(len(rewards)))
    found = area_under(steps, rewards)
    assert found is not None and min(rewards) - 1e-9 <= found <= max(rewards) + 1e-9
    moved = area_under([stretch * s + start for s in steps], [r + shift for r in rewards])
    assert moved == pytest.approx(found + shift, abs=1e-6)


def test_ratios_and_what_has_none():
    assert ratio(0.3, 0.6) == pytest.approx(0.5)
    assert ratio(0.3, -0.6) == pytest.approx(-0.5)
    for value, reference in [(0.3, 0.0), (0.3, 1e-12), (None, 0.5), (0.5, None)]:
        assert ratio(value, reference) is None
    for value, reference in [(math.nan, 0.5), (0.5, math.nan), (0.5, math.inf)]:
        assert ratio(value, reference) is None


def test_leaving_zero_for_two_measurements():
    steps = [0, 10, 20, 30, 40]
    assert leaves_zero(steps, [0, 0.1, 0.0, 0.05, 0.2]) == 30
    assert leaves_zero(steps, [0, 0, 0, 0, 0.1]) is None  # no next one confirms the last
    assert leaves_zero(steps, [0, 0, 0, 0, 0.1], stay=1) == 40
    assert leaves_zero(steps, [0, 0.1, 0, 0.04, 0]) is None
    assert leaves_zero(steps, [0.2] * 5) == 0
    assert leaves_zero(steps, [0, 0.1, 0, 0, 0], stay=1) == 10
    assert leaves_zero(steps, [0, 0.1, 0.1, 0, 0.1], stay=3) is None
    assert leaves_zero(steps, [0, 0.1, 0.1, 0.1, 0], stay=3) == 10
    assert leaves_zero(steps, [0, 0.2, 0.3, 0.3, 0.3], threshold=0.25) == 20


def test_leaving_zero_on_odd_input():
    assert leaves_zero([], []) is None
    assert leaves_zero([0, 1], [0.5, 0.5], stay=4) is None  # never so many in a row
    assert leaves_zero([0], [0.5]) is None and leaves_zero([0], [0.5], stay=1) == 0
    assert leaves_zero([0, 1, 2, 3], [0.5, math.nan, 0.5, 0.5]) == 2
    with pytest.raises(ValueError, match="stay"):
        leaves_zero([0], [0.5], stay=0)
    with pytest.raises(ValueError):
        leaves_zero([0, 1], [0.5])


@given(REWARDS, st.floats(0, 1), st.integers(1, 4))
def test_a_higher_threshold_or_a_longer_stay_is_met_no_sooner(rewards, threshold, stay):
    steps = list(range(len(rewards)))
    found = leaves_zero(steps, rewards, threshold, stay)
    later = leaves_zero(steps, rewards, threshold + 0.1, stay)
    longer = leaves_zero(steps, rewards, threshold, stay + 1)
    for other in (later, longer):
        assert other is None or (found is not None and found <= other)
