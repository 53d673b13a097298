"""Numbers over seeds as a summary holds them: plain floats, null where missing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fst_core.estimators.bootstrap import t_interval

Json = dict[str, Any]
Range = tuple[float, float]
"""Lowest and highest value that a quantity can take."""

CONFIDENCE = 0.95
FEWEST_SEEDS = 3
"""Fewest seeds whose interval is shown: over two it is 12.7 standard errors to each side."""
NEGLIGIBLE = 1e-9
"""Spread or difference that is rounding."""

UNBOUNDED: Range = (-math.inf, math.inf)
NOT_NEGATIVE: Range = (0.0, math.inf)
REWARD: Range = (0.0, 1.0)
"""Every judge's: a rollout whose reward lies outside ends its run."""
DIFFERENCE: Range = (-1.0, 1.0)
"""Of two rewards, or of two means of rewards."""
DOUBLE_DIFFERENCE: Range = (-2.0, 2.0)
"""Of two differences of rewards."""


def number(value: Any) -> float | None:
    """A finite float, or None."""
    if value is None or pd.isna(value) or not math.isfinite(value):
        return None
    return float(value)


def interval(values: Sequence[float], within: Range = UNBOUNDED) -> list[float] | None:
    """Two-sided 95% t-interval of the mean over independent values; None for fewer than two.

    A mean lies where its values can lie, so the interval is cut at that range: the parts cut off
    hold no possible value, and the coverage stays what it was.
    """
    found = t_interval(values, CONFIDENCE)
    if found is None:
        return None
    low, high = within
    return [min(max(low, found.low), high), max(min(high, found.high), low)]


def statistic(by_seed: Mapping[int, Any], within: Range = UNBOUNDED) -> Json:
    """Mean over the seeds that have a value, its interval, and the values by seed.

    Args:
        by_seed: one value a seed; None or NaN where it has none.
        within: the range the value is bound to by what it is; its interval is cut there.
    """
    known = {str(seed): number(value) for seed, value in by_seed.items()}
    values = [value for value in known.values() if value is not None]
    mean = sum(values) / len(values) if values else None
    return {"mean": mean, "interval": interval(values, within), "n": len(values), "seeds": known}


def without_spread(bounds: Sequence[float] | None) -> bool:
    """Whether an interval has no width: all values were the same, which tells no uncertainty."""
    return bounds is not None and bounds[1] - bounds[0] <= NEGLIGIBLE
