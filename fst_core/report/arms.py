"""What sections read of an arm: the runs that count, their curves and their last measurements."""

from collections.abc import Sequence

import pandas as pd

from fst_core.estimators.bootstrap import Interval
from fst_core.journal import Event
from fst_core.report.comparison import BASELINE
from fst_core.report.runs import RunLog
from fst_core.report.section import Study
from fst_core.report.summary import mean_curve

CONTEXTS = ("none", "seed", "best")
"""Contexts of an evaluation, in reading order."""


def counted_runs(study: Study) -> dict[str, list[RunLog]]:
    """The runs of each arm that count, as `report.summary` says; arms without any are left out."""
    arms = {
        arm: [run for run in study.runs if run.events and run.id in found["counted"]]
        for arm, found in study.summary["arms"].items()
    }
    return {arm: runs for arm, runs in arms.items() if runs}


def learning_runs(study: Study) -> dict[str, list[RunLog]]:
    """`counted_runs` without the arms that learn nothing: those have no progress to tell of."""
    arms = counted_runs(study)
    return {arm: runs for arm, runs in arms.items() if any(run.learns for run in runs)}


def curve_of(study: Study, run: RunLog, context: str = "headline") -> pd.DataFrame:
    """A run's rows of the table of curves, by step: those it is judged by, or one context's."""
    curves = study.tables["curves"]
    mine = curves[curves["run"] == run.id]
    kept = mine["headline"].astype(bool) if context == "headline" else mine["context"] == context
    return mine[kept].sort_values("step")


def mean_curve_of(study: Study, runs: Sequence[RunLog], context: str = "headline") -> pd.DataFrame:
    """The mean over runs at the steps all of them evaluated, with what training had used."""
    rows = pd.concat([curve_of(study, run, context) for run in runs])
    means = mean_curve(rows)
    used = ["step", "slow_rollouts", "fast_rollouts", "tokens", "kl_k3", "entropy"]
    return means.merge(rows[used].astype(float).groupby("step", as_index=False).mean(), on="step")


def last_evaluation(run: RunLog, context: str) -> Event | None:
    """What the run's last evaluated step measured under a context; None if it did not."""
    events = list(run.of("evaluation"))
    last = max((event["step"] for event in events), default=None)
    return at_step(events, context, last)


def at_step(events: Sequence[Event], context: str, step: int | None) -> Event | None:
    """The event of a context and a step; a later one replaces an earlier."""
    found = [e for e in events if e["context"] == context and e["step"] == step]
    return found[-1] if found else None


def bounds(interval: Interval | None) -> list[float] | None:
    """An interval as it is written into a summary."""
    return None if interval is None else [interval.low, interval.high]


def in_reading_order(arms: Sequence[str]) -> list[str]:
    """Arms with rl first, for it is what others are compared with."""
    return sorted(arms, key=lambda arm: arm != BASELINE)
