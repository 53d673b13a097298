"""What reaching a target reward costs, and the ratio of two arms' costs over paired seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fst_core.estimators.bootstrap import Interval, t_interval

TOLERANCE = 1e-9
"""Reward by which a target may be missed: means of the same numbers differ by rounding."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times less (above 1) or more (below 1) an arm needs than the rl arm."""

    value: float | None
    """Geometric mean over seeds of rl / other; a bound of it where `bound` is not empty."""
    interval: Interval | None
    reached: int
    """Seeds in which the other arm reached the target."""
    of: int
    """Paired seeds."""
    bound: str
    """ "" (a value), "at most" or "at least"."""
    reason: str
    """What was not reached, or why there is no value; empty where every seed reached."""


def running_max(values: Sequence[float]) -> list[float]:
    """Highest value so far, at every place; NaN is passed over (and stays where it leads)."""
    return [float(value) for value in np.fmax.accumulate(np.asarray(values, dtype=float))]


def first_reaching(x: Sequence[float], rewards: Sequence[float], target: float) -> float | None:
    """x at the first evaluation whose reward is at least the target; no interpolation.

    Args:
        x: steps, rollouts or tokens at the evaluations, in order.
        rewards: of the evaluations; NaN reaches nothing.
        target: reward, reached within 1e-9.
    Returns:
        None where the target is never reached, or x is not finite there.
    Raises:
        ValueError: if x and rewards differ in length.
    """
    for place, reward in list(zip(x, rewards, strict=True)):
        if reward >= target - TOLERANCE:
            return float(place) if math.isfinite(place) else None
    return None


def efficiency_ratio(
    rl: Sequence[float | None], other: Sequence[float | None], budget: Sequence[float]
) -> Ratio:
    """Geometric mean over paired seeds of rl_x / other_x, x what the target cost.

    A seed in which one arm did not reach the target is censored at the budget. If only rl reached,
    other_x > budget, so the ratio is below rl_x / budget: the seed enters with that number, and
    the mean is an upper bound ("at most"). If only the other arm reached, the ratio is above
    budget / other_x, and the mean is a lower bound ("at least"). Where both kinds occur, or neither
    arm reached in any seed, there is no value. A seed in which neither reached bounds nothing: the
    value is then one of the other seeds, `reason` says so, and `of` counts it. No interval goes
    with a bound: censored seeds are not missing at random, and an interval over the others would
    claim what they do not show.

    Args:
        rl: x at which the rl arm reached the target, per seed; None if it did not.
        other: the same of the arm compared, in the same order of seeds.
        budget: x each seed's pair was given in all.
    Returns:
        The ratio; its interval is Student's t over seeds on log ratios, None under two of them.
    Raises:
        ValueError: if the sequences differ in length.
    """
    seeds = list(zip(rl, other, budget, strict=True))
    reached = sum(theirs is not None for _, theirs, _ in seeds)
    unusable = _unusable(seeds)
    kinds = [_censoring(mine, theirs) for mine, theirs, _ in seeds]
    bounds = sorted(set(kinds) & {"at most", "at least"})
    if unusable or len(bounds) > 1 or all(kind == "neither" for kind in kinds):
        reason = unusable or _told(kinds)
        return Ratio(None, None, reached, len(seeds), "", reason or "There are no paired seeds.")
    logs = [
        math.log((b if mine is None else mine) / (b if theirs is None else theirs))
        for mine, theirs, b in seeds
        if mine is not None or theirs is not None
    ]
    interval = None if bounds else _exponential(t_interval(logs))
    bound = bounds[0] if bounds else ""
    value = math.exp(sum(logs) / len(logs))
    return Ratio(value, interval, reached, len(seeds), bound, _told(kinds))


def _unusable(seeds: Sequence[tuple[float | None, float | None, float]]) -> str:
    """Why logarithms of these ratios do not exist; empty if they do."""
    for mine, theirs, budget in seeds:
        used = [budget if x is None else x for x in (mine, theirs)]
        if mine is None and theirs is None:
            continue
        if not all(map(math.isfinite, used)):
            return "A cost or budget is not a finite number."
        if min(used) <= 0:
            return "In a seed a cost or the budget is 0, so the ratio is undefined."
    return ""


def _censoring(mine: float | None, theirs: float | None) -> str:
    if mine is None and theirs is None:
        return "neither"
    if theirs is None:
        return "at most"
    return "at least" if mine is None else ""


def _told(kinds: Sequence[str]) -> str:
    """One sentence on the seeds that did not reach the target."""
    parts = [
        f"{kinds.count(kind)} of {len(kinds)} seeds {who}"
        for kind, who in (
            ("at most", "the arm compared did not reach the target within its budget"),
            ("at least", "rl did not reach the target within its budget"),
            ("neither", "neither arm reached the target"),
        )
        if kind in kinds
    ]
    return f"In {' and in '.join(parts)}." if parts else ""


def _exponential(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    low, high = math.exp(interval.low), math.exp(interval.high)
    return Interval(low, high, interval.over, interval.level)
