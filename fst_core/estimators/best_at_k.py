"""mean@k and best@k of a reward matrix: what one sample, and the best of k samples, are worth."""

import math

import numpy as np


def mean_at_k(rewards_PS: np.ndarray) -> float:
    """Mean reward over problems and samples [P, S] (mean@S); NaN where there is none."""
    rewards_PS = np.asarray(rewards_PS, dtype=float)
    return float(rewards_PS.mean()) if rewards_PS.size else math.nan


def best_at_k(rewards_PS: np.ndarray, k: int) -> np.ndarray:
    """Expected best reward of k samples drawn without replacement from a problem's S, unbiased.

    With r_(1) <= ... <= r_(S) the sorted rewards of a problem, r_(i) is the best of
    C(i - 1, k - 1) of the C(S, k) subsets: best@k = sum_i r_(i) C(i - 1, k - 1) / C(S, k).
    For rewards of 0 and 1 this is pass@k of Chen et al. 2021 (arXiv 2107.03374, equation 1).

    Args:
        rewards_PS: P problems x S samples; higher is better.
        k: number of samples drawn, 1 (the mean) to S (the maximum).
    Returns:
        One value per problem [P]; NaN for a problem with a reward that is NaN.
    Raises:
        ValueError: if k is not in 1..S, or the rewards are not a matrix.
    """
    rewards_PS = np.asarray(rewards_PS, dtype=float)
    if rewards_PS.ndim != 2:
        raise ValueError(f"a reward matrix is problems x samples, not of shape {rewards_PS.shape}")
    samples = rewards_PS.shape[1]
    if not 1 <= k <= samples:
        raise ValueError(f"best@k needs k from 1 to the {samples} samples of a problem, not {k}")
    subsets = math.comb(samples, k)
    # the best of k is never among the k - 1 lowest, so those carry no weight
    weights = [math.comb(i - 1, k - 1) / subsets for i in range(k, samples + 1)]
    return np.sort(rewards_PS, axis=1)[:, k - 1 :] @ np.array(weights)
