"""Rewards at the end: one sample and the best of k, per arm, context and task, with intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from fst_core.estimators.best_at_k import best_at_k
from fst_core.estimators.bootstrap import Over, bootstrap_mean
from fst_core.journal import Event
from fst_core.report.arms import CONTEXTS, bounds, counted_runs, last_evaluation, mean_curve_of
from fst_core.report.changes import Measurement, measurement, notes_of, shown_figure, single_seeds
from fst_core.report.figures import arm_styles, legend_of, plain, to_svg
from fst_core.report.intervals import estimate_cell, span_text
from fst_core.report.markup import Markup, details, join, number_text, table, tag
from fst_core.report.section import Section, Study
from fst_core.report.statistics import REWARD, Json, number, statistic

READING = (
    "The last evaluation of the runs counted. mean@k: mean over a problem's k samples; below it "
    "the 95% t-interval over seeds (with two seeds, their values). Over problems: bootstrap "
    "interval, seeds as they are (what other problems would give); over problems and seeds: both "
    "resampled. Running maximum: the highest point of the mean curve over seeds."
)
BEST_READING = (
    "best@k: expected best reward of k of a problem's samples, unbiased (pass@k for rewards of 0 "
    "and 1); below it the bootstrap interval over problems, seeds as they are."
)
CAPTION = (
    "Left: final reward (mean@k) with its bootstrap interval over problems. Right: best@k against "
    "k under the context each arm is judged by."
)


@dataclass(frozen=True, slots=True)
class Final:
    """The last measurement of an arm under one context, on all problems or on those of a task."""

    arm: str
    context: str
    task: str
    """Empty for all problems of the evaluation."""
    seeds: Mapping[int, Measurement]

    @property
    def name(self) -> str:
        return f"{self.arm} / {self.context}{self.task and f' / {self.task}'}"

    @property
    def matrices(self) -> list[np.ndarray]:
        """Rewards, [P, S] a seed; none at all unless every seed has them."""
        found = [m.rewards_P_S for m in self.seeds.values() if m.rewards_P_S is not None]
        return found if len(found) == len(self.seeds) else []

    @property
    def samples(self) -> int:
        """Samples that every seed drew of a problem."""
        return min((matrix.shape[1] for matrix in self.matrices), default=0)


def section(study: Study) -> Section | None:
    """Final rewards of every arm; None where nothing was evaluated."""
    finals = [final for arm in counted_runs(study) for final in _finals(study, arm)]
    if not finals:
        return None
    found = [_numbers(study, final) for final in finals]
    contexts = {arm: study.summary["arms"][arm]["context"] for arm in counted_runs(study)}
    seeds = {final.arm: len(final.seeds) for final in finals if final.context == "seed"}
    notes = [*_undefined(finals), *single_seeds(seeds)]
    svg = to_svg(f"rewards {study.experiment}", partial(_draw, found, contexts))
    return Section(
        name="rewards",
        title="Reward at the end",
        body=[
            tag("p", READING, class_="soft"),
            *notes_of(notes),
            _mean_table(found),
            _best_table(found),
            shown_figure(svg, CAPTION),
        ],
        tables={"rewards": _frame(found)},
        figures={"rewards": svg},
        summary={"final": found, "notes": notes},
    )


def _finals(study: Study, arm: str) -> Iterator[Final]:
    runs = counted_runs(study)[arm]
    for context in CONTEXTS:
        events = {run.seed: last_evaluation(run, context) for run in runs}
        measured = {seed: event for seed, event in events.items() if event is not None}
        if not measured:
            continue
        tasks = list(
            dict.fromkeys(n for event in measured.values() for n in event.get("tasks", ()))
        )
        for task in ("", *tasks):
            seeds = {s: m for s, e in measured.items() if (m := _of_task(e, task)) is not None}
            if seeds:
                yield Final(arm, context, task, seeds)


def _of_task(event: Event, task: str) -> Measurement | None:
    """A task's part of an evaluation: rows of rewards stand task by task, equally many each."""
    tasks = list(event.get("tasks", ()))
    if not task:
        return measurement(event)
    if task not in tasks:
        return None
    rows, place = event.get("rewards") or [], tasks.index(task)
    share = len(rows) // len(tasks)
    whole = share * len(tasks) == len(rows)
    mine = rows[place * share : (place + 1) * share] if whole else []
    return measurement({"metrics": event["tasks"][task], "rewards": mine})


def _numbers(study: Study, final: Final) -> Json:
    runs = [run for run in counted_runs(study)[final.arm] if run.seed in final.seeds]
    return {
        "arm": final.arm,
        "context": final.context,
        "task": final.task,
        "problems": max((len(matrix) for matrix in final.matrices), default=None),
        "samples": final.samples or None,
        "mean": statistic({s: found.reward for s, found in final.seeds.items()}, REWARD),
        "over_problems": _interval(final, "problems"),
        "over_problems_and_seeds": _interval(final, "problems and seeds"),
        "running_max": _highest(mean_curve_of(study, runs, final.context), final),
        "best": {str(k): _best(final, k) for k in _ks(final.samples)},
    }


def _highest(curve: pd.DataFrame, final: Final) -> float | None:
    """Of the mean curve; the context "none" is measured twice only, and a task has no curve."""
    if final.task or final.context == "none" or curve.empty:
        return None
    return number(curve["reward"].max())


def _ks(samples: int) -> list[int]:
    """1, 2, 4, ... and all samples."""
    powers = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    return powers if not samples or powers[-1] == samples else [*powers, samples]


def _interval(final: Final, over: Over, k: int | None = None) -> list[float] | None:
    """Undefined for a single problem, whose spread is unknown."""
    matrices = final.matrices
    if not matrices or min(map(len, matrices)) < 2:
        return None
    best = None if k is None else partial(best_at_k, k=k)
    return bounds(bootstrap_mean(matrices, over, statistic=best))


def _best(final: Final, k: int) -> Json:
    means = [float(best_at_k(matrix, k).mean()) for matrix in final.matrices]
    return {"mean": float(np.mean(means)), "over_problems": _interval(final, "problems", k)}


def _undefined(finals: Sequence[Final]) -> Iterator[str]:
    for final in finals:
        lost = [str(seed) for seed, found in final.seeds.items() if found.reward is None]
        if lost:
            seeds = ", ".join(lost)
            yield f"{final.name}: the last reward of seed {seeds} is not a number and was left out."
        elif not final.matrices:
            yield f"{final.name}: no rewards by problem in the journal, so no interval over them."


def _mean_table(found: Sequence[Json]) -> Markup:
    tasks = any(item["task"] for item in found)
    headers = [
        "arm", "context", *["task"] * tasks, "seeds", "problems x samples", "mean@k",
        "over problems", "over problems and seeds", "running maximum",
    ]  # fmt: skip
    return table(headers, [_mean_row(item, tasks) for item in found])


def _mean_row(item: Json, tasks: bool) -> list[Any]:
    size = f"{item['problems']} x {item['samples']}" if item["problems"] else "–"
    return [
        *_names(item, tasks),
        item["mean"]["n"],
        size,
        estimate_cell(item["mean"]),
        *(_span(item[key]) for key in ("over_problems", "over_problems_and_seeds")),
        number_text(item["running_max"]),
    ]


def _names(item: Json, tasks: bool) -> list[Any]:
    return [item["arm"], item["context"], *[item["task"] or "all"] * tasks]


def _span(found: Sequence[float] | None) -> Markup:
    return tag("span", span_text(found), class_="span")


def _best_table(found: Sequence[Json]) -> Markup:
    ks = sorted({int(k) for item in found for k in item["best"]})
    tasks = any(item["task"] for item in found)
    rows = [[*_names(item, tasks), *(_best_cell(item, k) for k in ks)] for item in found]
    headers = ("arm", "context", *["task"] * tasks, *(f"best@{k}" for k in ks))
    return details("best@k", tag("p", BEST_READING, class_="soft"), table(headers, rows))


def _best_cell(item: Json, k: int) -> Markup:
    best = item["best"].get(str(k))
    if best is None:
        return Markup("–")
    below = tag("div", span_text(best["over_problems"]), class_="soft span")
    return join(number_text(best["mean"]), below)


def _frame(found: Sequence[Json]) -> pd.DataFrame:
    """One row per arm, context, task and measure (mean, or best of k)."""
    rows = []
    for item in found:
        best = {"mean": item["mean"]["mean"], "over_problems": item["over_problems"]}
        for measure, k, value in (
            ("mean", item["samples"], best),
            *(("best", int(k), value) for k, value in item["best"].items()),
        ):
            low, high = value["over_problems"] or (None, None)
            same = {name: item[name] for name in ("arm", "context", "task", "problems", "samples")}
            rows.append(
                {**same, "seeds": item["mean"]["n"], "measure": measure, "k": k,
                 "value": value["mean"], "low": low, "high": high, "over": "problems"}
            )  # fmt: skip
    return pd.DataFrame(rows)


def _draw(found: Sequence[Json], contexts: Mapping[str, str]) -> Figure:
    whole = [item for item in found if not item["task"]]
    figure = Figure(figsize=(9.2, max(3.2, 0.34 * len(whole) + 1.2)), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = arm_styles(list(contexts))
    _draw_finals(left, whole, styles)
    judged = [item for item in whole if contexts[item["arm"]] == item["context"]]
    _draw_best(right, judged, styles)
    legend_of(figure, styles)
    return figure


def _draw_finals(axis: Axes, found: Sequence[Json], styles: Mapping[str, Json]) -> None:
    for height, item in enumerate(found):
        mean, style = item["mean"]["mean"], styles[item["arm"]]
        if mean is None:
            axis.annotate("undefined", (0, height), va="center")
            continue
        axis.plot([mean], [height], lw=0, **style)
        if item["over_problems"] is not None:
            axis.plot(item["over_problems"], [height, height], color=style["color"], lw=1.8)
    labels = [f"{plain(item['arm'], 24)}, {item['context']}" for item in found]
    axis.set_yticks(range(len(found)), labels)
    axis.set(xlim=(-0.03, 1.03), ylim=(len(found) - 0.4, -0.6), xlabel="final reward (mean@k)")
    axis.grid(visible=False, axis="y")


def _draw_best(axis: Axes, found: Sequence[Json], styles: Mapping[str, Json]) -> None:
    for item in found:
        points = [(int(k), best["mean"]) for k, best in item["best"].items()]
        if points:
            axis.plot(*zip(*points, strict=True), lw=2, **styles[item["arm"]])
    ks = sorted({int(k) for item in found for k in item["best"]})
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(ks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set(ylim=(-0.03, 1.05), xlabel="k (samples drawn)", ylabel="best@k")
