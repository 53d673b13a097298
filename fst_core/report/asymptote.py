"""Where each arm's reward is heading: the asymptote of a sigmoid in steps and in rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fst_core.counting import counted
from fst_core.estimators.asymptote import AsymptoteFit, fit_asymptote, sigmoid
from fst_core.report.arms import counted_runs, mean_curve_of
from fst_core.report.changes import notes_of, shown_figure
from fst_core.report.figures import CURVE_AXES, arm_styles, legend_of, to_svg
from fst_core.report.intervals import span_text
from fst_core.report.markup import Markup, number_text, table, tag
from fst_core.report.section import Section, Study

AXES = ("step", "rollouts")
READING = (
    "R - R0 = (A - R0) / (1 + (C_mid / C)^B) fitted to the mean curve over seeds, under the "
    "context each arm is judged by, in slow steps and in training rollouts. C: compute used; R0: "
    "reward before any; A: at unlimited compute; C_mid: where half of that way is gone; B: how "
    "sharp the rise is; r2: share of the curve's variance that the fit explains. A is read off "
    "beyond what was measured and holds only if rewards go on as this curve. Its 95% interval is a "
    "profile likelihood over the measured points, which treats them as independent though they "
    "share problems: take it as a lower bound of the uncertainty, and not as one over seeds."
)
CAPTION = (
    "Mean curves (markers) and the fitted curves (lines; dotted where A is not identifiable); "
    "dashed level with its band: A and its interval."
)
HEADERS = ("arm", "against", "A", "95% of A", "C_mid", "B", "R0", "r2", "points", "why not")
Fits = Mapping[str, Mapping[str, AsymptoteFit]]
"""By arm and axis."""


def section(study: Study) -> Section | None:
    """Asymptotes of the arms that train weights; None where none of them was evaluated."""
    curves = _trained_curves(study)
    if not curves:
        return None
    fits = {arm: {x: _fit(curve, x) for x in AXES} for arm, curve in curves.items()}
    svg = to_svg(
        f"asymptote {study.experiment}",
        partial(_draw, curves, fits, arm_styles(list(counted_runs(study)))),
    )
    return Section(
        name="asymptote",
        title="Where reward is heading",
        body=[
            tag("p", READING, class_="soft"),
            *notes_of(_dropped(study, curves)),
            _table(curves, fits),
            shown_figure(svg, CAPTION),
        ],
        tables={"asymptote": _frame(fits)},
        figures={"asymptote": svg},
        summary={arm: {x: asdict(fit) for x, fit in mine.items()} for arm, mine in fits.items()},
    )


def _trained_curves(study: Study) -> dict[str, pd.DataFrame]:
    """Finite mean curves of the arms that train weights."""
    curves = {
        arm: mean_curve_of(study, runs).dropna(subset=["reward"])
        for arm, runs in counted_runs(study).items()
        if any(run.trains for run in runs)
    }
    return {arm: curve for arm, curve in curves.items() if not curve.empty}


def fits_by_step(study: Study) -> dict[str, AsymptoteFit]:
    """The fit over slow steps of every arm that trains weights."""
    return {arm: _fit(curve, "step") for arm, curve in _trained_curves(study).items()}


def _fit(curve: pd.DataFrame, x: str) -> AsymptoteFit:
    return fit_asymptote(curve[x].astype(float).to_list(), curve["reward"].astype(float).to_list())


def _dropped(study: Study, curves: Mapping[str, pd.DataFrame]) -> list[str]:
    """Steps of a mean curve that have no finite reward."""
    lost = {
        arm: int(mean_curve_of(study, counted_runs(study)[arm])["reward"].isna().sum())
        for arm in curves
    }
    return [
        f"{arm}: {counted(n, 'evaluation')} without a reward left out."
        for arm, n in lost.items()
        if n
    ]


def _table(curves: Mapping[str, pd.DataFrame], fits: Fits) -> Markup:
    rows = [
        _row(arm, x, fit, len(curves[arm])) for arm, mine in fits.items() for x, fit in mine.items()
    ]
    return table(HEADERS, rows)


def _row(arm: str, x: str, fit: AsymptoteFit, points: int) -> list[Any]:
    """The numbers of a curve whose A is unknown are not told: they are not those of the arm."""
    span = "–" if fit.interval is None else span_text((fit.interval.low, fit.interval.high))
    if not fit.identifiable:
        numbers: list[Any] = ["not identifiable", span, "–", "–", "–", number_text(fit.r2)]
    else:
        shown = (fit.A, fit.C_mid, fit.B, fit.R0, fit.r2)
        first, *rest = (number_text(value) for value in shown)
        numbers = [first, tag("span", span, class_="span"), *rest]
    return [arm, CURVE_AXES[x].partition(" (")[0], *numbers, points, fit.reason]


def _frame(fits: Fits) -> pd.DataFrame:
    rows = []
    for arm, mine in fits.items():
        for x, fit in mine.items():
            numbers = asdict(fit)
            interval = numbers.pop("interval") or {}
            ends = {"A_low": interval.get("low"), "A_high": interval.get("high")}
            rows.append({"arm": arm, "against": x, **numbers, **ends})
    return pd.DataFrame(rows)


def _draw(
    curves: Mapping[str, pd.DataFrame], fits: Fits, styles: Mapping[str, Mapping[str, Any]]
) -> Figure:
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    axes = figure.subplots(1, len(AXES), sharey=True)
    for axis, x in zip(axes, AXES, strict=True):
        for arm, curve in curves.items():
            compute, reward = (curve[name].astype(float).to_list() for name in (x, "reward"))
            _draw_fit(axis, compute, reward, fits[arm][x], styles[arm])
        axis.set(xlabel=CURVE_AXES[x], ylim=(-0.03, 1.05))
    axes[0].set_ylabel("reward (mean@k)")
    legend_of(figure, {arm: styles[arm] for arm in curves})
    return figure


def _draw_fit(
    axis: Axes,
    compute: Sequence[float],
    reward: Sequence[float],
    fit: AsymptoteFit,
    style: Mapping[str, Any],
) -> None:
    axis.plot(compute, reward, lw=0, ms=5, **style)
    if fit.A is None or fit.B is None or fit.C_mid is None or fit.R0 is None:
        return
    dense = np.linspace(0, max(compute), 200)
    fitted = sigmoid(dense, fit.A, fit.B, fit.C_mid, fit.R0)
    axis.plot(dense, fitted, "-" if fit.identifiable else ":", lw=1.8, color=style["color"])
    if fit.identifiable and fit.interval is not None:
        axis.axhline(fit.A, color=style["color"], lw=1, ls="--")
        axis.axhspan(fit.interval.low, fit.interval.high, color=style["color"], alpha=0.12, lw=0)
