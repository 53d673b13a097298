"""Leaving zero reward: when an arm that starts without any gets some for good.

The question of the paper's star-graph run (arXiv 2605.12484).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fst_core.estimators.curves import leaves_zero
from fst_core.report.arms import counted_runs, curve_of, learning_runs, mean_curve_of
from fst_core.report.changes import notes_of
from fst_core.report.markup import number_text, table, tag
from fst_core.report.section import Section, Study
from fst_core.report.statistics import Json, number

THRESHOLD = 0.05
"""Reward below which an arm counts as having none."""
READING = (
    f"First evaluation at which the reward is at least {THRESHOLD:g} there and at the next one, "
    "under the context each arm is judged by, with the training rollouts used until then. The last "
    "evaluation has no next one to confirm it, so it does not count by itself."
)
HEADERS = ("arm", "reward at the start", "step, mean curve", "rollouts, mean curve", "by seed")


def section(study: Study) -> Section | None:
    """When each arm leaves zero; None where every arm starts above the threshold."""
    found = leaving_by_arm(study)
    if not any(mine["start"] is not None and mine["start"] < THRESHOLD for mine in found.values()):
        return None
    notes = [*_notes(found), *_unconfirmed(study, found)]
    return Section(
        name="escape",
        title="Leaving zero reward",
        body=[
            tag("p", READING, class_="soft"),
            *notes_of(notes),
            table(HEADERS, [_row(arm, mine) for arm, mine in found.items()]),
        ],
        tables={"escape": _frame(found)},
        summary={"threshold": THRESHOLD, "arms": found, "notes": notes},
    )


def leaving_by_arm(study: Study) -> dict[str, Json]:
    """By arm: reward at the start, and where the mean curve and each seed leave zero."""
    curves = {arm: mean_curve_of(study, runs) for arm, runs in learning_runs(study).items()}
    return {arm: _arm(study, arm, curve) for arm, curve in curves.items()}


def _start(curve: pd.DataFrame) -> float | None:
    return None if curve.empty else number(curve["reward"].iloc[0])


def _arm(study: Study, arm: str, mean: pd.DataFrame) -> Json:
    runs = counted_runs(study)[arm]
    seeds = {str(run.seed): leaving(curve_of(study, run)) for run in runs}
    return {"start": _start(mean), "mean_curve": leaving(mean), "seeds": seeds}


def leaving(curve: pd.DataFrame) -> Json | None:
    """Step and training rollouts at which a curve leaves zero; None if it does not."""
    steps, rewards = (curve[name].astype(float).to_list() for name in ("step", "reward"))
    step = leaves_zero(steps, rewards, THRESHOLD)
    if step is None:
        return None
    rollouts = number(curve.loc[curve["step"] == step, "rollouts"].iloc[0])
    return {"step": step, "rollouts": rollouts}


def _notes(found: Mapping[str, Json]) -> Iterator[str]:
    for arm, mine in found.items():
        if mine["start"] is None:
            yield f"{arm} has no finite reward at its first evaluation."
        elif mine["start"] >= THRESHOLD:
            yield f"{arm} does not start at zero."


def _unconfirmed(study: Study, found: Mapping[str, Json]) -> Iterator[str]:
    """Runs that reach the threshold at their last evaluation, and not before for good."""
    for arm, runs in learning_runs(study).items():
        for run in runs:
            left = found[arm]["seeds"][str(run.seed)]
            rewards = curve_of(study, run)["reward"]
            if left is None and len(rewards) and rewards.iloc[-1] >= THRESHOLD:
                yield f"{run.id} is above zero at its last evaluation, which no next one confirms."


def _row(arm: str, found: Json) -> list[Any]:
    mean = found["mean_curve"]
    curve = [number_text(mean[key], 0) if mean else "not left" for key in ("step", "rollouts")]
    seeds = [tag("div", f"s{seed}: {_told(one)}") for seed, one in found["seeds"].items()]
    return [arm, number_text(found["start"]), *curve, tag("div", *seeds)]


def _told(found: Json | None) -> str:
    if found is None:
        return "not left"
    return f"step {number_text(found['step'], 0)}, {number_text(found['rollouts'], 0)} rollouts"


def _frame(found: Mapping[str, Json]) -> pd.DataFrame:
    rows: list[Sequence[Any]] = [
        (arm, seed, (one or {}).get("step"), (one or {}).get("rollouts"))
        for arm, mine in found.items()
        for seed, one in [*mine["seeds"].items(), ("mean", mine["mean_curve"])]
    ]
    return pd.DataFrame(rows, columns=pd.Index(["arm", "seed", "step", "rollouts"]))
