"""Rewards before and after: paired by seed and problem, as a table's cells and as a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fst_core.estimators.best_at_k import best_at_k, mean_at_k
from fst_core.estimators.bootstrap import paired_difference
from fst_core.journal import Event
from fst_core.report.figures import INK, MARKERS, arm_colours, inline, legend_above, plain, wrapped
from fst_core.report.intervals import subtracted_cells
from fst_core.report.markup import Markup, tag
from fst_core.report.statistics import DIFFERENCE, REWARD, Json, number, statistic


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rewards of one policy under one context on a fixed list of problems."""

    reward: float | None
    """mean@k in [0, 1]; None where it is undefined."""
    best: float | None
    """best@k, k being all samples, in [0, 1]; None where it is undefined."""
    rewards_P_S: NDArray[np.float64] | None
    """Problems x samples; None where rewards are missing, ragged or not finite."""


GAINED, LOST = 1, -1
"""Signs of a difference: after - before, and before - after."""

Pair = tuple[Measurement | None, Measurement | None]
"""Before and after; None where it was not measured."""


def measurement(event: Event) -> Measurement:
    """What an `evaluation` or `suite` event measured: from its rewards, else from its metrics."""
    rewards = _matrix(event.get("rewards"))
    if rewards is not None:
        best = best_at_k(rewards, rewards.shape[1])
        return Measurement(float(mean_at_k(rewards)), float(np.mean(best)), rewards)
    metrics = event["metrics"]
    return Measurement(metric(metrics, "reward"), metric(metrics, "best_at_k"), None)


def metric(metrics: Mapping[str, Any], name: str) -> float | None:
    """The metric GROUP/`name` whatever its group; None where it is missing or not finite."""
    return next((number(v) for key, v in metrics.items() if key.rpartition("/")[2] == name), None)


def _matrix(rewards: Any) -> NDArray[np.float64] | None:
    rows = rewards or [[]]
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        return None
    matrix = np.array(rows, dtype=float)
    return matrix if np.isfinite(matrix).all() else None


def average(parts: Sequence[Measurement | None]) -> Measurement | None:
    """The mean over measurements, each with the same weight; None unless every one is defined.

    The problems are put together only where all parts have the same number of problems and
    samples, for then their mean is the mean over the parts.
    """
    known = [part for part in parts if part is not None and part.reward is not None]
    if not known or len(known) < len(parts):
        return None
    matrices = [part.rewards_P_S for part in known if part.rewards_P_S is not None]
    same = len(matrices) == len(known) and len({matrix.shape for matrix in matrices}) == 1
    bests = [part.best for part in known if part.best is not None]
    return Measurement(
        reward=float(np.mean([part.reward for part in known])),
        best=float(np.mean(bests)) if len(bests) == len(known) else None,
        rewards_P_S=np.concatenate(matrices) if same else None,
    )


def change(pairs: Mapping[int, Pair], sign: int = GAINED) -> Json:
    """Before, after and their difference over the seeds of an arm, as plain JSON types.

    Args:
        pairs: measurements by seed.
        sign: GAINED or LOST.

    Returns:
        `before`, `after`, `difference` (mean@k) and `best_before`, `best_after`, `best_difference`
        (best@k), each a mean over the seeds that have it with its t-interval over seeds;
        `over_problems`: the bootstrap interval of `difference` over problems, seeds fixed, or null.
    """
    return {
        **_differences(pairs, "reward", "", sign),
        **_differences(pairs, "best", "best_", sign),
        "over_problems": _over_problems(list(pairs.values()), sign),
    }


def _differences(pairs: Mapping[int, Pair], field: str, prefix: str, sign: int) -> Json:
    values = {
        seed: (getattr(before, field, None), getattr(after, field, None))
        for seed, (before, after) in pairs.items()
    }
    differences = {
        seed: None if before is None or after is None else sign * (after - before)
        for seed, (before, after) in values.items()
    }
    return {
        f"{prefix}before": statistic({s: before for s, (before, _) in values.items()}, REWARD),
        f"{prefix}after": statistic({s: after for s, (_, after) in values.items()}, REWARD),
        f"{prefix}difference": statistic(differences, DIFFERENCE),
    }


def _over_problems(pairs: Sequence[Pair], sign: int) -> list[float] | None:
    matrices = [
        (before.rewards_P_S, after.rewards_P_S)
        for before, after in pairs
        if before is not None and after is not None
    ]
    whole = [(a, b) for a, b in matrices if a is not None and b is not None and len(a) == len(b)]
    if not whole or min(len(a) for a, _ in whole) < 2:
        return None
    first, second = zip(*whole, strict=True)
    if sign > 0:
        first, second = second, first
    found = paired_difference(list(first), list(second), over="problems")
    return None if found is None else [found.low, found.high]


def before_after(found: Json, sign: int, prefix: str = "") -> list[Markup]:
    """Cells of a change: before, after and their difference, which read as a subtraction.

    Args:
        found: as `change` makes it of `sign`.
        prefix: "" for mean@k, "best_" for best@k.
    """
    before, after, difference = (
        found[f"{prefix}{name}"] for name in ("before", "after", "difference")
    )
    if sign == LOST:
        return subtracted_cells(before, after, difference)
    after_cell, before_cell, gain = subtracted_cells(after, before, difference)
    return [before_cell, after_cell, gain]


def shown_figure(svg: str, caption: str, width: str = "wide") -> Markup:
    """A figure inside the page; `width` is "wide" or "half"."""
    return tag("figure", Markup(inline(svg)), tag("figcaption", caption), class_=width)


def notes_of(sentences: Sequence[str]) -> list[Markup]:
    """What is missing or undefined, each a marked paragraph."""
    return [tag("p", sentence, class_="note") for sentence in sentences]


def single_seeds(seeds_by_arm: Mapping[str, int]) -> list[str]:
    """A sentence on the arms that have no interval over seeds for want of a second seed."""
    single = [arm for arm, seeds in seeds_by_arm.items() if seeds == 1]
    return [f"One seed, so no interval over seeds: {', '.join(single)}."] if single else []


@dataclass(frozen=True, slots=True)
class Dumbbell:
    """One line of a before-and-after figure; None is not drawn."""

    group: str
    arm: str
    before: float | None
    after: float | None


def draw_changes(
    dumbbells: Sequence[Dumbbell], xlabel: str, before: str = "before", after: str = "after"
) -> Figure:
    """Hollow marker before, filled marker after, joined; groups one under another, arms as colours.

    Args:
        dumbbells: lines in reading order, those of a group one after another.
        xlabel: what is measured, with its unit.
        before: what a hollow marker stands for.
        after: what a filled marker stands for.
    """
    arms = list(dict.fromkeys(line.arm for line in dumbbells))
    groups = list(dict.fromkeys(line.group for line in dumbbells))
    heights = _heights(dumbbells)
    figure = Figure(figsize=(7.2, 0.24 * max(heights) + 1.7), layout="constrained")
    axis = figure.subplots()
    colours = arm_colours(arms)
    for line, height in zip(dumbbells, heights, strict=True):
        _draw_dumbbell(axis, line, height, colours[line.arm], MARKERS[arms.index(line.arm) % 10])
    centres = [
        float(np.mean([h for d, h in zip(dumbbells, heights, strict=True) if d.group == group]))
        for group in groups
    ]
    axis.set_yticks(centres, [wrapped(group) for group in groups])
    axis.set_ylim(max(heights) + 0.8, -0.8)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(xlabel)
    values = [v for line in dumbbells for v in (line.before, line.after) if v is not None]
    top = max([*values, 0.05])
    axis.set_xlim(min([*values, 0.0]) - 0.03 * top, 1.06 * top)
    handles = _dumbbell_legend(arms, before, after)
    legend_above(figure, handles)
    return figure


def _heights(dumbbells: Sequence[Dumbbell]) -> list[float]:
    """One unit a line, and one more between groups."""
    heights: list[float] = []
    for index, line in enumerate(dumbbells):
        step = 2.0 if index and dumbbells[index - 1].group != line.group else 1.0
        heights.append(heights[-1] + step if heights else 0.0)
    return heights


def _draw_dumbbell(axis: Axes, line: Dumbbell, height: float, colour: str, marker: str) -> None:
    style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 7, "zorder": 3, "lw": 0}
    if line.before is not None and line.after is not None:
        axis.plot([line.before, line.after], [height, height], color=colour, lw=1.6, alpha=0.6)
    if line.before is not None:
        axis.plot([line.before], [height], mfc="none", mew=1.5, **style)
    if line.after is not None:
        axis.plot([line.after], [height], **style)


def _dumbbell_legend(arms: Sequence[str], before: str, after: str) -> list[Line2D]:
    colours = arm_colours(arms)
    handles = [
        Line2D([], [], color=colours[arm], marker=MARKERS[i % 10], lw=1.6, label=plain(arm))
        for i, arm in enumerate(arms)
    ]
    ring: dict[str, Any] = {"color": INK, "marker": "o", "lw": 0}
    return [
        *handles,
        Line2D([], [], mfc="none", label=before, **ring),
        Line2D([], [], label=after, **ring),
    ]
