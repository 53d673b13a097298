import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fst_core.estimators.asymptote import AsymptoteFit, fit_asymptote, sigmoid

TRUTH = {"A": 0.8, "B": 2.0, "C_mid": 20.0, "R0": 0.1}
COMPUTE = np.linspace(0, 100, 16)


def noisy(rng: np.random.Generator, sd: float, **changed: float) -> np.ndarray:
    curve = sigmoid(COMPUTE, **{**TRUTH, **changed})
    return np.clip(curve + rng.normal(0, sd, len(curve)), 0, 1)


def test_the_curve_by_hand():
    """At C_mid half the rise: .45; at 2 C_mid 1 / (1 + 1/4) of it: .1 + .7 * .8."""
    assert sigmoid([0, 20, 40], **TRUTH) == pytest.approx([0.1, 0.45, 0.66])


@pytest.mark.parametrize("r0", [None, 0.1])
def test_an_exact_curve_is_recovered(r0):
    fit = fit_asymptote(COMPUTE.tolist(), sigmoid(COMPUTE, **TRUTH).tolist(), r0)
    assert fit.identifiable and fit.reason == ""
    assert (fit.A, fit.B, fit.C_mid) == pytest.approx((0.8, 2.0, 20.0), rel=1e-3)
    assert (fit.R0, fit.r2) == pytest.approx((0.1, 1), abs=1e-3)
    assert fit.interval is not None and fit.interval.high - fit.interval.low < 0.01


@pytest.mark.parametrize(("r0", "top"), [(None, 0.8), (0.1, 0.8), (0.1, 0.98)])
def test_the_interval_holds_the_true_asymptote(r0, top):
    """At 100 draws the standard error of .95 is .022."""
    rng = np.random.default_rng(5)
    fits = [fit_asymptote(COMPUTE, noisy(rng, 0.02, A=top), r0) for _ in range(100)]
    assert all(fit.identifiable for fit in fits)
    intervals = [fit.interval for fit in fits if fit.interval is not None]
    assert 0.88 <= np.mean([i.low <= top <= i.high for i in intervals]) <= 1
    assert np.mean([fit.A for fit in fits]) == pytest.approx(top, abs=0.01)
    assert np.mean([i.high - i.low for i in intervals]) < 0.12
    assert {i.over for i in intervals} == {"measurements"}


@pytest.mark.parametrize("r0", [None, 0.3])
def test_flat_and_falling_curves_are_refused(r0):
    rng = np.random.default_rng(2)
    for _ in range(25):
        fit = fit_asymptote(COMPUTE, 0.3 + rng.normal(0, 0.04, len(COMPUTE)), r0)
        assert (
            not fit.identifiable
            and fit.reason == "A rise cannot be told from noise with 16 measurements."
        )
    falling = fit_asymptote(COMPUTE, np.linspace(0.4, 0.1, len(COMPUTE)), r0)
    assert not falling.identifiable and "A rise cannot be told from noise" in falling.reason
    still = fit_asymptote(COMPUTE, [0.3] * len(COMPUTE), r0)
    assert not still.identifiable and still.reason == "Reward does not change."


def test_a_plateau_from_the_first_step_on_is_its_asymptote():
    for r0 in (None, 0.0):
        fit = fit_asymptote(range(8), [0, 0.7, 0.72, 0.7, 0.71, 0.69, 0.7, 0.71], r0)
        assert fit.identifiable and fit.A is not None and abs(fit.A - 0.704) < 0.01


def test_a_rise_without_saturation_is_refused():
    curve = sigmoid(COMPUTE, A=0.9, B=2, C_mid=300, R0=0.05)
    exact = fit_asymptote(COMPUTE, curve, r0=0.05)
    assert not exact.identifiable and exact.reason.startswith("No saturation is visible")
    assert exact.C_mid is not None and exact.C_mid > 100
    rng = np.random.default_rng(4)
    straight = np.linspace(0.05, 0.4, len(COMPUTE)) + rng.normal(0, 0.02, len(COMPUTE))
    assert not fit_asymptote(COMPUTE, straight).identifiable


def test_a_wide_interval_is_refused():
    rng = np.random.default_rng(0)
    slow = sigmoid(COMPUTE, A=0.6, B=0.8, C_mid=60, R0=0)
    fit = fit_asymptote(COMPUTE, np.clip(slow + rng.normal(0, 0.02, 16), 0, 1), r0=0)
    assert not fit.identifiable and fit.interval is not None
    assert fit.interval.high - fit.interval.low > 0.5
    assert "is wider than 0.5" in fit.reason


def test_a_plateau_at_the_bound_is_known_only_if_it_was_seen():
    seen = fit_asymptote(COMPUTE, sigmoid(COMPUTE, A=1, B=3, C_mid=10, R0=0), r0=0)
    assert seen.identifiable and seen.A is not None and seen.A > 0.99
    rng = np.random.default_rng(1)
    unseen = sigmoid(COMPUTE, A=0.9, B=1.1, C_mid=35, R0=0) + rng.normal(0, 0.02, 16)
    fit = fit_asymptote(COMPUTE, np.clip(unseen, 0, 1), r0=0)
    assert fit.interval is not None and fit.interval.high == 1
    assert not fit.identifiable and fit.reason.startswith("Only the bound 1")


NOWHERE = (None,) * 6
GOOD_C, GOOD_R = [0, 1, 2, 3, 4, 5], [0, 0.1, 0.3, 0.5, 0.6, 0.6]


@pytest.mark.parametrize(
    ("compute", "reward", "r0", "reason"),
    [
        ([], [], None, "0 measured points are fewer than 5."),
        ([0, 1, 2, 3], [0, 0.1, 0.3, 0.4], None, "4 measured points are fewer than 5."),
        ([0, 1, 1, 1, 1, 1], GOOD_R, None, "2 measured points are fewer than 5."),
        (GOOD_C, [0, math.nan, 0.3, 0.5, 0.6, 0.6], None, "not a finite number"),
        ([0, 1, 2, 3, 4, math.inf], GOOD_R, None, "not a finite number"),
        ([-1, 1, 2, 3, 4, 5], GOOD_R, None, "Compute is negative."),
        (GOOD_C, [0, 0.1, 0.3, 0.5, 0.6, 1.6], None, "outside [0, 1]"),
        (GOOD_C, GOOD_R, 1.0, "R0 = 1 lies outside [0, 1)."),
        (GOOD_C, GOOD_R, math.nan, "R0 = nan lies outside [0, 1)."),
    ],
)
def test_what_cannot_be_fitted_has_a_reason(compute, reward, r0, reason):
    fit = fit_asymptote(compute, reward, r0)
    assert reason in fit.reason
    assert fit == AsymptoteFit(*NOWHERE, identifiable=False, reason=fit.reason)


def test_compute_and_reward_must_be_paired():
    with pytest.raises(ValueError, match="6 computes and 5 rewards"):
        fit_asymptote(GOOD_C, GOOD_R[:5])


@settings(max_examples=15, deadline=None)
@given(st.floats(0.001, 1000), st.randoms())
def test_the_asymptote_knows_no_unit_of_compute_and_no_order(scale, rnd):
    rewards = noisy(np.random.default_rng(9), 0.02)
    order = rnd.sample(range(len(COMPUTE)), len(COMPUTE))
    fit = fit_asymptote(COMPUTE, rewards)
    same = fit_asymptote(scale * COMPUTE[order], rewards[order])
    assert fit.C_mid is not None and fit.A is not None and fit.B is not None
    expected = (fit.A, fit.B, scale * fit.C_mid)
    assert (same.A, same.B, same.C_mid) == pytest.approx(expected, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=5, max_size=9), st.sampled_from([None, 0.0, 0.4]))
def test_any_rewards_give_an_answer_within_bounds(rewards, r0):
    fit = fit_asymptote(list(range(len(rewards))), rewards, r0)
    assert json.dumps(dataclasses.asdict(fit), allow_nan=False)
    assert fit.identifiable == (fit.reason == "")
    assert fit.A is not None and fit.R0 is not None
    assert fit.R0 - 1e-9 <= fit.A <= 1
    if fit.interval is not None:
        assert fit.interval.low - 1e-3 <= fit.A <= fit.interval.high + 1e-3
