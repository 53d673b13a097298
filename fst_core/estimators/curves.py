"""Numbers of one reward curve."""

import math
from collections.abc import Sequence

import numpy as np

NEGLIGIBLE = 1e-9
"""Size under which a reference is no denominator."""


def area_under(steps: Sequence[float], rewards: Sequence[float]) -> float | None:
    """Mean height of a reward curve: its trapezoid area divided by the steps it spans.

    Args:
        steps: of the evaluations, in any order.
        rewards: of the evaluations.
    Returns:
        In the unit of reward; None for fewer than two steps or a value that is not finite.
    Raises:
        ValueError: if steps and rewards differ in length.
    """
    points = sorted(zip(map(float, steps), map(float, rewards), strict=True))
    x, y = np.array(points).reshape(-1, 2).T
    if len(points) < 2 or not np.isfinite([x, y]).all() or x[-1] == x[0]:
        return None
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def ratio(value: float | None, reference: float | None) -> float | None:
    """value / reference; None where either is missing or the reference is about 0 (1e-9)."""
    if value is None or reference is None or abs(reference) < NEGLIGIBLE:
        return None
    return value / reference if math.isfinite(value) and math.isfinite(reference) else None


def leaves_zero(
    steps: Sequence[float], rewards: Sequence[float], threshold: float = 0.05, stay: int = 2
) -> float | None:
    """First step from which the reward is at least the threshold `stay` measurements in a row.

    The question of the paper's star-graph run (arXiv 2605.12484): when does reward leave zero for
    good? A step counts only if all `stay` measurements from it on were made: with fewer left, as
    at the last evaluation of a run, nothing confirms that the reward stays.

    Args:
        steps: of the evaluations, ascending.
        rewards: of the evaluations; NaN is not above any threshold.
        threshold: reward.
        stay: measurements in a row, the first included; at least 1.
    Returns:
        The step (the first one, if reward was never under the threshold), or None if it never is.
    Raises:
        ValueError: if steps and rewards differ in length, or stay is below 1.
    """
    if stay < 1:
        raise ValueError(f"stay must be at least 1, not {stay}")
    points = [(step, reward >= threshold) for step, reward in zip(steps, rewards, strict=True)]
    for first in range(len(points) - stay + 1):
        if all(above for _, above in points[first : first + stay]):
            return float(points[first][0])
    return None
