import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fst_core.estimators.efficiency import (
    efficiency_ratio,
    first_reaching,
    running_max,
)

COSTS = st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=6)


def test_running_maximum():
    assert running_max([0.1, 0.3, 0.2, 0.4]) == [0.1, 0.3, 0.3, 0.4]
    assert running_max([]) == []
    assert running_max([0.2, math.nan, 0.1]) == [0.2, 0.2, 0.2]
    assert math.isnan(running_max([math.nan, 0.1])[0])


def test_the_first_evaluation_at_the_target():
    steps, rewards = [0, 5, 10, 15], [0.1, 0.4, 0.3, 0.5]
    assert first_reaching(steps, rewards, 0.35) == 5
    assert first_reaching(steps, rewards, 0.4 + 1e-12) == 5
    assert first_reaching(steps, rewards, 0.41) == 15
    assert first_reaching(steps, rewards, 0.51) is None
    assert first_reaching(steps, rewards, math.nan) is None
    assert first_reaching([0, 1], [math.nan, 0.5], 0.2) == 1
    assert first_reaching([0, math.nan], [0.1, 0.5], 0.2) is None
    assert first_reaching([], [], 0.2) is None
    with pytest.raises(ValueError):
        first_reaching([0, 1], [0.5], 0.2)


def test_geometric_mean_and_its_interval():
    """Ratios 2 and 8: mean 4; logs differ from it by log 2, t(.975; 1) = 12.706."""
    found = efficiency_ratio([20, 80], [10, 10], [100, 100])
    assert found.value == pytest.approx(4)
    assert (found.reached, found.of, found.bound, found.reason) == (2, 2, "", "")
    assert found.interval is not None and found.interval.over == "seeds"
    assert found.interval.low == pytest.approx(4 / 2**12.7062, rel=1e-4)
    assert found.interval.high == pytest.approx(4 * 2**12.7062, rel=1e-4)


def test_one_seed_has_a_value_and_no_interval():
    found = efficiency_ratio([30], [10], [100])
    assert found.value == pytest.approx(3) and found.interval is None


def test_a_seed_not_reached_makes_an_upper_bound():
    """Ratios 4 and below 50 / 200 = .25: the mean is at most 1."""
    found = efficiency_ratio([40, 50], [10, None], [200, 200])
    assert found.value == pytest.approx(1) and found.interval is None
    assert (found.bound, found.reached, found.of) == ("at most", 1, 2)
    assert found.reason.startswith("In 1 of 2 seeds the arm compared did not reach")


def test_never_reached_is_bounded_by_the_budgets():
    found = efficiency_ratio([50, 50], [None, None], [100, 400])
    assert found.value == pytest.approx(math.sqrt(0.5 * 0.125))
    assert (found.bound, found.reached) == ("at most", 0)


def test_rl_not_reaching_makes_a_lower_bound():
    found = efficiency_ratio([None, 40], [10, 10], [90, 90])
    assert found.value == pytest.approx(6) and found.bound == "at least"
    assert "rl did not reach" in found.reason


def test_a_seed_in_which_neither_reached_is_told():
    found = efficiency_ratio([20, None, 20], [10, None, 10], [90, 90, 90])
    assert found.value == pytest.approx(2) and found.bound == ""
    assert (found.reached, found.of) == (2, 3)
    assert found.reason == "In 1 of 3 seeds neither arm reached the target."


@pytest.mark.parametrize(
    ("rl", "other", "budget", "reason"),
    [
        ([], [], [], "There are no paired seeds."),
        ([None], [None], [9], "In 1 of 1 seeds neither arm reached the target."),
        ([None, 5], [5, None], [9, 9], "In 1 of 2 seeds the arm compared"),
        ([0], [5], [9], "In a seed a cost or the budget is 0"),
        ([5], [0], [9], "In a seed a cost or the budget is 0"),
        ([5], [None], [0], "In a seed a cost or the budget is 0"),
        ([math.nan], [5], [9], "not a finite number"),
        ([5], [None], [math.inf], "not a finite number"),
    ],
)
def test_no_value_has_a_reason(rl, other, budget, reason):
    found = efficiency_ratio(rl, other, budget)
    assert found.value is None and found.interval is None and found.bound == ""
    assert reason in found.reason and found.of == len(rl)


def test_seeds_must_be_paired():
    with pytest.raises(ValueError):
        efficiency_ratio([1, 2], [1], [9, 9])


@given(COSTS, st.floats(0.1, 10), st.randoms())
def test_a_ratio_knows_no_units_and_no_order_of_seeds(costs, scale, rnd):
    budget = [100.0] * len(costs)
    found = efficiency_ratio([a for a, _ in costs], [b for _, b in costs], budget)
    shuffled = rnd.sample(costs, len(costs))
    same = efficiency_ratio(
        [scale * a for a, _ in shuffled], [scale * b for _, b in shuffled], budget
    )
    assert same.value == pytest.approx(found.value)
    swapped = efficiency_ratio([b for _, b in costs], [a for a, _ in costs], budget)
    assert found.value is not None and swapped.value == pytest.approx(1 / found.value)
    if found.interval is not None:
        assert found.interval.low <= found.value * (1 + 1e-9)
        assert found.value <= found.interval.high * (1 + 1e-9)


@given(COSTS, st.data())
def test_a_bound_holds_for_whatever_was_not_seen(costs, data):
    """Hide the other arm's seeds that cost more than a budget: the bound is above the truth."""
    limit = data.draw(st.floats(1, 100))
    rl, other = [a for a, _ in costs], [b for _, b in costs]
    seen = [b if b <= limit else None for b in other]
    truth, found = (efficiency_ratio(rl, x, [limit] * len(rl)) for x in (other, seen))
    assert truth.value is not None and found.value is not None
    assert found.value >= truth.value * (1 - 1e-9)
    assert (found.bound == "at most") == (None in seen)


def test_a_ratio_is_plain_json():
    found = dataclasses.asdict(efficiency_ratio([20, 80], [10, 10], [100, 100]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
