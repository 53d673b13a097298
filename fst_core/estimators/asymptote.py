"""Where a reward curve is heading: the asymptote of a sigmoid in compute, or that it is unknown."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import brentq, least_squares
from scipy.special import expit
from scipy.stats import f as f_distribution

from fst_core.estimators.bootstrap import Interval

LEVEL = 0.95
WIDEST = 0.5
"""Width of A's interval above which A counts as unknown; rewards span 1."""
FLAT = 0.001
"""Chance of so good a fit if reward did not rise at all, above which the curve counts as flat."""
NEAR_CEILING = 0.1
"""Reward from 1 within which a plateau may be set by the bound A <= 1: the data show it then."""
FEWEST = 5
"""Measurements under which four parameters are not fitted."""
B_RANGE = (0.2, 12.0)
"""Exponents allowed: below, the curve is no sigmoid on any real range; above, it is a step."""
SMALLEST = 1e-12
"""Residual (reward squared, per measurement) that counts as none."""


@dataclass(frozen=True, slots=True)
class AsymptoteFit:
    """R - R0 = (A - R0) / (1 + (C_mid / C)^B); None where nothing could be fitted."""

    A: float | None
    """Reward at unlimited compute. Not to be quoted unless `identifiable`."""
    B: float | None
    """Exponent: how sudden the rise is."""
    C_mid: float | None
    """Compute at which half the rise is done, in the unit of compute."""
    R0: float | None
    """Reward without compute: given, or fitted."""
    interval: Interval | None
    """On A, at 95%, over measurements."""
    r2: float | None
    """Share of the rewards' variance that the curve explains."""
    identifiable: bool
    """Whether the data say where A is."""
    reason: str
    """Why not, one sentence; empty if identifiable."""


@dataclass(frozen=True, slots=True)
class _Data:
    """What is fitted. Rewards are in [0, 1]; compute is positive somewhere."""

    log_compute: np.ndarray
    reward: np.ndarray
    r0: float | None

    @property
    def free(self) -> int:
        return 3 if self.r0 is not None else 4

    @property
    def lowest(self) -> float:
        """Lower bound of A."""
        return self.r0 or 0.0

    @property
    def log_range(self) -> tuple[float, float]:
        """Bounds of log C_mid: a hundredth of the least compute to a hundred times the most."""
        positive = self.log_compute[np.isfinite(self.log_compute)]
        return float(positive.min()) - math.log(100), float(positive.max()) + math.log(100)


def sigmoid(
    compute: Sequence[float] | np.ndarray, A: float, B: float, C_mid: float, R0: float
) -> np.ndarray:
    """R0 + (A - R0) / (1 + (C_mid / C)^B) at each compute C >= 0; R0 at 0 (arXiv 2605.12484)."""
    with np.errstate(divide="ignore"):
        log_compute = np.log(np.asarray(compute, dtype=float))
    return R0 + (A - R0) * expit(B * (log_compute - math.log(C_mid)))


def fit_asymptote(
    compute: Sequence[float], reward: Sequence[float], r0: float | None = None
) -> AsymptoteFit:
    """Least squares of the paper's saturation curve, with R0 <= A <= 1, and whether A is known.

    Starts from a fixed grid of (C_mid, B), so the same data give the same fit. The interval on A is
    the set of values whose best fit is not rejected by an F test against the best of all
    (profile likelihood): A is strongly correlated with C_mid and B and bounded by 1, where the
    symmetric interval of the delta method is wrong. It holds for independent errors of equal size;
    evaluations of one run on the same problems have correlated errors, and their interval is too
    narrow.

    A is not identifiable where the rise is not significant against a flat line (F test at .001, on
    the safe side since the curve is not linear), the half-way point lies beyond the data, the
    interval is wider than .5, or its upper end is the bound 1 while no reward came within .1 of it.

    Args:
        compute: of the measurements, in any unit (steps, rollouts); not negative.
        reward: at the measurements, in [0, 1].
        r0: reward without compute, if known, in [0, 1); by default it is a fourth parameter.
    Returns:
        The fit. Where A is not identifiable the parameters of the best curve are kept for drawing;
        they are None where there was nothing to fit.
    Raises:
        ValueError: if compute and reward differ in length.
    """
    if len(compute) != len(reward):
        raise ValueError(f"{len(compute)} computes and {len(reward)} rewards cannot be paired")
    c, r = np.array(compute, dtype=float), np.array(reward, dtype=float)
    if reason := _unusable(c, r, r0):
        return AsymptoteFit(None, None, None, None, None, None, False, reason)
    with np.errstate(divide="ignore"):
        data = _Data(np.log(c), r, r0)
    best = _best_fit(data)
    rss = _rss(data, best)
    A, B, log_mid, R0 = _parameters(data, best)
    spread = float(((r - r.mean()) ** 2).sum())
    if reason := _flat(data, rss, spread):
        r2 = 1 - rss / spread if spread > 0 else None
        return AsymptoteFit(A, B, math.exp(log_mid), R0, None, r2, False, reason)
    interval = _profile_interval(data, best, rss)
    reason = _unknown(data, log_mid, interval)
    r2 = 1 - rss / spread
    return AsymptoteFit(A, B, math.exp(log_mid), R0, interval, r2, not reason, reason)


def _unusable(compute: np.ndarray, reward: np.ndarray, r0: float | None) -> str:
    if not (np.isfinite(compute).all() and np.isfinite(reward).all()):
        return "A compute or a reward is not a finite number."
    if (points := len(np.unique(compute))) < FEWEST:
        told = "1 measured point is" if points == 1 else f"{points} measured points are"
        return f"{told} fewer than {FEWEST}."
    if compute.min() < 0:
        return "Compute is negative."
    if reward.min() < 0 or reward.max() > 1:
        return "A reward lies outside [0, 1]."
    if r0 is not None and not 0 <= r0 < 1:
        return f"R0 = {r0:g} lies outside [0, 1)."
    return ""


def _parameters(data: _Data, free: np.ndarray) -> tuple[float, float, float, float]:
    """A, B, log C_mid, R0 from unbounded numbers: least squares then needs no bounds."""
    A = _between(data.lowest, 1.0, free[0])
    log_b = _between(math.log(B_RANGE[0]), math.log(B_RANGE[1]), free[1])
    log_mid = _between(*data.log_range, free[2])
    return A, math.exp(log_b), log_mid, _start_reward(data, free, A)


def _between(low: float, high: float, free: float) -> float:
    return low + (high - low) * float(expit(free))


def _unbounded(low: float, high: float, value: float) -> float:
    """Inverse of `_between`, kept off its flat ends, where least squares would not move."""
    share = min(max((value - low) / (high - low), 0.02), 0.98)
    return math.log(share / (1 - share))


def _residuals(data: _Data, free: np.ndarray) -> np.ndarray:
    A, B, log_mid, R0 = _parameters(data, free)
    return R0 + (A - R0) * expit(B * (data.log_compute - log_mid)) - data.reward


def _rss(data: _Data, free: np.ndarray) -> float:
    return float((_residuals(data, free) ** 2).sum())


def _best_fit(data: _Data) -> np.ndarray:
    fits = [
        least_squares(lambda free: _residuals(data, free), start, method="lm")
        for start in _starts(data)
    ]
    return np.asarray(min(fits, key=lambda fit: float(fit.cost)).x)


def _starts(data: _Data) -> list[np.ndarray]:
    """C_mid before the first measurement and at quartiles, each with a slow and a sudden rise."""
    positive = data.log_compute[np.isfinite(data.log_compute)]
    top = _unbounded(data.lowest, 1.0, float(data.reward.max()))
    low = _unbounded(0.0, 1.0, float(data.reward.min()) / max(float(data.reward.max()), 1e-9))
    rises = [_unbounded(math.log(B_RANGE[0]), math.log(B_RANGE[1]), math.log(b)) for b in (1, 4)]
    places = [positive.min() - 1, *np.quantile(positive, (0.25, 0.5, 0.75))]
    mids = [_unbounded(*data.log_range, float(place)) for place in places]
    return [np.array([top, b, mid, low][: data.free]) for mid, b in product(mids, rises)]


def _flat(data: _Data, rss: float, spread: float) -> str:
    """A sentence if the curve is no significantly better fit than a constant."""
    n, more = len(data.reward), data.free - 1
    if spread <= SMALLEST * n:
        return "Reward does not change."
    if rss <= SMALLEST * n:
        return ""
    statistic = (spread - rss) / more / (rss / (n - data.free))
    if float(f_distribution.sf(statistic, more, n - data.free)) < FLAT:
        return ""
    return f"A rise cannot be told from noise with {n} measurements."


def _profile_interval(data: _Data, best: np.ndarray, rss: float) -> Interval:
    """Values of A whose best fit passes the F test against the best fit of all."""
    n, A = len(data.reward), _parameters(data, best)[0]
    quantile = float(f_distribution.ppf(LEVEL, 1, n - data.free))
    limit = max(rss, SMALLEST * n) * (1 + quantile / (n - data.free))

    shapes = _shapes(data)

    def excess(value: float) -> float:
        return _rss_at(data, best, shapes, value) - limit

    low = _crossing(excess, A, data.lowest)
    high = _crossing(excess, A, 1.0)
    return Interval(low, high, "measurements", LEVEL)


def _crossing(excess: Callable[[float], float], inside: float, bound: float) -> float:
    """Where `excess` turns positive between a point inside and the bound; the bound if never."""
    reach = bound - inside
    if abs(reach) < 1e-6:
        return bound
    step = reach / 64
    near = inside
    while abs(step) < abs(reach):
        if excess(inside + step) > 0:
            return float(brentq(excess, near, inside + step, xtol=1e-4))
        near, step = inside + step, 2 * step
    return float(brentq(excess, near, bound, xtol=1e-4)) if excess(bound) > 0 else bound


def _shapes(data: _Data) -> tuple[np.ndarray, np.ndarray]:
    """A coarse grid of unbounded (B, C_mid) [M, 2], and the share of the rise done there [M, n]."""
    places = np.log(np.linspace(0.02, 0.98, 16) / np.linspace(0.98, 0.02, 16))
    grid_M2 = np.array(list(product(places, places)))
    rows = []
    for free in grid_M2:
        _, B, log_mid, _ = _parameters(data, np.array([0.0, *free, 0.0]))
        rows.append(expit(B * (data.log_compute - log_mid)))
    return grid_M2, np.array(rows)


def _rss_at(
    data: _Data, best: np.ndarray, shapes: tuple[np.ndarray, np.ndarray], A: float
) -> float:
    """Least residual sum of squares with A held, from the best fit's place and the grid's best."""
    held = best.copy()

    def residuals(rest: np.ndarray) -> np.ndarray:
        held[1:] = rest
        _, B, log_mid, _ = _parameters(data, held)
        R0 = _start_reward(data, held, A)
        return R0 + (A - R0) * expit(B * (data.log_compute - log_mid)) - data.reward

    grid_M2, done_Mn = shapes
    R0 = _start_reward(data, best, A)
    errors_M = ((R0 + (A - R0) * done_Mn - data.reward) ** 2).sum(axis=1)
    from_grid = np.concatenate([grid_M2[int(errors_M.argmin())], best[3:]])
    starts = [best[1:], np.clip(from_grid, -4, 4)]
    return min(2 * float(least_squares(residuals, x, method="lm").cost) for x in starts)


def _start_reward(data: _Data, free: np.ndarray, A: float) -> float:
    return data.r0 if data.r0 is not None else A * float(expit(free[3]))


def _unknown(data: _Data, log_mid: float, interval: Interval) -> str:
    """Why A is not known from a rise that is there; empty if it is."""
    if log_mid > data.log_compute.max():
        return "No saturation is visible: half of the rise lies beyond the measured compute."
    if interval.high - interval.low > WIDEST:
        low, high = interval.low, interval.high
        return f"The interval on A, {low:.2f} to {high:.2f}, is wider than {WIDEST}."
    highest = float(data.reward.max())
    if interval.high >= 1.0 and highest < 1 - NEAR_CEILING:
        return f"Only the bound 1 keeps A from being higher; the highest reward is {highest:.2f}."
    return ""
