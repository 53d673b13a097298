import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fst_core.estimators.divergence import (
    MatchedReward,
    entropy,
    exact_kl,
    k1,
    k3,
    kl_at_matched_reward,
)

P, Q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.5, 0.25])
LOGITS = arrays(float, (2, 4), elements=st.floats(-5, 5))


def log(p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(p)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_exact_kl_of_two_small_models():
    """.5 log(.5 / .25) + .5 log(.5 / .5) + 0 = .5 log 2; the other way q is where p is not."""
    assert exact_kl(log(P), log(Q)) == pytest.approx(0.5 * math.log(2))
    assert exact_kl(log(Q), log(P)) == math.inf
    both = exact_kl(log(np.stack([P, Q])), log(np.stack([Q, Q])))
    assert both == pytest.approx([0.5 * math.log(2), 0])


def test_exact_kl_both_ways():
    p, q = log(np.array([0.9, 0.1])), log(np.array([0.5, 0.5]))
    assert exact_kl(p, q) == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))
    assert exact_kl(q, p) == pytest.approx(0.5 * math.log(5 / 9) + 0.5 * math.log(5))


def test_entropy_from_certain_to_uniform():
    assert entropy(log(np.array([1.0, 0.0]))) == 0
    assert entropy(log(np.full(8, 1 / 8))) == pytest.approx(math.log(8))
    assert entropy(log(P)) == pytest.approx(math.log(2))


def test_estimators_of_one_difference():
    """d = log 2: k1 = .6931, k3 = 1/2 - 1 + log 2 = .1931; d = -log 2: k3 = 2 - 1 - log 2."""
    assert k1([math.log(2)]) == pytest.approx(0.693147, abs=1e-6)
    assert k3([math.log(2)]) == pytest.approx(0.193147, abs=1e-6)
    assert k3([-math.log(2)]) == pytest.approx(0.306853, abs=1e-6)


def test_estimators_converge_to_the_exact_kl():
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.4, 0.4, 0.2])
    tokens = np.random.default_rng(0).choice(3, size=200_000, p=p)
    differences = np.log(p / q)[tokens]
    exact = float(exact_kl(np.log(p), np.log(q)))
    assert exact == pytest.approx(0.6 * math.log(1.5) + 0.3 * math.log(0.75) + 0.1 * math.log(0.5))
    assert k1(differences) == pytest.approx(exact, abs=0.005)
    assert k3(differences) == pytest.approx(exact, abs=0.002)


def test_estimators_of_nothing_and_of_not_a_number():
    assert math.isnan(k1([])) and math.isnan(k3([]))
    assert math.isnan(k1([math.nan])) and math.isnan(k3([math.nan, 0.0]))
    assert k3([-1000.0]) == math.inf


@given(LOGITS, LOGITS)
def test_divergences_are_never_negative_and_entropy_is_bounded(first, second):
    logp, logq = log_softmax(first), log_softmax(second)
    assert (exact_kl(logp, logq) >= -1e-12).all()
    assert exact_kl(logp, logp) == pytest.approx([0, 0], abs=1e-12)
    assert k3(logp - logq) >= -1e-12
    assert (entropy(logp) >= -1e-12).all() and (entropy(logp) <= math.log(4) + 1e-12).all()
    cross = -(np.exp(logp) * logq).sum(axis=-1)
    assert exact_kl(logp, logq) == pytest.approx(cross - entropy(logp), abs=1e-9)


def test_half_the_kl_at_every_reward():
    found = kl_at_matched_reward([0, 0.4, 0.8], [0, 0.1, 0.2], [0, 0.2, 0.8], [0, 0.1, 0.4])
    assert (found.defined, found.reason, found.points) == (True, "", 50)
    assert (found.low, found.high) == (0, 0.8)
    assert found.saved == pytest.approx(0.5)
    assert found.kl_a is not None and found.kl_b == pytest.approx(2 * found.kl_a)


def test_levels_lie_over_both_starts_and_under_both_maxima():
    """Levels .4 and .6. a: KL .1 and .2. b, which is at .2 with KL 0: .2 / .6 and .4 / .6."""
    found = kl_at_matched_reward([0.2, 0.4, 0.6], [0, 0.1, 0.2], [0.1, 0.2, 0.8], [0, 0, 1], 2)
    assert (found.low, found.high) == (0.2, 0.6)
    assert found.saved == pytest.approx(1 - (0.3 + 0.3) / 2)
    assert found.kl_a == pytest.approx(0.15) and found.kl_b == pytest.approx(0.5)


def test_a_level_is_reached_when_the_running_maximum_first_does():
    """a peaks at .5 with KL .1, falls, and passes .5 only between KL .3 and .5: .6 is at .4."""
    rewards, kls = [0, 0.5, 0.2, 0.4, 0.7], [0, 0.1, 0.2, 0.3, 0.5]
    found = kl_at_matched_reward(rewards, kls, [0, 0.6], [0, 1.0], points=1)
    assert found.kl_a == pytest.approx(0.4) and found.kl_b == pytest.approx(1.0)
    assert found.saved == pytest.approx(0.6)


def test_an_arm_may_reach_a_level_for_nothing_or_drift_further():
    free = kl_at_matched_reward([0, 1], [0, 0], [0, 1], [0, 1])
    worse = kl_at_matched_reward([0, 1], [0, 3], [0, 1], [0, 1])
    assert free.saved == pytest.approx(1) and worse.saved == pytest.approx(-2)


CURVE = ([0.0, 0.5], [0.0, 0.1])


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (([0, 0.1], [0, 1]), ([0.2, 0.9], [0, 1]), "No reward above both starts"),
        (([0.5, 0.4], [0, 1]), CURVE, "the first goes from 0.5 to at most 0.5"),
        (([0.1], [0.0]), CURVE, "The first arm has fewer than two evaluations (1)."),
        (CURVE, ([], []), "The second arm has fewer than two evaluations (0)."),
        (([0, math.nan], [0, 1]), CURVE, "1 of 2 evaluations of the first arm"),
        (CURVE, ([0, 1], [None, math.inf]), "2 of 2 evaluations of the second arm"),
        (CURVE, ([0, 0.5], [0, 0]), "The second arm's KL is about 0 or negative at reward"),
        (CURVE, ([0, 0.5], [0, -0.2]), "The second arm's KL is about 0 or negative at reward 0.5"),
    ],
)
def test_undefined_with_a_reason(a, b, reason):
    found = kl_at_matched_reward(*a, *b)
    assert not found.defined and found.saved is None
    assert reason in found.reason and found.reason.endswith(".")


def test_curves_that_do_not_pair_are_errors():
    with pytest.raises(ValueError, match="2 rewards and 1 KLs"):
        kl_at_matched_reward([0, 1], [0], *CURVE)
    with pytest.raises(ValueError, match="points"):
        kl_at_matched_reward(*CURVE, *CURVE, points=0)


RISES = st.lists(st.floats(0.01, 0.3), min_size=1, max_size=5)


def made_curve(rises: list[float], kls: list[float]) -> tuple[list[float], list[float]]:
    rewards = np.concatenate([[0.0], np.cumsum(rises)])
    return rewards.tolist(), np.concatenate([[0.0], np.cumsum(kls)])[: len(rewards)].tolist()


@given(RISES, RISES, st.floats(0.1, 10), st.floats(-1, 1), st.floats(0.1, 10))
def test_matched_reward_knows_no_units(first, second, kl_scale, shift, reward_scale):
    a, b = made_curve(first, [0.1] * 5), made_curve(second, [0.2] * 5)

    def moved(curve: tuple[list[float], list[float]]) -> tuple[list[float], list[float]]:
        rewards, kls = curve
        return [reward_scale * r + shift for r in rewards], [kl_scale * k for k in kls]

    found, same = kl_at_matched_reward(*a, *b), kl_at_matched_reward(*moved(a), *moved(b))
    assert found.defined and same.defined
    assert same.saved == pytest.approx(found.saved, abs=1e-6)
    assert kl_at_matched_reward(*a, *a).saved == pytest.approx(0, abs=1e-9)
    assert found.saved is not None and found.saved < 1


def test_a_comparison_is_plain_json():
    found = kl_at_matched_reward(*CURVE, *CURVE)
    loaded = json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))
    assert MatchedReward(**loaded) == found
