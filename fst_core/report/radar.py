"""A radar chart of suites: one polygon an arm, and the polygon before training."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fst_core.report.figures import INK, MARKERS, arm_colours, legend_above, plain

FEWEST, MOST = 3, 8
"""Numbers of spokes between which a radar chart can be read."""

LABEL_CHARACTERS = 16


def readable(spokes: Collection[object]) -> bool:
    """Whether a radar chart suits this many spokes."""
    return FEWEST <= len(spokes) <= MOST


def draw_radar(
    spokes: Sequence[str],
    before: Sequence[float | None],
    after: Mapping[str, Sequence[float | None]],
) -> Figure:
    """One polygon for every arm after training over the dashed polygon before training.

    The radius is the reward, from 0 to a round number above the largest value. A spoke on which
    an arm has no value gets no marker, and the polygon is open there.

    Args:
        spokes: names of the suites, clockwise from the top.
        before: reward before training by spoke.
        after: reward after training by arm, then by spoke.
    """
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axis: Any = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(spokes), endpoint=False)
    axis.set_theta_zero_location("N")
    axis.set_theta_direction(-1)
    if any(value is not None for value in before):
        _draw_polygon(axis, angles, before, color=INK, ls="--", lw=1.6, label="before training")
    colours = arm_colours(list(after))
    for index, (arm, values) in enumerate(after.items()):
        style = {"color": colours[arm], "marker": MARKERS[index % len(MARKERS)]}
        _draw_polygon(axis, angles, values, lw=2.2, ms=6, label=f"{plain(arm)}, after", **style)
    largest = [v for row in (before, *after.values()) for v in row if v is not None]
    _draw_scale(axis, max([*largest, 0.05]))
    _name_spokes(axis, angles, spokes)
    axis.set_rlabel_position(np.degrees(_emptiest(angles, [before, *after.values()])))
    legend_above(figure, axis.get_legend_handles_labels()[0])
    return figure


def _draw_polygon(
    axis: Axes, angles: np.ndarray, values: Sequence[float | None], **style: Any
) -> None:
    radii = np.array([np.nan if value is None else value for value in values])
    axis.plot([*angles, angles[0]], [*radii, radii[0]], **style)
    if np.isfinite(radii).all():
        axis.fill(angles, radii, color=style["color"], alpha=0.06, lw=0)


def _draw_scale(axis: Any, largest: float) -> None:
    """Four rings up to a round number."""
    step = next(s for s in (0.025, 0.05, 0.1, 0.15, 0.2, 0.25, np.inf) if 4 * s >= largest)
    step = largest / 4 if np.isinf(step) else step
    rings = [step * i for i in range(1, 5)]
    axis.set_ylim(0, rings[-1] * 1.04)
    axis.set_yticks(rings, [f"{ring:.3g}" for ring in rings])
    axis.tick_params(axis="y", labelsize=8)
    axis.spines["polar"].set_visible(False)


def _emptiest(angles: np.ndarray, polygons: Sequence[Sequence[float | None]]) -> float:
    """Angle between the two neighbouring spokes with the lowest values: room for ring labels."""
    highest = np.array([max((row[i] or 0.0) for row in polygons) for i in range(len(angles))])
    gap = int(np.argmin(np.maximum(highest, np.roll(highest, -1))))
    return float(angles[gap] + np.pi / len(angles))


def _name_spokes(axis: Any, angles: np.ndarray, spokes: Sequence[str]) -> None:
    names = ["\n".join(textwrap.wrap(plain(spoke), LABEL_CHARACTERS)) for spoke in spokes]
    axis.set_xticks(angles, names)
    for label, angle in zip(axis.get_xticklabels(), angles, strict=True):
        side = np.sin(angle)
        label.set_horizontalalignment(
            "center" if abs(side) < 0.1 else "left" if side > 0 else "right"
        )
