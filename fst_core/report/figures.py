"""Figures of a study as deterministic SVG that reads on light and on dark backgrounds.

Text and axes are drawn in a marker colour that becomes `currentColor`: inside a page they take the
page's colour, and a file opened on its own follows the viewer's colour scheme. Arms have fixed
colours (Okabe-Ito, without those too pale for white) and a marker each.
"""

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fst_core.report.headline import rl_learned
from fst_core.report.markup import Markup
from fst_core.report.summary import mean_curve

MATPLOTLIB_ID = r"[a-z]+[0-9a-f]{10}"
INK = "#123457"
"""Stands for `currentColor` until the SVG is written; no palette colour equals it."""

KNOWN_COLOURS = {"rl": "#D55E00", "fst": "#0072B2", "gepa": "#009E73", "base": "#8A8A8A"}
OTHER_COLOURS = ("#CC79A7", "#56B4E9", "#E69F00", "#A06A42", "#7F7FBF")
MARKERS = "osD^vPX*<>"
PART_COLOURS = {
    "fast": "#009E73",
    "slow: generate": "#56B4E9",
    "slow: update": "#0072B2",
    "slow": "#0072B2",
    "evaluation": "#CC79A7",
    "other": "#8A8A8A",
}
OPERATOR_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#A06A42")
STANDALONE_STYLE = (
    "<style>svg{color:#333}@media (prefers-color-scheme:dark){svg{color:#ccc}}</style>"
)
WIDE, HALF = 9.2, 5.6
"""Widths of figures (inches): about those of the page and of half of it, so that text keeps its
size there."""
LEGEND_HANDLE_INCHES, LEGEND_CHARACTER_INCHES, LEGEND_LINE_INCHES = 0.6, 0.085, 0.2
CURVE_AXES = {
    "step": "slow steps",
    "rollouts": "training rollouts (slow + fast)",
    "kl": "KL to the base model, k1 (nats per token)",
    "kl_exact": "KL to the base model, exact (nats per token)",
    "seconds": "training wall time (s, slow + fast)",
}
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "grid.color"), INK
    ),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


def arm_colours(arms: Sequence[str]) -> dict[str, str]:
    """A fixed colour for each arm: known arms always have theirs, others take the next free one."""
    others = iter([*OTHER_COLOURS] * (len(arms) // len(OTHER_COLOURS) + 1))
    return {arm: KNOWN_COLOURS[arm] if arm in KNOWN_COLOURS else next(others) for arm in arms}


def arm_styles(arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each arm, in the order the study lists them, for `Axes.plot`."""
    names = list(dict.fromkeys(arms))
    colours = arm_colours(names)
    return {
        arm: {"color": colours[arm], "marker": MARKERS[i % len(MARKERS)]}
        for i, arm in enumerate(names)
    }


def legend_above(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend above the panels, in as many columns as its longest label leaves room for.

    The figure grows by what the legend's further lines take.
    """
    longest = max((len(handle.get_label()) for handle in handles), default=0)
    width = LEGEND_HANDLE_INCHES + LEGEND_CHARACTER_INCHES * longest
    columns = max(1, min(6, len(handles), int(figure.get_figwidth() / width)))
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE_INCHES * max(0, lines - 1))
    figure.legend(handles=list(handles), loc="outside upper center", ncols=columns)


def wrapped(name: str) -> str:
    """A name beside an axis: lines of at most 20 characters, so that the panel keeps its room."""
    return "\n".join(textwrap.wrap(plain(name), 20)) or name


def legend_of(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """A legend of the arms above the panels."""
    handles = [
        Line2D([], [], lw=2.4, label=plain(arm), **{"ms": 5, **style})
        for arm, style in styles.items()
    ]
    legend_above(figure, handles)


def to_svg(name: str, draw: Callable[[], Figure]) -> str:
    """Draw under the report's style and return the SVG text, identical for identical data."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        buffer = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        # "tight": labels outside the axes, as around a radar, are never cut off
        draw().savefig(
            buffer, format="svg", transparent=True, metadata=metadata, bbox_inches="tight"
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    return svg.replace(">", f">{STANDALONE_STYLE}", 1)


def inline(svg: str) -> str:
    """The SVG for use inside a page: the page's colours, and only those ids that are used."""
    svg = svg.replace(STANDALONE_STYLE, "", 1)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    return re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)


def apart(page: Markup, prefix: str) -> Markup:
    """A page's part whose figures' ids begin with `prefix`, so that no other part has the same."""
    # A quote in text is always escaped, so these are attributes and never what a run wrote.
    named = rf'( id="|="url\(#|href="#)({MATPLOTLIB_ID})(?=["\)])'
    return Markup(re.sub(named, rf"\g<1>{prefix}\g<2>", page))


def plain(text: str, longest: int = 40) -> str:
    """Text that matplotlib draws as it is: no mathematics between dollar signs, cut if longer."""
    short = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return short.replace("$", r"\$")


def all_figures(summary: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Every figure that the data allows, as SVG text by file stem.

    rl's peak is drawn where rl rose above its first evaluation: else there is nothing to reach.
    """
    curves, populations, kl = tables["curves"], tables["populations"], summary["kl_column"]
    counted = {run for arm in summary["arms"].values() for run in arm["counted"]}
    figures: dict[str, Callable[[], Figure]] = {}
    peak = summary["rl_peak"] if rl_learned(summary) else None
    if not curves.empty:
        for name in ("step", "rollouts", "kl", "seconds"):
            x = kl if name == "kl" else name
            if x is not None and curves.loc[curves["headline"], x].notna().any():
                draw = partial(draw_curves, curves, counted, x, peak)
                figures[f"reward_by_{name}"] = draw
    if any(arm["seconds"]["total"] for arm in summary["arms"].values()):
        figures["seconds"] = partial(draw_seconds, summary["arms"])
    if not populations.empty:
        figures["populations"] = partial(draw_populations, populations)
    return {name: to_svg(name, draw) for name, draw in figures.items()}


def draw_curves(
    curves: pd.DataFrame, counted: set[str], x: str, peak: Mapping[str, Any] | None
) -> Figure:
    """Reward against `x`: seeds thin (dashed if not counted), arm means bold, rl's peak dotted.

    Against steps a second panel shows the seed context alone.
    """
    panels = {"context each arm is judged by": curves[curves["headline"]]}
    if x == "step":
        panels["seed context"] = curves[curves["context"] == "seed"]
    figure = Figure(figsize=(WIDE if len(panels) > 1 else HALF, 3.7), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    arms = list(dict.fromkeys(curves["arm"]))
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        _draw_arms(axis, rows, counted, x, arms)
        axis.set(title=plain(title) if len(panels) > 1 else "", xlabel=CURVE_AXES[x])
        axis.set_ylim(-0.03, 1.05)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=x in ("step", "rollouts")))
        if x == "rollouts":
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes[0].set_ylabel("reward (mean@k)")
    if peak is not None:
        axes[0].axhline(peak["reward"], color=INK, lw=1.5, ls=":")
    _legend(figure, arms, peak is not None)
    return figure


def _draw_arms(
    axis: Axes, rows: pd.DataFrame, counted: set[str], x: str, arms: Sequence[str]
) -> None:
    colours = arm_colours(arms)
    for index, arm in enumerate(arms):
        mine = rows[(rows["arm"] == arm) & rows[x].notna()].sort_values("step")
        style: dict[str, Any] = {"color": colours[arm], "marker": MARKERS[index % len(MARKERS)]}
        for run, line in mine.groupby("run"):
            dash = "-" if run in counted else "--"
            axis.plot(line[x], line["reward"], dash, lw=0.8, ms=2, alpha=0.6, **style)
        mean = mean_curve(mine[mine["run"].isin(counted)])
        axis.plot(mean[x], mean["reward"], lw=2.4, ms=5, **style)


def _legend(figure: Figure, arms: Sequence[str], peak: bool) -> None:
    colours = arm_colours(arms)
    handles = [
        Line2D(
            [], [], color=colours[arm], marker=MARKERS[i % len(MARKERS)], lw=2.4, label=plain(arm)
        )
        for i, arm in enumerate(arms)
    ]
    if peak:
        handles.append(Line2D([], [], color=INK, lw=1.5, ls=":", label="rl's peak"))
    legend_above(figure, handles)


def draw_populations(populations: pd.DataFrame) -> Figure:
    """Anchor mean of every slot at every cycle, one panel a run, coloured by operator.

    A line joins a context to itself or to a parent in the cycle before.
    """
    runs = list(dict.fromkeys(populations["run"]))
    operators = sorted(set(populations["operator"]))
    colours = dict(zip(operators, OPERATOR_COLOURS * len(operators), strict=False))
    columns = min(2, len(runs))
    lines = -(-len(runs) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.7 * lines + 0.5), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    for axis, run in zip(axes, runs, strict=False):
        _draw_population(axis, populations[populations["run"] == run], colours)
        axis.set(title=plain(str(run)), xlabel="cycle", ylim=(-0.05, 1.08))
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    for axis in axes[len(runs) :]:
        axis.set_visible(False)
    for axis in axes[::columns]:
        axis.set_ylabel("anchor mean reward")
    handles = [
        Line2D([], [], color=colour, marker="o", lw=0, label=plain(operator))
        for operator, colour in colours.items()
    ]
    legend_above(figure, handles)
    return figure


def _draw_population(axis: Axes, rows: pd.DataFrame, colours: Mapping[str, str]) -> None:
    slots = max(1, rows["slot"].max())
    before: dict[str, tuple[float, float]] = {}
    for _, cycle in rows.dropna(subset=["anchor_mean"]).groupby("cycle"):
        here: dict[str, tuple[float, float]] = {}
        for row in cycle.to_dict("records"):
            place = (row["cycle"] + 0.3 * (row["slot"] / slots - 0.5), row["anchor_mean"])
            for origin in sorted({row["context_id"], *row["parents"].split()} & before.keys()):
                (x0, y0), (x1, y1) = before[origin], place
                axis.plot([x0, x1], [y0, y1], color=INK, lw=0.6, alpha=0.5, zorder=1)
            axis.plot(*place, marker="o", ms=5, color=colours[row["operator"]], zorder=2)
            here.setdefault(row["context_id"], place)
        before = here


def draw_seconds(arms: Mapping[str, Any]) -> Figure:
    """Mean wall seconds of an arm's runs by part, stacked; the total stands at the bar's end."""
    shown = {arm: _parts(summary["seconds"]) for arm, summary in arms.items() if summary["counted"]}
    names = list(shown)[::-1]
    figure = Figure(figsize=(HALF, 0.55 * len(names) + 1.7), layout="constrained")
    axis = figure.subplots()
    starts, handles = dict.fromkeys(names, 0.0), list[Any]()
    for part, colour in PART_COLOURS.items():
        widths = [shown[name][part] for name in names]
        if any(widths):
            lefts = [starts[name] for name in names]
            bars = axis.barh(range(len(names)), widths, 0.6, lefts, color=colour, label=part)
            handles.append(bars[0])
            bars[0].set_label(part)
        for name, width in zip(names, widths, strict=True):
            starts[name] += width
    for index, name in enumerate(names):
        place, offset = (starts[name], index), (5, 0)
        axis.annotate(f"{place[0]:,.0f} s", place, offset, textcoords="offset points", va="center")
    axis.set_xlim(0, 1.14 * max([*starts.values(), 1e-9]))
    axis.set_yticks(range(len(names)), [wrapped(name) for name in names])
    axis.set_xlabel("wall time (s, mean over runs)")
    axis.grid(visible=False, axis="y")
    legend_above(figure, handles)
    return figure


def _parts(seconds: Mapping[str, float | None]) -> dict[str, float]:
    known = {name: value or 0.0 for name, value in seconds.items() if name != "training"}
    generate = min(known["slow_generate"], known["slow"])
    apart = generate > 0
    return {
        "fast": known["fast"],
        "slow: generate": generate,
        "slow: update": known["slow"] - generate if apart else 0.0,
        "slow": 0.0 if apart else known["slow"],
        "evaluation": known["evaluation"],
        "other": known["other"],
    }


def write_figures(figures: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Write each figure to `folder`/NAME.svg and return the paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.svg" for name in figures}
    for name, svg in figures.items():
        paths[name].write_text(svg)
    return paths
