"""KL to the base model: estimators from samples, the exact sum, and KL at matched reward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NEGLIGIBLE_KL = 1e-6
"""Nats a token under which a KL is no denominator: rounding of float32 log-probabilities."""


def k1(differences: np.ndarray | Sequence[float]) -> float:
    """KL(p || q) from samples of p: mean of log p - log q.

    Schulman, "Approximating KL Divergence" (2020). Unbiased; may be negative. In
    nats, per token where differences are per token. NaN if empty.
    """
    d = np.asarray(differences, dtype=float)
    return float(d.mean()) if d.size else math.nan


def k3(differences: np.ndarray | Sequence[float]) -> float:
    """KL(p || q) from samples of p: mean of r - 1 - log r with r = q / p (Schulman, as `k1`).

    Unbiased where q's support is in p's; never negative; of lower variance than k1 while p and q
    are close. Differences are log p - log q, in nats. NaN if empty.
    """
    d = np.asarray(differences, dtype=float)
    with np.errstate(over="ignore"):
        return float((np.expm1(-d) + d).mean()) if d.size else math.nan


def exact_kl(logp: np.ndarray, logq: np.ndarray) -> np.ndarray:
    """KL(p || q) = sum over the vocabulary of p (log p - log q), in nats.

    Args:
        logp: normalised log-probabilities, [..., V]; -inf where p is 0, which counts as 0.
        logq: the same of q, broadcastable to logp; -inf where p is not 0 makes the KL infinite.
    Returns:
        [...]: the last axis is summed.
    """
    logp, logq = np.asarray(logp, dtype=float), np.asarray(logq, dtype=float)
    p = np.exp(logp)
    with np.errstate(invalid="ignore"):
        terms = np.where(p == 0, 0.0, p * (logp - logq))
    return terms.sum(axis=-1)


def entropy(logp: np.ndarray) -> np.ndarray:
    """-sum p log p over the last axis, in nats: 0 (certain) to log V (uniform)."""
    logp = np.asarray(logp, dtype=float)
    p = np.exp(logp)
    with np.errstate(invalid="ignore"):
        return -np.where(p == 0, 0.0, p * logp).sum(axis=-1)


@dataclass(frozen=True, slots=True)
class MatchedReward:
    """KL of arm a against arm b at equal reward; nats per token, None where undefined."""

    defined: bool
    reason: str
    """Why it is undefined, one sentence; empty where it is defined."""
    low: float | None = None
    """Reward above which both arms are compared."""
    high: float | None = None
    """Reward up to which both arms are compared."""
    saved: float | None = None
    """Mean of 1 - KL_a / KL_b over the levels: 1 is all saved, 0 nothing, < 0 a drifts further."""
    kl_a: float | None = None
    """Mean KL of a over the levels."""
    kl_b: float | None = None
    """Mean KL of b over the levels. 1 - kl_a / kl_b weighs levels by their KL, `saved` does not."""
    points: int = 0
    """Number of reward levels compared."""


def kl_at_matched_reward(
    reward_a: Sequence[float],
    kl_a: Sequence[float],
    reward_b: Sequence[float],
    kl_b: Sequence[float],
    points: int = 50,
) -> MatchedReward:
    """How much KL to the base model arm a saves against arm b at the same reward.

    An arm's frontier is the KL at which its running maximum of reward first reaches a level, linear
    between two evaluations. Levels are spread evenly over (low, high], where low is the higher of
    the two first rewards and high the lower of the two maxima: what both arms had to learn. `saved`
    is the mean over levels of 1 - KL_a / KL_b, the paper's "lower KL at matched reward" (arXiv
    2605.12484) with its reward range made explicit. Near low a ratio of two small KLs weighs as
    much as any other; compare with 1 - kl_a / kl_b of the result.

    Args:
        reward_a: rewards of a's evaluations in order of steps, the first before training.
        kl_a: KL at the same evaluations, nats per token.
        reward_b: those of b.
        kl_b: those of b.
        points: number of levels, at least 1.
    Returns:
        The comparison. Undefined, with its reason, where an arm has fewer than two evaluations or
        one that is not finite, no reward above both starts is reached by both, or b's KL is about
        0 at a level.
    Raises:
        ValueError: if an arm's rewards and KLs differ in number, or points is below 1.
    """
    if points < 1:
        raise ValueError(f"points must be at least 1, not {points}")
    arms = [_curve(reward_a, kl_a), _curve(reward_b, kl_b)]
    for name, (rewards, kls) in zip(("first", "second"), arms, strict=True):
        if problem := _unusable(name, rewards, kls):
            return MatchedReward(False, problem)
    low = max(float(rewards[0]) for rewards, _ in arms)
    high = min(float(rewards.max()) for rewards, _ in arms)
    if high <= low:
        return MatchedReward(False, _no_overlap(arms))
    levels = np.linspace(low, high, points + 1)[1:]
    first, second = (_kl_at(levels, rewards, kls) for rewards, kls in arms)
    if second.min() <= NEGLIGIBLE_KL:
        level = levels[int(second.argmin())]
        return MatchedReward(
            False, f"The second arm's KL is about 0 or negative at reward {level:.3g}.", low, high
        )
    saved = float((1 - first / second).mean())
    means = float(first.mean()), float(second.mean())
    return MatchedReward(True, "", low, high, saved, *means, points)


def _curve(reward: Sequence[float], kl: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if len(reward) != len(kl):
        raise ValueError(f"{len(reward)} rewards and {len(kl)} KLs cannot be paired")
    return np.array(reward, dtype=float), np.array(kl, dtype=float)


def _unusable(name: str, rewards: np.ndarray, kls: np.ndarray) -> str:
    missing = int((~(np.isfinite(rewards) & np.isfinite(kls))).sum())
    if missing:
        return f"{missing} of {len(rewards)} evaluations of the {name} arm have no reward or no KL."
    if len(rewards) < 2:
        return f"The {name} arm has fewer than two evaluations ({len(rewards)})."
    return ""


def _no_overlap(arms: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    (a, _), (b, _) = arms
    return (
        "No reward above both starts is reached by both arms: the first goes from "
        f"{a[0]:.3g} to at most {a.max():.3g}, the second from {b[0]:.3g} to at most {b.max():.3g}."
    )


def _kl_at(levels: np.ndarray, rewards: np.ndarray, kls: np.ndarray) -> np.ndarray:
    """KL where the running maximum first reaches each level; levels lie above rewards[0]."""
    best = np.maximum.accumulate(rewards)
    after = np.searchsorted(best, levels, side="left")
    share = (levels - best[after - 1]) / (best[after] - best[after - 1])
    return kls[after - 1] + share * (kls[after] - kls[after - 1])
