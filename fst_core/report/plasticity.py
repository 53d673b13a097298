"""Plasticity: the same fresh training on a new task, begun from the weights other runs ended with.

An arm whose runs have no `start_from` begins from the base model; every other arm is a probe and
is compared with it, paired by seed. A ratio below 1 is plasticity lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fst_core.estimators.curves import area_under, ratio
from fst_core.report.changes import notes_of, shown_figure, single_seeds
from fst_core.report.comparison import told_kl
from fst_core.report.figures import MARKERS, arm_colours, legend_above, plain, to_svg
from fst_core.report.intervals import estimate_cell
from fst_core.report.markup import table, tag
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.statistics import (
    NOT_NEGATIVE,
    REWARD,
    Json,
    Range,
    number,
    statistic,
)
from fst_core.report.summary import KL_RANGES

MEASURES = ("area", "final")
"""Mean height of the reward curve, and the last reward."""

HEADERS = (
    "arm", "starts from", "runs counted", "steps", "area (mean height)", "ratio to base",
    "final reward", "ratio to base", "KL at the start (nats/token)", "KL at the end",
)  # fmt: skip
READING = (
    "Every arm trains afresh on the same task; only the weights it starts from differ. Area: mean "
    "height of the reward curve over slow steps (trapezoid). Ratio: to the arm that starts from "
    "the base model, seed by seed, over the steps both runs of a pair reached; below 1 is "
    "plasticity lost. KL is to the base model. Below a mean: its 95% t-interval "
    "over seeds (with two seeds, their values)."
)
CAPTION = (
    "Reward on the new task against slow steps, by what training started from. Thin: seeds; "
    "bold: their mean; thin and dashed: runs that are not counted."
)


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of fresh training: its reward curve under the context its arm is judged by."""

    run: RunLog
    counted: bool
    steps: tuple[int, ...]
    rewards: tuple[float, ...]
    """Finite rewards (mean@k) at `steps`."""
    kl: tuple[float | None, float | None]
    """KL to the base model (nats per token) at the first and at the last evaluation."""
    dropped: int
    """Evaluations without a finite reward."""

    @property
    def start(self) -> str | None:
        """The run folder whose weights it begins with; None is the base model."""
        return self.run.config.get("start_from")

    def until(self, step: float) -> tuple[list[int], list[float]]:
        """The curve up to and including a step."""
        inside = [(s, r) for s, r in zip(self.steps, self.rewards, strict=True) if s <= step]
        return [s for s, _ in inside], [r for _, r in inside]


def _probes(study: Study) -> list[Probe]:
    counted = {name for arm in study.summary["arms"].values() for name in arm["counted"]}
    trained = [run for run in study.runs if run.trains]
    curves, kl = study.tables["curves"], study.summary["kl_column"] or "kl"
    return [_probe(run, curves, kl, run.id in counted) for run in trained if run.events]


def _probe(run: RunLog, curves: pd.DataFrame, kl: str, counted: bool) -> Probe:
    mine = curves[(curves["run"] == run.id) & curves["headline"].astype(bool)].sort_values("step")
    rewards = [number(value) for value in mine["reward"]]
    points = [(int(s), r) for s, r in zip(mine["step"], rewards, strict=True) if r is not None]
    drift = [number(value) for value in mine[kl]] or [None]
    return Probe(
        run=run,
        counted=counted,
        steps=tuple(step for step, _ in points),
        rewards=tuple(reward for _, reward in points),
        kl=(drift[0], drift[-1]),
        dropped=len(rewards) - len(points),
    )


def section(study: Study) -> Section | None:
    """Fresh training from other runs' weights; None where no trained run has `start_from`."""
    probes = _probes(study)
    if all(probe.start is None for probe in probes):
        return None
    arms = {arm: [p for p in probes if p.run.arm == arm] for arm in _names(probes)}
    base, kl = _base_arm(arms), study.summary["kl_column"] or "kl"
    found = {arm: _arm(mine, arms.get(base or "", []), KL_RANGES[kl]) for arm, mine in arms.items()}
    seeds = {arm: len([p for p in mine if p.counted]) for arm, mine in arms.items()}
    notes = [*_notes(arms, base), *single_seeds(seeds)]
    svg = to_svg("plasticity", partial(_draw, arms))
    return Section(
        name="plasticity",
        title="Plasticity: fresh training from trained weights",
        body=[
            tag("p", READING, told_kl(study.summary["kl_column"]), class_="soft"),
            *notes_of(notes),
            shown_figure(svg, CAPTION),
            table(HEADERS, [_row(arm, arms[arm], found[arm], arm == base) for arm in arms]),
        ],
        tables={"plasticity": _frame(probes)},
        figures={"plasticity": svg},
        summary={"base_arm": base, "arms": found, "notes": notes},
    )


def _names(probes: Sequence[Probe]) -> list[str]:
    return list(dict.fromkeys(probe.run.arm for probe in probes))


def _base_arm(arms: Mapping[str, Sequence[Probe]]) -> str | None:
    """The first arm of which no run has `start_from`."""
    return next((a for a, mine in arms.items() if all(p.start is None for p in mine)), None)


def _arm(probes: Sequence[Probe], base: Sequence[Probe], kl_range: Range) -> Json:
    """Area and final reward over the counted seeds, each with its ratio to the base arm's."""
    counted = {probe.run.seed: probe for probe in probes if probe.counted}
    others = {probe.run.seed: probe for probe in base if probe.counted}
    ratios = {seed: _ratios(probe, others.get(seed)) for seed, probe in counted.items()}
    return {
        "area": statistic({s: area_under(p.steps, p.rewards) for s, p in counted.items()}, REWARD),
        "final": statistic(
            {s: p.rewards[-1] if p.steps else None for s, p in counted.items()}, REWARD
        ),
        **{
            f"{measure}_ratio": statistic(
                {s: both[measure] for s, both in ratios.items()}, NOT_NEGATIVE
            )
            for measure in MEASURES
        },
        "kl_start": statistic({seed: probe.kl[0] for seed, probe in counted.items()}, kl_range),
        "kl_end": statistic({seed: probe.kl[1] for seed, probe in counted.items()}, kl_range),
    }


def _ratios(probe: Probe, base: Probe | None) -> dict[str, float | None]:
    """Of one seed, over the steps that both runs reached."""
    if base is None or not probe.steps or not base.steps:
        return dict.fromkeys(MEASURES)
    shared = min(probe.steps[-1], base.steps[-1])
    (steps, rewards), (base_steps, base_rewards) = probe.until(shared), base.until(shared)
    if not steps or not base_steps:
        return dict.fromkeys(MEASURES)
    return {
        "area": ratio(area_under(steps, rewards), area_under(base_steps, base_rewards)),
        "final": ratio(rewards[-1], base_rewards[-1]),
    }


def _notes(arms: Mapping[str, Sequence[Probe]], base: str | None) -> Iterator[str]:
    from_base = [arm for arm, mine in arms.items() if all(p.start is None for p in mine)]
    if base is None:
        yield (
            "No arm starts from the base model (start_from absent in all its runs), so the ratios "
            "are undefined."
        )
    if len(from_base) > 1:
        yield f"{', '.join(from_base)} start from the base model; ratios are to {base}."
    for arm, probes in arms.items():
        if len({probe.start is None for probe in probes}) > 1:
            yield f"Some runs of {arm} start from the base model and some do not."
        yield from _arm_notes(arm, probes, [] if base in (None, arm) else arms[str(base)])


def _arm_notes(arm: str, probes: Sequence[Probe], base: Sequence[Probe]) -> Iterator[str]:
    paired = {probe.run.seed: probe for probe in base if probe.counted}
    for probe in probes:
        name, seed = probe.run.id, probe.run.seed
        if not probe.run.finished:
            kept = "counted up to there" if probe.counted else "not counted"
            yield f"{name} has not ended (slow step {probe.run.last_step}): {kept}."
        if probe.dropped:
            yield f"{name}: evaluations without a finite reward, left out: {probe.dropped}."
        if base and probe.counted and seed not in paired:
            yield f"{name} has no counted run of the base arm with its seed: no ratio."
        elif base and probe.counted and None in _ratios(probe, paired[seed]).values():
            yield (
                f"{name}: a ratio to {paired[seed].run.id} is undefined (a reward of about 0 "
                "below the line, or fewer than two evaluations)."
            )


def _row(arm: str, probes: Sequence[Probe], found: Json, is_base: bool) -> list[Any]:
    counted = [probe for probe in probes if probe.counted]
    ends = sorted({probe.steps[-1] for probe in counted if probe.steps})
    starts = dict.fromkeys(probe.start or "base model" for probe in probes)
    cells = {name: estimate_cell(value) for name, value in found.items()}
    if is_base:
        cells |= {f"{measure}_ratio": tag("span", "1 (reference)") for measure in MEASURES}
    return [
        arm,
        ", ".join(starts),
        f"{len(counted)} of {len(probes)}",
        " or ".join(map(str, ends)) or "–",
        *(cells[name] for name in ("area", "area_ratio", "final", "final_ratio")),
        *(cells[name] for name in ("kl_start", "kl_end")),
    ]


def _frame(probes: Sequence[Probe]) -> pd.DataFrame:
    columns = ("run", "arm", "seed", "start_from", "counted", "step", "reward")
    rows = [
        (p.run.id, p.run.arm, p.run.seed, p.start, p.counted, step, reward)
        for p in probes
        for step, reward in zip(p.steps, p.rewards, strict=True)
    ]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _draw(arms: Mapping[str, Sequence[Probe]]) -> Figure:
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axis = figure.subplots()
    colours = arm_colours(list(arms))
    handles = []
    for index, (arm, probes) in enumerate(arms.items()):
        style: dict[str, Any] = {"color": colours[arm], "marker": MARKERS[index % len(MARKERS)]}
        _draw_arm(axis, probes, style)
        handles.append(Line2D([], [], lw=2.4, label=plain(arm), **style))
    axis.set(xlabel="slow steps", ylabel="reward (mean@k)", ylim=(-0.03, 1.05))
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    legend_above(figure, handles)
    return figure


def _draw_arm(axis: Axes, probes: Sequence[Probe], style: dict[str, Any]) -> None:
    for probe in probes:
        dash = "-" if probe.counted else "--"
        axis.plot(probe.steps, probe.rewards, dash, lw=0.8, ms=2, alpha=0.6, **style)
    curves = [dict(zip(p.steps, p.rewards, strict=True)) for p in probes if p.counted and p.steps]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    means = [float(np.mean([curve[step] for curve in curves])) for step in shared]
    axis.plot(shared, means, lw=2.4, ms=5, **style)
