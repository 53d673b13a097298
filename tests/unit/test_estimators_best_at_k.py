import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fst_core.estimators.best_at_k import best_at_k, mean_at_k

MATRICES = arrays(
    float, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1, 1)
)


def test_two_right_answers_of_four():
    """pass@2 = 1 - C(2, 2) / C(4, 2) = 5/6; pass@3 is certain."""
    row = np.array([[1.0, 0.0, 0.0, 1.0]])
    values = [float(best_at_k(row, k)[0]) for k in (1, 2, 3, 4)]
    assert values == pytest.approx([0.5, 5 / 6, 1.0, 1.0])


def test_graded_rewards():
    """Pairs of .2, .4, .9 have maxima .4, .9, .9."""
    assert best_at_k(np.array([[0.9, 0.2, 0.4]]), 2) == pytest.approx([2.2 / 3])


@given(MATRICES, st.data())
def test_best_at_k_is_the_mean_over_every_subset(rewards_PS, data):
    k = data.draw(st.integers(1, rewards_PS.shape[1]))
    by_hand = [np.mean([max(c) for c in combinations(row, k)]) for row in rewards_PS]
    assert best_at_k(rewards_PS, k) == pytest.approx(by_hand, abs=1e-12)


@given(MATRICES)
def test_best_at_k_rises_from_the_mean_to_the_maximum(rewards_PS):
    samples = rewards_PS.shape[1]
    values = np.array([best_at_k(rewards_PS, k) for k in range(1, samples + 1)])
    assert (np.diff(values, axis=0) >= -1e-12).all()
    assert values[0] == pytest.approx(rewards_PS.mean(axis=1), abs=1e-12)
    assert values[0].mean() == pytest.approx(mean_at_k(rewards_PS), abs=1e-12)
    assert values[-1] == pytest.approx(rewards_PS.max(axis=1))


@given(MATRICES, st.floats(-2, 2), st.floats(0, 3), st.data())
def test_best_at_k_moves_with_the_rewards_and_not_with_their_order(matrix, shift, scale, data):
    k = data.draw(st.integers(1, matrix.shape[1]))
    order = data.draw(st.permutations(range(matrix.shape[1])))
    moved = best_at_k(scale * matrix[:, order] + shift, k)
    assert moved == pytest.approx(scale * best_at_k(matrix, k) + shift, abs=1e-9)


def test_many_samples_stay_exact():
    row = np.array([[1.0] + [0.0] * 1999])
    assert best_at_k(row, 1000) == pytest.approx([0.5])


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_must_lie_within_the_samples(k):
    with pytest.raises(ValueError, match="k from 1 to the 4 samples"):
        best_at_k(np.zeros((2, 4)), k)


def test_odd_input():
    assert best_at_k(np.empty((0, 3)), 2).shape == (0,)
    assert math.isnan(mean_at_k(np.empty((0, 3))))
    found = best_at_k(np.array([[math.nan, 1.0], [0.0, 1.0]]), 1)
    assert math.isnan(found[0]) and found[1] == 0.5
    with pytest.raises(ValueError, match="problems x samples"):
        best_at_k(np.zeros(4), 1)
    with pytest.raises(ValueError, match="the 0 samples"):
        best_at_k(np.empty((2, 0)), 1)
