"""TrueSkill ratings of contexts (Herbrich et al., 2006), and which contexts run by them.

The constants are TrueSkill's own defaults on a scale where a fresh skill is 25 with a standard
deviation of a third of that; E-SPL (arXiv 2602.14697) uses them as they are.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

MU, SIGMA = 25.0, 25.0 / 3
BETA = SIGMA / 2
"""Standard deviation of a performance around its skill."""
TAU = SIGMA / 100
"""Standard deviation added to a skill before every match."""
UNIT = NormalDist()
DRAW_MARGIN = UNIT.inv_cdf((1 + 0.10) / 2) * math.sqrt(2) * BETA
"""Two performances closer than this draw; 10% of all matches between equals do."""
SWEEPS, PRECISE = 10, 1e-4
"""Message passing ends after so many sweeps, or once no precision moves by more."""
SMALLEST = 1e-300
TIE = 0.01
"""Mean rewards this close are equal."""

Strategy = Literal["uniform", "ucb", "lucb", "softmax"]


@dataclass(frozen=True, slots=True)
class Rating:
    """A skill as a normal distribution; higher is better."""

    mu: float = MU
    sigma: float = SIGMA

    @property
    def lower(self) -> float:
        """What the skill very likely exceeds: mu - 2 sigma."""
        return self.mu - 2 * self.sigma

    @property
    def upper(self) -> float:
        """What the skill very likely does not exceed: mu + 2 sigma."""
        return self.mu + 2 * self.sigma


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal density in natural parameters, which multiply by adding; precision 0 is flat."""

    precision: float = 0.0
    shift: float = 0.0
    """Precision times mean."""

    @classmethod
    def of(cls, mean: float, variance: float) -> "Normal":
        """From moments."""
        return cls(1 / variance, mean / variance)

    @property
    def mean(self) -> float:
        return self.shift / self.precision

    @property
    def variance(self) -> float:
        return 1 / self.precision

    def __mul__(self, other: "Normal") -> "Normal":
        return Normal(self.precision + other.precision, self.shift + other.shift)

    def __truediv__(self, other: "Normal") -> "Normal":
        return Normal(self.precision - other.precision, self.shift - other.shift)


def truncation(t: float, e: float, draw: bool) -> tuple[float, float]:
    """How far a unit normal around t moves (v) and narrows (w) once the outcome is known.

    The outcome is a difference above e, or between -e and e for a draw.
    """
    if not draw:
        x = t - e
        chance = UNIT.cdf(x)
        v = UNIT.pdf(x) / chance if chance > SMALLEST else -x
        return v, v * (v + x)
    a, b = e - abs(t), -e - abs(t)
    chance = UNIT.cdf(a) - UNIT.cdf(b)
    if chance <= SMALLEST:
        return math.copysign(a, -t), 1.0
    v = (UNIT.pdf(b) - UNIT.pdf(a)) / chance
    w = v**2 + (a * UNIT.pdf(a) - b * UNIT.pdf(b)) / chance
    return math.copysign(v, -t), w


def messages(above: Normal, below: Normal, draw: bool) -> tuple[Normal, Normal]:
    """What the outcome between two performances says of each, given all else known of them."""
    c = math.sqrt(above.variance + below.variance)
    gap = above.mean - below.mean
    v, w = truncation(gap / c, DRAW_MARGIN / c, draw)
    seen = Normal.of(gap + c * v, c**2 * max(1 - w, SMALLEST)) / Normal.of(gap, c**2)
    if seen.precision <= 0:
        return Normal(), Normal()
    return (
        Normal.of(below.mean + seen.mean, below.variance + seen.variance),
        Normal.of(above.mean - seen.mean, above.variance + seen.variance),
    )


def rate(ratings: Sequence[Rating], scores: Sequence[float]) -> list[Rating]:
    """Ratings after one free-for-all match, ranked by score.

    Neighbours in the ranking within TIE draw. Expectation propagation over neighbouring pairs,
    which is exact for two.

    Args:
        ratings: N contexts.
        scores: their N mean rewards in the match; higher is better.
    Returns:
        N ratings in the same order; unchanged where N < 2.
    """
    if len(ratings) < 2:
        return list(ratings)
    order = sorted(range(len(ratings)), key=lambda n: -scores[n])
    pairs = list(pairwise(order))
    draws = [scores[above] - scores[below] <= TIE for above, below in pairs]
    variances = [r.sigma**2 + TAU**2 for r in ratings]
    priors = [Normal.of(r.mu, s2 + BETA**2) for r, s2 in zip(ratings, variances, strict=True)]
    told = [(Normal(), Normal())] * len(pairs)
    beliefs = list(priors)
    for _ in range(SWEEPS):
        moved = 0.0
        for n, (above, below) in enumerate(pairs):
            cavities = beliefs[above] / told[n][0], beliefs[below] / told[n][1]
            new = messages(*cavities, draws[n])
            changes = (abs(a.precision - b.precision) for a, b in zip(new, told[n], strict=True))
            moved = max(moved, *changes)
            beliefs[above], beliefs[below] = cavities[0] * new[0], cavities[1] * new[1]
            told[n] = new
        if moved < PRECISE:
            break
    return [
        _skill(r.mu, s2, belief / prior)
        for r, s2, belief, prior in zip(ratings, variances, beliefs, priors, strict=True)
    ]


def _skill(mu: float, variance: float, performance: Normal) -> Rating:
    """A skill after what was learned of the performance."""
    skill = Normal.of(mu, variance)
    if performance.precision > SMALLEST:
        skill *= Normal.of(performance.mean, performance.variance + BETA**2)
    return Rating(skill.mean, math.sqrt(skill.variance))


def wins(means: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """Per context, the problems it alone did best on; a tie at the top has no winner.

    Args:
        means: mean reward by context and problem.
    Returns:
        Problems by context, in the order of `means`.
    """
    won: dict[str, list[str]] = {name: [] for name in means}
    for problem in dict.fromkeys(p for row in means.values() for p in row):
        tried = [name for name, row in means.items() if problem in row]
        best, *others = sorted(tried, key=lambda name: -means[name][problem])
        if others and means[best][problem] - means[others[0]][problem] > TIE:
            won[best].append(problem)
    return won


def choose(
    ratings: Sequence[Rating], size: int, strategy: Strategy, rng: random.Random
) -> list[int]:
    """Which contexts of a window run next (E-SPL's code; the newest is the last of the window).

    * uniform: the newest and others without replacement; from fewer than `size`, all draws are
      with replacement.
    * ucb: the highest mu + 2 sigma.
    * lucb: the champion by mu - 2 sigma, then the highest mu + 2 sigma of the others.
    * softmax: without replacement, weights exp((u - max u) / max(1, max u)) of u = mu + 2 sigma.

    All but uniform put the newest in the last place where it was not chosen and `size` > 1, and
    fill missing places with it.

    Args:
        ratings: the window, oldest first, not empty.
        size: K.
    Returns:
        K indices into the window.
    """
    everyone, newest = range(len(ratings)), len(ratings) - 1
    if strategy == "uniform":
        if newest < size - 1:
            return rng.choices(everyone, k=size)
        return [newest, *rng.sample(everyone[:-1], size - 1)]
    if strategy == "softmax":
        chosen = _softmax([r.upper for r in ratings], size, rng)
    else:
        chosen = sorted(everyone, key=lambda n: -ratings[n].upper)
    if strategy == "lucb":
        champion = max(everyone, key=lambda n: ratings[n].lower)
        chosen = [champion, *(n for n in chosen if n != champion)]
    chosen = chosen[:size]
    if size > 1 and newest not in chosen:
        chosen[-1] = newest
    return chosen + [newest] * (size - len(chosen))


def _softmax(uppers: Sequence[float], size: int, rng: random.Random) -> list[int]:
    """Up to `size` different indices, higher bounds more often."""
    best = max(uppers)
    left = {n: math.exp((upper - best) / max(1.0, best)) for n, upper in enumerate(uppers)}
    drawn: list[int] = []
    while left and len(drawn) < size:
        (index,) = rng.choices(list(left), list(left.values()))
        drawn.append(index)
        del left[index]
    return drawn


def of_mutation(parent: Rating, spread: float = 1.0) -> Rating:
    """A mutated child's rating: its parent's, less certain by `spread`."""
    return Rating(parent.mu, math.hypot(parent.sigma, spread))


def of_crossover(parents: Sequence[Rating], spread: float = 1.0) -> Rating:
    """A crossed child's rating: its parents', weighed by their precision."""
    precision = sum(1 / p.sigma**2 for p in parents)
    mu = sum(p.mu / p.sigma**2 for p in parents) / precision
    return Rating(mu, math.sqrt(1 / precision + spread**2))
