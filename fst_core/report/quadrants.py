"""Which channel brought the gain: {base, trained} weights x {seed, evolved} contexts."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fst_core.estimators.bootstrap import bootstrap_mean
from fst_core.report.arms import at_step, bounds, counted_runs, last_evaluation
from fst_core.report.changes import Measurement, measurement, notes_of, shown_figure, single_seeds
from fst_core.report.figures import INK, WIDE, arm_colours, to_svg, wrapped
from fst_core.report.intervals import estimate_cell, span_text
from fst_core.report.markup import Markup, join, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.statistics import (
    DIFFERENCE,
    DOUBLE_DIFFERENCE,
    REWARD,
    Json,
    Range,
    number,
    statistic,
)

Cell = tuple[str, str]
"""Weights ("base" or "trained") and context ("seed" or "best")."""
CELLS: tuple[Cell, ...] = tuple((w, c) for w in ("base", "trained") for c in ("seed", "best"))
START = ("base", "seed")
COLUMNS = 4
"""Panels beside each other in the figure."""
EFFECTS: dict[str, dict[Cell, int]] = {
    "weights only": {("trained", "seed"): 1, START: -1},
    "contexts only": {("base", "best"): 1, START: -1},
    "both": {("trained", "best"): 1, START: -1},
    "interaction": {
        ("trained", "best"): 1,
        ("trained", "seed"): -1,
        ("base", "best"): -1,
        START: 1,
    },
}
"""Each effect as a signed sum of cells."""
READING = (
    "Reward (mean@k) on the same problems with the same sampling seeds, at the end of the run. "
    "Below a mean: its 95% t-interval over seeds (with two seeds, their values). The evolved "
    "contexts are those the run ended with: where weights were trained too, they were evolved on "
    "those, so base weights x evolved contexts is not what a search on base weights would find."
)
EFFECT_READING = (
    "Gains over base weights under the seed context, paired by seed and problem; interaction: both "
    "- weights only - contexts only. Below a mean: its 95% t-interval over seeds (with two seeds, "
    "their values), and below that the bootstrap interval over problems, seeds as they are."
)
CAPTION = (
    "Reward of base and of trained weights, under the seed context and under the evolved ones; "
    "bars: bootstrap interval over problems."
)


def section(study: Study) -> Section | None:
    """The 2 x 2 of every arm that trains weights or evolves contexts; None where none does."""
    found = cells_and_effects(study)
    if not found:
        return None
    notes = list(_notes(study, found))
    svg = to_svg(
        f"quadrants {study.experiment}",
        partial(_draw, found, arm_colours(list(counted_runs(study)))),
    )
    return Section(
        name="quadrants",
        title="Weights or contexts: where the gain comes from",
        body=[
            tag("p", READING, class_="soft"),
            *notes_of(notes),
            _cell_table(found),
            tag("ul", *(tag("li", _sentence(arm, mine)) for arm, mine in found.items())),
            tag("p", EFFECT_READING, class_="soft"),
            _effect_table(found),
            shown_figure(svg, CAPTION),
        ],
        tables={"quadrants": _frame(found)},
        figures={"quadrants": svg},
        summary={"arms": found, "notes": notes},
    )


def cells_and_effects(study: Study) -> dict[str, Json]:
    """By arm: "cells" by "WEIGHTS x CONTEXT", and "effects" by name; means with intervals."""
    arms = {
        arm: {run.seed: cells_of(run) for run in runs}
        for arm, runs in counted_runs(study).items()
        if any(run.trains or run.evolves for run in runs)
    }
    return {arm: _arm(seeds) for arm, seeds in arms.items()}


def cells_of(run: RunLog) -> dict[Cell, Measurement]:
    """What a run measured of the four cells.

    Base weights come from `quadrant` events. Where they are absent: a run that changes no weights
    has them in its last evaluation; else the first evaluation, before the first slow step, is of
    base weights under the seed context, unless the run began with other weights.
    """
    quadrants = list(run.of("quadrant"))
    last = {context: last_evaluation(run, context) for context in ("seed", "best")}
    from_base = run.config.get("start_from") is None
    found: dict[Cell, Any] = {}
    for context in ("seed", "best") if run.evolves else ("seed",):
        steps = [event["step"] for event in quadrants if event["context"] == context]
        base = at_step(quadrants, context, max(steps, default=None))
        if run.trains:
            found["trained", context] = last[context]
            if base is None and context == "seed" and from_base:
                base = at_step(list(run.of("evaluation")), "seed", 0)
        elif base is None and from_base:
            base = last[context]
        found["base", context] = base
    return {cell: measurement(event) for cell, event in found.items() if event is not None}


def _arm(seeds: Mapping[int, Mapping[Cell, Measurement]]) -> Json:
    """Cells and effects of one arm; those that no seed measured are left out."""
    cells = {}
    for cell in CELLS:
        mine = {seed: found[cell].reward for seed, found in seeds.items() if cell in found}
        if mine:
            cells[" x ".join(cell)] = {
                **statistic(mine, REWARD),
                "over_problems": _over_problems(seeds, {cell: 1}),
            }
    effects = {
        name: {**statistic(values, _range(terms)), "over_problems": _over_problems(seeds, terms)}
        for name, terms in EFFECTS.items()
        if (values := _effect_by_seed(seeds, terms))
    }
    return {"cells": cells, "effects": effects}


def _range(terms: Mapping[Cell, int]) -> Range:
    """Of a signed sum of as many rewards as are added and taken off."""
    return DIFFERENCE if len(terms) == 2 else DOUBLE_DIFFERENCE


def _effect_by_seed(
    seeds: Mapping[int, Mapping[Cell, Measurement]], terms: Mapping[Cell, int]
) -> dict[int, float | None]:
    return {
        seed: _sum([found[cell].reward for cell in terms], list(terms.values()))
        for seed, found in seeds.items()
        if terms.keys() <= found.keys()
    }


def _sum(values: Sequence[float | None], signs: Sequence[int]) -> float | None:
    if any(value is None for value in values):
        return None
    return sum(s * v for s, v in zip(signs, values, strict=True) if v is not None)


def _over_problems(
    seeds: Mapping[int, Mapping[Cell, Measurement]], terms: Mapping[Cell, int]
) -> list[float] | None:
    """Bootstrap interval over problems of a signed sum of cells, problem by problem."""
    contrasts = []
    for found in seeds.values():
        if not terms.keys() <= found.keys():
            continue
        rows = {cell: found[cell].rewards_P_S for cell in terms}
        means = [m.mean(axis=1) * terms[cell] for cell, m in rows.items() if m is not None]
        if len(means) < len(terms) or len({len(mean) for mean in means}) > 1:
            return None
        contrasts.append(np.sum(means, axis=0)[:, None])
    if not contrasts or min(map(len, contrasts)) < 2:
        return None
    return bounds(bootstrap_mean(contrasts, "problems"))


def _notes(study: Study, found: Mapping[str, Json]) -> Iterator[str]:
    runs = counted_runs(study)
    counts = {arm: len(runs[arm]) for arm in found}
    for arm, mine in found.items():
        training, evolving = (
            any(run.trains for run in runs[arm]),
            any(run.evolves for run in runs[arm]),
        )
        quadrants = any(any(run.of("quadrant")) for run in runs[arm])
        if training and not quadrants and "base x seed" in mine["cells"]:
            yield f"{arm}: base x seed is the evaluation at step 0, for want of one at the end."
        wanted = [
            cell
            for cell in CELLS
            if (training or cell[0] == "base") and (evolving or cell[1] == "seed")
        ]
        for cell in (" x ".join(cell) for cell in wanted):
            measured = mine["cells"].get(cell, {"n": 0, "seeds": {}})
            if not measured["seeds"]:
                yield f"{arm}: {cell} was not measured."
            elif measured["n"] < counts[arm]:
                yield f"{arm}: {cell} has a finite reward in {measured['n']} of {counts[arm]} runs."
    yield from single_seeds(counts)


def _cell_table(found: Mapping[str, Json]) -> Markup:
    names = [" x ".join(cell) for cell in CELLS]
    rows = [
        [arm, *(_cell(mine["cells"].get(name)) for name in names)] for arm, mine in found.items()
    ]
    headers = (
        "arm", "base weights, seed context", "base weights, evolved contexts",
        "trained weights, seed context", "trained weights, evolved contexts",
    )  # fmt: skip
    return table(headers, rows)


def _cell(found: Json | None) -> Any:
    return "–" if found is None else estimate_cell(found)


def _effect_table(found: Mapping[str, Json]) -> Markup:
    rows = [
        [arm, *(_effect_cell(mine["effects"].get(name)) for name in EFFECTS)]
        for arm, mine in found.items()
    ]
    return table(("arm", *EFFECTS), rows)


def _effect_cell(found: Json | None) -> Any:
    if found is None:
        return "–"
    problems = f"problems: {span_text(found['over_problems'])}"
    return join(estimate_cell(found), tag("div", problems, class_="soft span"))


def _sentence(arm: str, found: Json) -> str:
    """The gain attributed to each channel, as far as it was measured."""
    effects = {name: effect["mean"] for name, effect in found["effects"].items()}
    known = {name: value for name, value in effects.items() if value is not None}
    start = found["cells"].get("base x seed", {}).get("mean")
    if not known or start is None:
        return f"{arm}: no gain can be told, for base weights under the seed context are not known."
    parts = [f"{name} {value:+.3f}" for name, value in known.items()]
    return f"{arm}, from {number_text(start)}: {', '.join(parts)}{_share(known)}."


def _share(known: Mapping[str, float]) -> str:
    if not {"weights only", "contexts only", "interaction"} <= known.keys():
        return ""
    largest = max(("weights only", "contexts only", "interaction"), key=lambda name: known[name])
    channel = {
        "weights only": "the weights alone",
        "contexts only": "the contexts alone",
        "interaction": "the interaction: each is worth more with the other",
    }[largest]
    return (
        f"; the largest part in the mean is that of {channel}"
        if known[largest] > 0
        else "; no part is a gain in the mean"
    )


def _frame(found: Mapping[str, Json]) -> pd.DataFrame:
    """One row per arm and cell or effect."""
    names = ("arm", "kind", "name", "seeds", "mean", "low", "high", "problems_low", "problems_high")
    rows = [
        (
            *(arm, kind, name, item["n"], item["mean"]),
            *(item["interval"] or (None, None)),
            *(item["over_problems"] or (None, None)),
        )
        for arm, mine in found.items()
        for kind, items in (("cell", mine["cells"]), ("effect", mine["effects"]))
        for name, item in items.items()
    ]
    return pd.DataFrame(rows, columns=pd.Index(names))


def _draw(found: Mapping[str, Json], colours: Mapping[str, str]) -> Figure:
    columns = min(COLUMNS, len(found))
    lines = -(-len(found) // columns)
    size = (max(4.2, WIDE / COLUMNS * columns), 3.0 * lines + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    axes = grid.flatten()
    for axis in axes[len(found) :]:
        axis.set_visible(False)
    for axis, (arm, mine) in zip(axes, found.items(), strict=False):
        _draw_arm(axis, mine["cells"], colours[arm])
        axis.set(title=wrapped(arm), xlim=(-0.35, 1.35), ylim=(-0.03, 1.05))
        axis.set_xticks([0, 1], ["base\nweights", "trained\nweights"])
        axis.grid(visible=False, axis="x")
    for axis in grid[:, 0]:
        axis.set_ylabel("reward (mean@k)")
    handles = [
        Line2D([], [], color=INK, label=label, **CONTEXT_LINES[context])
        for context, label in (("seed", "seed context"), ("best", "evolved contexts"))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


CONTEXT_LINES: dict[str, dict[str, Any]] = {
    "seed": {"marker": "o", "ls": "--", "mfc": "none", "mew": 1.6, "lw": 1.6},
    "best": {"marker": "s", "ls": "-", "lw": 2.2},
}


def _draw_arm(axis: Axes, cells: Mapping[str, Json], colour: str) -> None:
    for context, style in CONTEXT_LINES.items():
        points = []
        for place, weights in enumerate(("base", "trained")):
            item = cells.get(f"{weights} x {context}")
            if item is None or number(item["mean"]) is None:
                continue
            points.append((place + (0.04 if context == "best" else -0.04), item["mean"]))
            if item["over_problems"]:
                axis.plot([points[-1][0]] * 2, item["over_problems"], color=colour, lw=1, alpha=0.8)
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, ms=7, **style)
