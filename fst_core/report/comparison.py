"""Every arm that learns against rl: differences seed by seed, over the seeds that both have."""

from collections.abc import Mapping, Sequence
from typing import Any

from fst_core.report.statistics import (
    DIFFERENCE,
    FEWEST_SEEDS,
    NEGLIGIBLE,
    UNBOUNDED,
    Json,
    Range,
    interval,
    number,
    without_spread,
)

BASELINE = "rl"
KL_COLUMNS = {"kl": "k1", "kl_exact": "exact"}
"""Columns of the table of curves that KL is told in, and what they are called."""

COMPARED: dict[str, int] = {
    "rollouts_to_peak": -1,
    "final_kl": -1,
    "final_kl_exact": -1,
    "final_reward": 1,
    "final_seed_reward": 1,
    "training_seconds": -1,
}
"""What arms are compared on, and which sign of the difference is better."""
RANGES: dict[str, Range] = {"final_reward": DIFFERENCE, "final_seed_reward": DIFFERENCE}


def told_kl(column: str | None) -> str:
    """Which KL a study's numbers are, one sentence to follow others; empty where there is none."""
    told = {
        "kl": "KL is k1, an estimate from the sampled tokens: noisy, and at times below 0.",
        "kl_exact": "KL is exact: summed over the vocabulary at every token of the completions.",
    }
    return f" {told[column]}" if column else ""


def compared_metrics(kl_column: str | None) -> list[str]:
    """What arms are compared on where KL is told in the given column: one KL, not two."""
    other = {f"final_{column}" for column in KL_COLUMNS} - {f"final_{kl_column or 'kl'}"}
    return [metric for metric in COMPARED if metric not in other]


def comparisons(
    arms: Mapping[str, Json], learning: set[str], kl_column: str | None
) -> dict[str, dict[str, Json]]:
    """Every arm that learns against rl on each compared number: an untrained one costs nothing."""
    rl = arms.get(BASELINE)
    if rl is None or rl["to_rl_peak"] is None:
        return {}
    metrics = compared_metrics(kl_column)
    return {
        name: {metric: _compare(arm, rl, metric) for metric in metrics}
        for name, arm in arms.items()
        if name != BASELINE and name in learning and arm["counted"]
    }


def _measured(arm: Json, metric: str) -> tuple[float | None, dict[str, float | None]]:
    """One compared number of an arm: its mean (to the peak: of the mean curve), and by seed."""
    if metric == "rollouts_to_peak":
        to_peak = arm["to_rl_peak"]
        points = to_peak["seeds"]
        by_seed = {seed: point and point["rollouts"] for seed, point in points.items()}
        return (to_peak["mean_curve"] or {}).get("rollouts"), by_seed
    found = arm["seconds"]["training"] if metric == "training_seconds" else arm[metric]
    return found["mean"], found["seeds"]


def _compare(arm: Json, rl: Json, metric: str) -> Json:
    """Difference arm - rl over the seeds that both have, its interval, and who is better.

    `arm`, `rl` and `difference` are means over the seeds in which both have a value, so that the
    difference is that of the two; of `rollouts_to_peak` `arm` and `rl` are where the mean curves
    get there, and where one does not in every shared seed `difference` is that of the mean curves
    and has no interval. `shared` counts the seeds that both were run with: where it is 0 nothing is
    compared. `pairs` counts those in which both have a value, `seeds` has their differences (null
    where undefined), and `unpaired` names the seeds that only one arm was run with.

    `better` is true, false, or null where a value is missing or both are equal (an arm that never
    reaches the peak is worse); `certain` says whether the interval leaves out zero, has a width,
    and stands on `FEWEST_SEEDS` pairs at least, of arms of which runs have ended.
    """
    (mine, my_seeds), (theirs, rl_seeds) = _measured(arm, metric), _measured(rl, metric)
    shared = [seed for seed in my_seeds if seed in rl_seeds]
    pairs = {seed: (my_seeds[seed], rl_seeds[seed]) for seed in shared}
    whole = {seed: (a, b) for seed, (a, b) in pairs.items() if a is not None and b is not None}
    differences = [a - b for a, b in whole.values()]
    complete = len(whole) == len(pairs)
    bounds = interval(differences, RANGES.get(metric, UNBOUNDED)) if complete else None
    to_peak = metric == "rollouts_to_peak"
    if not to_peak and shared:
        mine, theirs = (_mean([pair[i] for pair in whole.values()]) for i in (0, 1))
    difference = _mean(differences)
    if to_peak and not complete:
        difference = None if mine is None or theirs is None else mine - theirs
    better = _better(difference, metric)
    if to_peak and shared and mine is None and theirs is not None:
        difference, bounds, better = None, None, False
    return {
        "arm": mine,
        "rl": theirs,
        "difference": difference,
        "interval": bounds,
        "shared": len(shared),
        "pairs": len(whole),
        "seeds": {
            seed: None if seed not in whole else number(whole[seed][0] - whole[seed][1])
            for seed in shared
        },
        "unpaired": sorted({*my_seeds} ^ {*rl_seeds}, key=int),
        "better": better,
        "certain": not (arm["partial"] or rl["partial"])
        and bounds is not None
        and len(differences) >= FEWEST_SEEDS
        and not without_spread(bounds)
        and (bounds[0] > 0 or bounds[1] < 0),
    }


def _mean(values: Sequence[Any]) -> float | None:
    return sum(values) / len(values) if values else None


def _better(difference: float | None, metric: str) -> bool | None:
    if difference is None or abs(difference) <= NEGLIGIBLE:
        return None
    return difference * COMPARED[metric] > 0
