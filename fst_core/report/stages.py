"""Task sequences: every run's accuracy on every task over slow steps, and the scores from it.

Stage i (1 to T) trains on task i and spans the slow steps ((i - 1) N, i N]; accuracy is mean@k on
the validation split.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fst_core.estimators.continual import (
    StabilityGap,
    average_minimum_accuracy,
    continual_scores,
    normalised_by_peak,
    stability_gap,
    worst_case_accuracy,
)
from fst_core.report.changes import metric
from fst_core.report.runs import RunLog
from fst_core.report.statistics import (
    DIFFERENCE,
    NOT_NEGATIVE,
    REWARD,
    Json,
    Range,
    number,
    statistic,
)

SCORES: Mapping[str, Range] = {
    "average_accuracy": REWARD,
    "backward_transfer": DIFFERENCE,
    "forward_transfer": DIFFERENCE,
    "forgetting": DIFFERENCE,
    "average_minimum_accuracy": REWARD,
    "worst_case_accuracy": REWARD,
}
"""Scores of a whole sequence, and the range of each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of a sequence in the order of training."""

    tasks: tuple[str, ...]
    task_steps: int
    """N: slow steps of one stage."""

    def end(self, stage: int) -> int:
        """Last slow step of a stage; 0 for stage 0, which is before training."""
        return stage * self.task_steps


def plan_of(config: Mapping[str, Any]) -> Plan | None:
    """The task sequence of a resolved config; None where the environment is a single task."""
    environment = config.get("environment", {})
    if environment.get("type") != "sequence":
        return None
    tasks = environment["tasks"]
    names = (task.get("name") or task.get("dataset") or task["type"] for task in tasks)
    return Plan(tuple(names), int(environment["task_steps"]))


@dataclass(frozen=True, slots=True)
class TaskCurves:
    """Accuracy of one run on every task, under one context."""

    run: RunLog
    plan: Plan
    context: str
    """ "seed", or "best" for the context an evolving run is judged by."""
    accuracy: Mapping[str, Mapping[int, float]]
    """Finite accuracies by task and slow step."""
    dropped: int
    """Accuracies that were not finite."""

    @property
    def stages(self) -> int:
        """Stages that training completed."""
        return min(len(self.plan.tasks), self.run.last_step // self.plan.task_steps)

    def during(self, task: str, stage: int) -> dict[int, float]:
        """Accuracy on a task at the evaluations of a stage, by step."""
        first, last = self.plan.end(stage - 1), self.plan.end(stage)
        return {s: value for s, value in self.accuracy[task].items() if first < s <= last}

    def after(self, task: str, stage: int) -> float:
        """Accuracy on a task at the last evaluation of a stage; NaN where there is none."""
        if stage == 0:
            return self.accuracy[task].get(0, math.nan)
        measured = self.during(task, stage)
        return measured[max(measured)] if measured else math.nan

    def matrix(self) -> list[list[float]]:
        """R[i][j]: accuracy on task j after completed stage i; NaN where it was not measured."""
        return [
            [self.after(task, stage) for task in self.plan.tasks]
            for stage in range(self.stages + 1)
        ]

    def gap(self, task: str, switch_step: int, until: int) -> StabilityGap:
        """How a task fell after the switch at a step, by the evaluations up to `until`."""
        curve = self.accuracy[task]
        return stability_gap(list(curve), list(curve.values()), switch_step, until)

    def scores(self) -> dict[str, float | None]:
        """Every score after the last completed stage, over the tasks trained by then."""
        k, tasks, matrix = self.stages, self.plan.tasks, self.matrix()
        found = continual_scores(matrix)
        values = {name: getattr(found, name, None) for name in SCORES}
        if k > 1:
            gaps = [
                self.gap(tasks[j], self.plan.end(j + 1), self.plan.end(k)) for j in range(k - 1)
            ]
            minima = [math.nan if gap.minimum is None else gap.minimum for gap in gaps]
            values["average_minimum_accuracy"] = average_minimum_accuracy(minima)
            values["worst_case_accuracy"] = worst_case_accuracy(matrix[k][k - 1], minima, k)
        return values


def task_curves(run: RunLog, plan: Plan, context: str) -> TaskCurves:
    """Read one run's accuracies under "seed" or "best".

    Before the first fast phase the best context is the seed, where it was not measured itself.
    """
    events: dict[int, Json] = {}
    evolved = False
    for event in run.events:
        evolved = evolved or event["kind"] == "fast"
        if event["kind"] != "evaluation" or "tasks" not in event:
            continue
        stands_in = event["context"] == "seed" and not evolved and event["step"] not in events
        if event["context"] == context or stands_in:
            events[event["step"]] = event["tasks"]
    cells = {
        task: {
            step: metric(tasks[task], "reward") for step, tasks in events.items() if task in tasks
        }
        for task in plan.tasks
    }
    known = {
        task: {step: value for step, value in sorted(curve.items()) if value is not None}
        for task, curve in cells.items()
    }
    dropped = sum(len(cells[task]) - len(known[task]) for task in plan.tasks)
    return TaskCurves(run, plan, context, known, dropped)


def arm_scores(curves: Sequence[TaskCurves]) -> Json:
    """An arm under one context: accuracy matrix, scores and switches, with intervals over seeds.

    A cell of the matrix is the mean over the seeds that have it; a score is the mean over the
    seeds that completed every stage; a switch counts the seeds that completed the stage after it.
    """
    plan = curves[0].plan
    scores = {
        curve.run.seed: curve.scores() if curve.stages == len(plan.tasks) else {}
        for curve in curves
    }
    return {
        "context": curves[0].context,
        "matrix": _mean_matrix(curves),
        "scores": {
            name: statistic({seed: values.get(name) for seed, values in scores.items()}, within)
            for name, within in SCORES.items()
        },
        "switches": [_switch(curves, stage) for stage in range(1, len(plan.tasks))],
    }


def _mean_matrix(curves: Sequence[TaskCurves]) -> list[list[Json]]:
    matrices = {curve.run.seed: curve.matrix() for curve in curves}
    tasks = range(len(curves[0].plan.tasks))
    return [
        [
            statistic({s: m[stage][task] for s, m in matrices.items() if stage < len(m)}, REWARD)
            for task in tasks
        ]
        for stage in range(len(tasks) + 1)
    ]


def _switch(curves: Sequence[TaskCurves], stage: int) -> Json:
    """What the end of a stage did to the tasks trained by then, each seed's mean over them."""
    plan = curves[0].plan
    falls: dict[int, list[StabilityGap]] = {
        curve.run.seed: [
            curve.gap(task, plan.end(stage), plan.end(stage + 1)) for task in plan.tasks[:stage]
        ]
        for curve in curves
        if curve.stages > stage
    }
    seeds = [curve.run.seed for curve in curves]
    defined = [fall for found in falls.values() for fall in found if fall.before is not None]
    return {
        "step": plan.end(stage),
        "from": plan.tasks[stage - 1],
        "to": plan.tasks[stage],
        **{
            name: statistic({seed: _mean_of(falls.get(seed, []), name) for seed in seeds}, within)
            for name, within in (("before", REWARD), ("minimum", REWARD), ("gap", DIFFERENCE))
        },
        "recovered": sum(fall.recovered_at is not None for fall in defined),
        "of": len(defined),
    }


def _mean_of(falls: Sequence[StabilityGap], name: str) -> float | None:
    values = [getattr(fall, name) for fall in falls]
    return None if not values or None in values else sum(values) / len(values)


def own_stage(arms: Mapping[str, Sequence[TaskCurves]], stage: int) -> Json:
    """The task of a stage during that stage, by arm, in units of the peak over all arms.

    The peak is the highest point of any arm's mean curve within the stage (paper's continual
    figure). The mean curve is over the seeds that completed the stage; while none has, over those
    that were in it, and `end` is then undefined.
    """
    means = {arm: _stage_curve(curves, stage) for arm, curves in arms.items()}
    normalised = normalised_by_peak({arm: list(mean.values()) for arm, mean in means.items()})
    peak = max((value for mean in means.values() for value in mean.values()), default=0.0)
    task = next(iter(arms.values()))[0].plan.tasks[stage - 1]
    found: Json = {}
    for arm, curves in arms.items():
        ends = {
            curve.run.seed: number(curve.after(task, stage)) if curve.stages >= stage else None
            for curve in curves
        }
        shares = {
            s: end / peak if end is not None and peak > 0 else None for s, end in ends.items()
        }
        found[arm] = {
            "steps": list(means[arm]),
            "share_of_peak": normalised[arm],
            "end": statistic(ends, REWARD),
            "end_share_of_peak": statistic(shares, NOT_NEGATIVE),
        }
    return {"task": task, "peak": peak, "arms": found}


def _stage_curve(curves: Sequence[TaskCurves], stage: int) -> dict[int, float]:
    """Mean accuracy on the stage's own task at the steps that every counted seed evaluated."""
    task = curves[0].plan.tasks[stage - 1]
    whole = [curve for curve in curves if curve.stages >= stage]
    measured = [curve.during(task, stage) for curve in whole or curves]
    return shared_mean([found for found in measured if found])


def shared_mean(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Mean over curves at the steps that all of them have, ascending."""
    if not curves:
        return {}
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {step: sum(curve[step] for curve in curves) / len(curves) for step in shared}


def gaps(curves: TaskCurves) -> Iterator[str]:
    """What one run lacks, one sentence a case."""
    name, plan, total = curves.run.id, curves.plan, len(curves.plan.tasks)
    if not any(curves.accuracy.values()):
        yield f"{name} has no evaluation of its tasks under the {curves.context} context."
        return
    if curves.stages < total:
        stage = min(total, curves.stages + 1)
        yield (
            f"{name} stands at slow step {curves.run.last_step}, in stage {stage} of {total} "
            f"({plan.tasks[stage - 1]}): it is shown as far as it got, and the scores of its arm "
            "leave it out."
        )
    if curves.dropped:
        yield (
            f"{name} under the {curves.context} context: accuracies that are not finite, left "
            f"out: {curves.dropped}."
        )
    yield from _off_the_end(curves)


def _off_the_end(curves: TaskCurves) -> Iterator[str]:
    plan = curves.plan
    for stage in range(1, curves.stages + 1):
        measured = curves.during(plan.tasks[stage - 1], stage)
        if measured and max(measured) < plan.end(stage):
            yield (
                f"{curves.run.id} was last evaluated at step {max(measured)} of the stage that "
                f"ends at step {plan.end(stage)}: that stands for the end."
            )
