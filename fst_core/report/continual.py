"""Continual learning: one run trained on a sequence of tasks, and what becomes of each task."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fst_core.counting import counted
from fst_core.report.changes import notes_of, shown_figure, single_seeds
from fst_core.report.figures import INK, MARKERS, arm_colours, legend_above, plain, to_svg
from fst_core.report.intervals import estimate_cell, subtracted_cells
from fst_core.report.markup import Markup, details, join, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.stages import (
    SCORES,
    Plan,
    TaskCurves,
    arm_scores,
    gaps,
    own_stage,
    plan_of,
    shared_mean,
    task_curves,
)
from fst_core.report.statistics import Json

Arms = Mapping[str, Sequence[TaskCurves]]

SCORE_NAMES = (
    "average accuracy", "backward transfer", "forward transfer", "forgetting",
    "avg min-ACC", "WC-ACC",
)  # fmt: skip
READING = (
    "Accuracy is mean@k on each task's validation problems. Stages follow each other in one run. "
    "Below a mean: its 95% t-interval over seeds (with two seeds, their values)."
)
STAGE_READING = (
    "Accuracy on each task at the end of its own stage, and its share of the peak over arms in "
    "that stage."
)
SCORE_READING = (
    "After the last stage. Average accuracy, backward transfer (change of the old tasks since "
    "the end of their own stages; negative is forgetting) and forward transfer (gain on a task "
    "before its own stage over the untrained model) as in Lopez-Paz & Ranzato 2017; forgetting "
    "(fall from the best earlier stage) as in Chaudhry et al. 2018; avg min-ACC (mean over old "
    "tasks of their lowest accuracy since they were learned) and WC-ACC (worst-case accuracy) as "
    "in De Lange et al. 2023."
)
SWITCH_READING = (
    "Stability gap: mean accuracy of the old tasks at the switch less their lowest accuracy in the "
    "stage after it (at evaluations; between them it may have been lower). Recovered: old tasks, "
    "over all seeds, that came back to their level before the switch within that stage."
)
CURVES_CAPTION = (
    "Accuracy on every task over slow steps under the context each arm is judged by; the task's "
    "own stage is shaded and dotted lines are switches. Thin: seeds (dashed where the run has not "
    "ended); bold: the mean of the runs that ended, at the steps that all of them evaluated."
)
PEAK_CAPTION = (
    "Accuracy on the task being trained, divided by the peak over all arms within that stage: how "
    "near an arm comes to what any arm reached."
)


def section(study: Study) -> Section | None:
    """A sequence of tasks in one run; None where no run has one."""
    planned = [(run, plan_of(run.config)) for run in study.runs]
    plan = next((plan for _, plan in planned if plan is not None), None)
    if plan is None:
        return None
    runs = [run for run, own in planned if own == plan and run.events]
    headline = _by_arm(runs, plan, "best")
    notes = [*_left_out(planned, plan), *_notes(headline)]
    contexts = {"headline": headline}
    if any(run.evolves for run in runs):
        contexts["seed"] = _by_arm(runs, plan, "seed")
        notes += [note for note in _notes(contexts["seed"]) if note not in notes]
    found = {name: _summary(arms, plan) for name, arms in contexts.items()}
    figures = _figures(headline, found["headline"], plan) if runs else {}
    return Section(
        name="continual",
        title="Continual learning: a sequence of tasks in one run",
        body=[
            tag(
                "p",
                f"{' → '.join(plan.tasks)}, {plan.task_steps} slow steps each. ",
                READING,
                class_="soft",
            ),
            *notes_of(notes),
            *(shown_figure(figures[name], CAPTIONS[name]) for name in figures),
            *(part for name in found for part in _context_part(name, found[name], plan) if runs),
            *([_per_run(headline)] if runs else []),
        ],
        tables={"continual": _frame(contexts)},
        figures=figures,
        summary={
            "tasks": list(plan.tasks),
            "task_steps": plan.task_steps,
            "contexts": found,
            "notes": notes,
        },
    )


CAPTIONS = {"continual_tasks": CURVES_CAPTION, "continual_share_of_peak": PEAK_CAPTION}


def _by_arm(runs: Sequence[RunLog], plan: Plan, context: str) -> dict[str, list[TaskCurves]]:
    """The runs of every arm under a context; "best" is the seed where nothing evolves."""
    arms: dict[str, list[TaskCurves]] = {}
    for run in runs:
        own = context if run.evolves else "seed"
        arms.setdefault(run.arm, []).append(task_curves(run, plan, own))
    return arms


def _left_out(planned: Sequence[tuple[RunLog, Plan | None]], plan: Plan) -> Iterator[str]:
    for run, own in planned:
        if own is None:
            yield f"{run.id} has no task sequence in its config and is left out here."
        elif own != plan:
            told = f"{', '.join(own.tasks)}; {counted(own.task_steps, 'step')} each"
            yield f"{run.id} has another task sequence ({told}) and is left out here."
        elif not run.events:
            yield f"{run.id} has no journal to be read and is left out here."


def _notes(arms: Arms) -> Iterator[str]:
    for curves in arms.values():
        for run in curves:
            yield from gaps(run)
    whole = {
        arm: sum(c.stages == len(c.plan.tasks) for c in curves) for arm, curves in arms.items()
    }
    yield from single_seeds(whole)


def _summary(arms: Arms, plan: Plan) -> Json:
    stages = range(1, len(plan.tasks) + 1) if arms else ()
    return {
        "arms": {arm: arm_scores(curves) for arm, curves in arms.items()},
        "stages": [own_stage(arms, stage) for stage in stages],
    }


def _context_part(name: str, found: Json, plan: Plan) -> Iterator[Markup]:
    title = {
        "headline": "Under the context each arm is judged by",
        "seed": "Under the seed context: what went into the weights",
    }[name]
    explained = name == "headline"  # once is enough
    yield tag("h3", title)
    yield tag("p", STAGE_READING, class_="soft")
    yield _stage_table(found, plan)
    yield tag("p", SCORE_READING if explained else "After the last stage.", class_="soft")
    headers = ("arm", "context", "seeds", *SCORE_NAMES)
    yield table(headers, [_score_row(arm, own) for arm, own in found["arms"].items()])
    if len(plan.tasks) > 1:
        yield tag("p", SWITCH_READING if explained else "At the switches.", class_="soft")
        yield _switch_table(found["arms"])
    matrices = (_matrix(arm, own, plan) for arm, own in found["arms"].items())
    yield details("Accuracy matrix of every arm", *matrices, open_=explained)


def _stage_table(found: Json, plan: Plan) -> Markup:
    headers = ["arm"]
    for task in plan.tasks:
        headers += [task, "share of peak"]
    rows = [
        [
            arm,
            *(
                estimate_cell(stage["arms"][arm][value])
                for stage in found["stages"]
                for value in ("end", "end_share_of_peak")
            ),
        ]
        for arm in found["arms"]
    ]
    return table(headers, rows)


def _score_row(arm: str, found: Json) -> list[Any]:
    scores = found["scores"]
    counted = scores["average_accuracy"]
    seeds = f"{counted['n']} of {len(counted['seeds'])}"
    return [arm, found["context"], seeds, *(estimate_cell(scores[name]) for name in SCORES)]


def _switch_table(arms: Json) -> Markup:
    headers = ("switch", "arm", "seeds", "old tasks before", "lowest after", "gap", "recovered")
    count = min(len(found["switches"]) for found in arms.values()) if arms else 0
    rows = []
    for index in range(count):
        for arm, found in arms.items():
            switch = found["switches"][index]
            rows.append(
                [
                    f"step {switch['step']}: {switch['from']} → {switch['to']}",
                    arm,
                    f"{switch['gap']['n']} of {len(switch['gap']['seeds'])}",
                    *subtracted_cells(switch["before"], switch["minimum"], switch["gap"]),
                    f"{switch['recovered']} of {switch['of']}" if switch["of"] else "–",
                ]
            )
    return table(headers, rows)


def _matrix(arm: str, found: Json, plan: Plan) -> Markup:
    """Mean accuracy after every stage on every task, shaded by value; own stages are bold."""
    rows = []
    for stage, cells in enumerate(found["matrix"]):
        label = "before training" if stage == 0 else f"after {plan.tasks[stage - 1]}"
        rows.append([label, *(_shaded(cell, task + 1 == stage) for task, cell in enumerate(cells))])
    return join(tag("h3", f"{arm} ({found['context']} context)"), table(["", *plan.tasks], rows))


def _shaded(cell: Json, own: bool) -> Markup:
    mean = cell["mean"]
    text = number_text(mean)
    if mean is None:
        return tag("span", "not reached")
    missing = "" if cell["n"] == len(cell["seeds"]) else f" ({cell['n']} of {len(cell['seeds'])})"
    strength = 0.6 * min(1.0, max(0.0, mean))
    style = f"background: rgba(0, 114, 178, {strength:.2f}); padding: .1rem .5rem"
    return tag("div", tag("strong", text) if own else text, missing, style=style)


def _per_run(arms: Arms) -> Markup:
    """Every run by itself, those that did not complete all stages with what they have."""
    rows = []
    for curves in arms.values():
        for run in curves:
            scores = run.scores()
            stages = f"{run.stages} of {len(run.plan.tasks)}"
            rows.append([run.run.id, stages, *(number_text(scores[name]) for name in SCORES)])
    headers = ("run", "stages complete", *SCORE_NAMES)
    return details("Every run, after the stages it completed", table(headers, rows))


def _frame(contexts: Mapping[str, Arms]) -> pd.DataFrame:
    columns = ("run", "arm", "seed", "context", "headline", "step", "task", "accuracy")
    rows = [
        (run.run.id, arm, run.run.seed, run.context, name == "headline", step, task, value)
        for name, arms in contexts.items()
        for arm, curves in arms.items()
        for run in curves
        for task, curve in run.accuracy.items()
        for step, value in curve.items()
    ]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _figures(arms: Arms, found: Json, plan: Plan) -> dict[str, str]:
    return {
        "continual_tasks": to_svg("continual_tasks", partial(_draw_tasks, arms, plan)),
        "continual_share_of_peak": to_svg(
            "continual_share_of_peak", partial(_draw_shares, list(arms), found["stages"], plan)
        ),
    }


def _draw_tasks(arms: Arms, plan: Plan) -> Figure:
    columns = min(3, len(plan.tasks))
    lines = -(-len(plan.tasks) // columns)
    figure = Figure(figsize=(max(5.0, 3.3 * columns), 2.9 * lines + 0.5), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True, sharex=True).flatten()
    styles = _styles(list(arms))
    for index, (axis, task) in enumerate(zip(axes, plan.tasks, strict=False)):
        axis.axvspan(plan.end(index), plan.end(index + 1), color=INK, alpha=0.07, lw=0)
        for arm, curves in arms.items():
            _draw_task(axis, [(run, run.accuracy[task]) for run in curves], styles[arm])
        axis.set_title(plain(f"{index + 1}. {task}"))
        _mark_switches(axis, plan)
    for axis in axes[len(plan.tasks) :]:
        axis.set_visible(False)
    for axis in axes[::columns]:
        axis.set_ylabel("reward (mean@k)")
    axes[0].set_ylim(-0.03, 1.05)
    figure.supxlabel("slow steps", fontsize=10)
    legend_above(figure, _handles(styles))
    return figure


def _draw_task(
    axis: Axes, curves: Sequence[tuple[TaskCurves, Mapping[int, float]]], style: dict[str, Any]
) -> None:
    for run, curve in curves:
        dash = "-" if run.run.finished else "--"
        axis.plot(list(curve), list(curve.values()), dash, lw=0.8, ms=2, alpha=0.6, **style)
    ended = [curve for run, curve in curves if run.run.finished and curve]
    mean = shared_mean(ended or [curve for _, curve in curves if curve])
    axis.plot(list(mean), list(mean.values()), lw=2.2, ms=4, **style)


def _draw_shares(arms: Sequence[str], stages: Sequence[Json], plan: Plan) -> Figure:
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    axis = figure.subplots()
    styles = _styles(arms)
    for stage in stages:
        for arm, found in stage["arms"].items():
            shares = [float("nan") if s is None else s for s in found["share_of_peak"]]
            axis.plot(found["steps"], shares, lw=2.2, ms=5, **styles[arm])
    for index, task in enumerate(plan.tasks):
        middle = (plan.end(index) + plan.end(index + 1)) / 2
        axis.text(middle, 1.1, plain(task), ha="center", va="bottom", fontsize=9)
    _mark_switches(axis, plan)
    axis.set(xlabel="slow steps", ylabel="share of the stage's peak", ylim=(-0.03, 1.08))
    legend_above(figure, _handles(styles))
    return figure


def _mark_switches(axis: Axes, plan: Plan) -> None:
    for stage in range(1, len(plan.tasks)):
        axis.axvline(plan.end(stage), color=INK, lw=1.0, ls=":")
    axis.set_xlim(-0.02 * plan.end(len(plan.tasks)), 1.02 * plan.end(len(plan.tasks)))
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _styles(arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    colours = arm_colours(arms)
    return {
        arm: {"color": colours[arm], "marker": MARKERS[index % len(MARKERS)]}
        for index, arm in enumerate(arms)
    }


def _handles(styles: Mapping[str, dict[str, Any]]) -> list[Line2D]:
    return [Line2D([], [], lw=2.2, label=plain(arm), **style) for arm, style in styles.items()]
