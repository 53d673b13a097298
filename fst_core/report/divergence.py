"""Distance from the base model: per arm and context, over steps, and at the same reward."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fst_core.counting import counted
from fst_core.estimators.divergence import MatchedReward, kl_at_matched_reward
from fst_core.report.arms import counted_runs, curve_of, in_reading_order, mean_curve_of
from fst_core.report.changes import notes_of, shown_figure
from fst_core.report.comparison import BASELINE
from fst_core.report.figures import arm_styles, legend_of, to_svg
from fst_core.report.headline import preferred_challenger
from fst_core.report.intervals import estimate_cell
from fst_core.report.markup import Markup, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.statistics import (
    NOT_NEGATIVE,
    UNBOUNDED,
    Json,
    Range,
    number,
    statistic,
)
from fst_core.report.summary import KL_RANGES

MEASURES = {"kl": "k1", "kl_k3": "k3", "kl_exact": "exact", "entropy": "entropy"}
"""Columns of the table of curves, and what they are called."""
SAVED: Mapping[str, Range] = {"kl": UNBOUNDED, "kl_exact": (-math.inf, 1.0)}
"""Range of the share of KL saved, by the column of KL: k1 may be negative."""
READING = (
    "KL to the base model under the same context, and the policy's entropy, at the last "
    "evaluation; nats per token. k1 and k3 are estimates from the sampled tokens (Schulman 2020), "
    "exact is summed over the vocabulary. Below a mean: its 95% t-interval over seeds (with two "
    "seeds, their values)."
)
SAVED_READING = (
    "KL saved at matched reward: mean over the reward levels that both arms had to learn and "
    "reached of 1 - KL(arm) / KL(against), each KL read off where the running maximum of reward "
    "first reaches the level. 1 is all saved, 0 nothing; negative: the arm drifts further. By "
    "seed, paired; and on the mean curves. Only arms that train weights drift at all. In a reason, "
    "the first arm is the one in the first column."
)
CAPTION = (
    "Left: KL to the base model over slow steps under the context each arm is judged by. Right: "
    "reward against that KL; up and to the left is better. Thin: seeds; bold: their mean."
)


@dataclass(frozen=True, slots=True)
class Saved:
    """KL saved at matched reward by one arm against another."""

    arm: str
    against: str
    column: str
    """Of the table of curves: which KL."""
    seeds: Mapping[int, MatchedReward]
    mean_curve: MatchedReward


def section(study: Study) -> Section | None:
    """KL and entropy of every arm; None where neither was measured."""
    arms = counted_runs(study)
    column = study.summary["kl_column"]
    if column is None:
        return None
    found = {arm: _at_end(study, runs) for arm, runs in arms.items()}
    saved = saved_by_arms(study)
    agreement = _agreement(study)
    notes = list(_missing(study, column))
    svg = to_svg(f"divergence {study.experiment}", partial(_draw, study, column))
    return Section(
        name="divergence",
        title="Distance from the base model",
        body=[
            tag("p", READING, class_="soft"),
            *notes_of(notes),
            _end_table(found),
            *(tag("p", sentence) for sentence in [agreement] if sentence),
            shown_figure(svg, f"{CAPTION} KL is {MEASURES[column]}."),
            tag("h3", "KL saved at matched reward"),
            *_saved_part(saved, column),
        ],
        tables={"divergence": _frame(found), "kl_saved": _saved_frame(saved)},
        figures={"divergence": svg},
        summary={
            "at_end": found,
            "kl": MEASURES[column],
            "agreement": agreement or None,
            "saved": [saved_numbers(item) for item in saved],
            "notes": notes,
        },
    )


def _at_end(study: Study, runs: Sequence[RunLog]) -> Json:
    """By context: every measure at the last evaluation, over seeds."""
    contexts = {}
    for context in ("seed", "best"):
        last = {run.seed: curve_of(study, run, context).tail(1) for run in runs}
        known = {seed: rows.iloc[0] for seed, rows in last.items() if not rows.empty}
        if known:
            contexts[context] = {
                column: statistic(
                    {seed: row[column] for seed, row in known.items()},
                    KL_RANGES.get(column, NOT_NEGATIVE),
                )
                for column in MEASURES
            }
    return contexts


def _end_table(found: Mapping[str, Json]) -> Markup:
    rows = [
        [arm, context, *(estimate_cell(measures[column]) for column in MEASURES)]
        for arm, contexts in found.items()
        for context, measures in contexts.items()
    ]
    return table(("arm", "context", "KL, k1", "KL, k3", "KL, exact", "entropy"), rows)


def _frame(found: Mapping[str, Json]) -> pd.DataFrame:
    rows = [
        {"arm": arm, "context": context, "measure": MEASURES[column], "seed": int(seed), "nats": v}
        for arm, contexts in found.items()
        for context, measures in contexts.items()
        for column in MEASURES
        for seed, v in measures[column]["seeds"].items()
    ]
    return pd.DataFrame(rows, columns=pd.Index(["arm", "context", "measure", "seed", "nats"]))


def _missing(study: Study, column: str) -> Iterator[str]:
    for runs in counted_runs(study).values():
        for run in runs:
            mine = curve_of(study, run)[column].map(number)
            if lost := int(mine.isna().sum()):
                yield f"{run.id}: no finite KL in {lost} of {counted(len(mine), 'evaluation')}."


def _agreement(study: Study) -> str:
    """How far the estimates from samples are from the exact KL, at most."""
    curves = study.tables["curves"].dropna(subset=["kl_exact"])
    parts = []
    for column in ("kl", "kl_k3"):
        apart = (curves[column] - curves["kl_exact"]).abs()
        if apart.notna().any():
            row = curves[apart == apart.max()].iloc[0]
            parts.append(
                f"{MEASURES[column]} differs from the exact KL by at most "
                f"{number_text(number(apart.max()))} ({row['run']}, step {row['step']}, "
                f"{row['context']} context: {number_text(number(row[column]))} against "
                f"{number_text(number(row['kl_exact']))})"
            )
    return f"Over all evaluations, {' and '.join(parts)}." if parts else ""


def saved_by_arms(study: Study) -> list[Saved]:
    """Every trained arm against rl, then the challenger against every other trained arm."""
    arms = {a: runs for a, runs in counted_runs(study).items() if any(run.trains for run in runs)}
    first = preferred_challenger([arm for arm in arms if arm != BASELINE])
    pairs = [(arm, BASELINE) for arm in arms if arm != BASELINE and BASELINE in arms]
    pairs += [(first, arm) for arm in arms if first and arm not in (first, BASELINE)]
    column = study.summary["kl_column"]
    return [kl_saved(study, *pair, column) for pair in pairs if column is not None]


def kl_saved(study: Study, arm: str, against: str, column: str) -> Saved:
    """One arm against another: over the seeds both have, and on their mean curves."""
    arms = counted_runs(study)
    theirs = {run.seed: run for run in arms[against]}
    seeds = {
        run.seed: _matched(curve_of(study, run), curve_of(study, theirs[run.seed]), column)
        for run in arms[arm]
        if run.seed in theirs
    }
    mine, other = (mean_curve_of(study, arms[name]) for name in (arm, against))
    return Saved(arm, against, column, seeds, _matched(mine, other, column))


def _matched(mine: pd.DataFrame, theirs: pd.DataFrame, column: str) -> MatchedReward:
    (reward_a, kl_a), (reward_b, kl_b) = (
        [rows[name].astype(float).to_list() for name in ("reward", column)]
        for rows in (mine, theirs)
    )
    return kl_at_matched_reward(reward_a, kl_a, reward_b, kl_b)


def saved_numbers(item: Saved) -> Json:
    """The share of KL saved: mean over paired seeds, each seed, and on the mean curves."""
    return {
        "arm": item.arm,
        "against": item.against,
        "saved": statistic({s: found.saved for s, found in item.seeds.items()}, SAVED[item.column]),
        "reasons": {str(s): f.reason for s, f in item.seeds.items() if not f.defined},
        "mean_curve": item.mean_curve.saved,
        "mean_curve_reason": item.mean_curve.reason,
        "reward_range": [item.mean_curve.low, item.mean_curve.high],
    }


def _saved_part(saved: Sequence[Saved], column: str) -> Iterator[Markup]:
    if not saved:
        yield tag("p", "Undefined: it takes two arms that train weights.")
        return
    yield tag("p", SAVED_READING, f" KL is {MEASURES[column]}.", class_="soft")
    headers = (
        "arm", "against", "KL saved, mean over seeds", "by seed", "on the mean curves",
        "rewards compared",
    )  # fmt: skip
    yield table(headers, [_saved_row(item) for item in saved])


def _saved_row(item: Saved) -> list[Any]:
    found = saved_numbers(item)
    mean = estimate_cell(found["saved"]) if item.seeds else "no paired seed"
    if item.seeds and found["saved"]["mean"] is None:
        mean = "undefined"
    seeds = [tag("div", f"s{seed}: {_told(one)}") for seed, one in item.seeds.items()]
    curve = item.mean_curve
    span = f"{number_text(curve.low)} to {number_text(curve.high)}" if curve.defined else "–"
    return [item.arm, item.against, mean, tag("div", *seeds), _told(curve), span]


def _told(found: MatchedReward) -> str:
    return number_text(found.saved) if found.defined else f"undefined: {found.reason}"


def _saved_frame(saved: Sequence[Saved]) -> pd.DataFrame:
    names = ("arm", "against", "seed", "saved", "low", "high", "kl_arm", "kl_against", "reason")
    rows = [
        (item.arm, item.against, seed, f.saved, f.low, f.high, f.kl_a, f.kl_b, f.reason)
        for item in saved
        for seed, f in [*((str(s), f) for s, f in item.seeds.items()), ("mean", item.mean_curve)]
    ]
    return pd.DataFrame(rows, columns=pd.Index(names))


def _draw(study: Study, column: str) -> Figure:
    arms = counted_runs(study)
    styles = arm_styles(list(arms))
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    for arm in in_reading_order(list(arms)):
        curves = [curve_of(study, run) for run in arms[arm]]
        lines = [(rows, {"lw": 0.8, "ms": 2, "alpha": 0.6}) for rows in curves]
        lines.append((mean_curve_of(study, arms[arm]), {"lw": 2.4, "ms": 5}))
        for rows, width in lines:
            kl = rows[column].astype(float).to_numpy()
            left.plot(rows["step"], kl, **styles[arm], **width)
            right.plot(kl, np.asarray(rows["reward"], dtype=float), **styles[arm], **width)
    label = f"KL to the base model, {MEASURES[column]} (nats per token)"
    left.set(xlabel="slow steps", ylabel=label)
    left.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    right.set(xlabel=label, ylabel="reward (mean@k)", ylim=(-0.03, 1.05))
    legend_of(figure, styles)
    return figure
