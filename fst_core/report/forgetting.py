"""What training lost elsewhere: suites without any context, before and after training.

Forgetting = before - after: positive is lost, negative is gained (backward transfer).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fst_core.counting import counted
from fst_core.journal import Event
from fst_core.report.changes import (
    LOST,
    Dumbbell,
    Measurement,
    Pair,
    average,
    before_after,
    change,
    draw_changes,
    measurement,
    notes_of,
    shown_figure,
    single_seeds,
)
from fst_core.report.figures import to_svg
from fst_core.report.intervals import span_text
from fst_core.report.markup import details, table, tag
from fst_core.report.radar import draw_radar, readable
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.statistics import Json

AXES = ("in distribution", "cross domain", "easy to hard")
"""Axes in reading order; others follow."""

HEADERS = (
    "axis", "suite", "arm", "seeds", "mean@k before", "mean@k after", "forgetting",
    "95% over problems",
)  # fmt: skip
BEST_HEADERS = (
    "axis", "suite", "arm", "seeds", "best@k before", "best@k after", "forgetting",
)  # fmt: skip
READING = (
    "Suites of the test split without a system message, before the first and after the last slow "
    "step. Forgetting = before - after: positive is lost, negative is gained. Below a mean: its "
    "95% t-interval over seeds (with two seeds, their values); beside it: the bootstrap interval "
    "of forgetting over problems, seeds as they are. Means are over the seeds that have the value. "
)
CAPTION = (
    "Reward (mean@k) without a context on every suite, before and after training, by arm; means "
    "over seeds. "
)
RADAR_CAPTION = "Outward is better; an arm inside the dashed line has forgotten."


@dataclass(frozen=True, slots=True)
class SuiteRecord:
    """One run's measurements of one suite under one context."""

    run: RunLog
    suite: str
    axis: str
    context: str
    before: Measurement | None
    after: Measurement | None

    @property
    def complete(self) -> bool:
        """Whether both measurements are there and are numbers."""
        return all(m is not None and m.reward is not None for m in (self.before, self.after))


def suite_records(runs: Sequence[RunLog]) -> list[SuiteRecord]:
    """Before (the run's first measured step) and after (its last) of every suite and context.

    A run without any part that learns has no after, and nothing to tell beside runs that have.
    """
    changing = [run for run in runs if run.learns] or runs
    return [record for run in changing for record in _records(run)]


def _records(run: RunLog) -> Iterator[SuiteRecord]:
    events = list(run.of("suite"))
    steps = sorted({event["step"] for event in events})
    found: dict[tuple[str, str], dict[int, Event]] = {}
    for event in events:
        found.setdefault((event["suite"], event["context"]), {})[event["step"]] = event
    for (suite, context), by_step in found.items():
        axis = str(next(iter(by_step.values()))["axis"])
        last = by_step.get(steps[-1]) if len(steps) > 1 else None
        before, after = (
            None if event is None else measurement(event) for event in (by_step.get(steps[0]), last)
        )
        yield SuiteRecord(run, suite, axis, context, before, after)


def gaps(records: Sequence[SuiteRecord]) -> list[str]:
    """What is missing from the records of one context, one sentence a case."""
    return [*_unfinished(records), *_undefined(records), *_not_measured(records)]


def _unfinished(records: Sequence[SuiteRecord]) -> Iterator[str]:
    runs = {record.run.id: record.run for record in records}
    for name, run in runs.items():
        mine = [record for record in records if record.run.id == name]
        if run.learns and all(record.after is None for record in mine):
            yield (
                f"{name} was not measured after training (it stands at step {run.last_step}): "
                "its change is not reached."
            )


def _undefined(records: Sequence[SuiteRecord]) -> Iterator[str]:
    for record in records:
        for when, found in (("before", record.before), ("after", record.after)):
            if found is not None and found.reward is None:
                yield (
                    f"{record.run.id} has no finite reward on {record.suite} {when} training: "
                    "its change there is undefined."
                )


def _not_measured(records: Sequence[SuiteRecord]) -> Iterator[str]:
    suites = dict.fromkeys(record.suite for record in records)
    for name in dict.fromkeys(record.run.id for record in records):
        missing = [s for s in suites if not any(r.run.id == name and r.suite == s for r in records)]
        if missing:
            yield f"{name} was not measured on {', '.join(missing)}."


def seeds_by_arm(records: Sequence[SuiteRecord]) -> dict[str, int]:
    """Seeds of each arm that have both measurements somewhere."""
    arms: dict[str, set[int]] = {record.run.arm: set() for record in records}
    for record in records:
        if record.complete:
            arms[record.run.arm].add(record.run.seed)
    return {arm: len(seeds) for arm, seeds in arms.items()}


def samples_sentence(records: Sequence[SuiteRecord]) -> str:
    """How many problems and samples the measurements have; empty where rewards are missing."""
    shapes = {
        found.rewards_P_S.shape
        for record in records
        for found in (record.before, record.after)
        if found is not None and found.rewards_P_S is not None
    }
    told = ", ".join(
        f"{counted(problems, 'problem')} x {counted(k, 'sample')}" for problems, k in sorted(shapes)
    )
    return f"Rewards: {told} (k = samples)." if shapes else ""


def by_arm(records: Sequence[SuiteRecord]) -> dict[str, dict[int, Pair]]:
    """The pairs of one suite and context by arm and seed."""
    arms: dict[str, dict[int, Pair]] = {}
    for record in records:
        arms.setdefault(record.run.arm, {})[record.run.seed] = (record.before, record.after)
    return arms


def axis_pairs(records: Sequence[SuiteRecord]) -> dict[str, dict[int, Pair]]:
    """Before and after averaged over the suites of one axis, by arm and seed.

    An arm is averaged over the suites that any of its seeds was measured on; a seed that lacks one
    of them is undefined, for means over different suites are not comparable.
    """
    arms: dict[str, dict[int, Pair]] = {}
    for arm in dict.fromkeys(record.run.arm for record in records):
        mine = [record for record in records if record.run.arm == arm]
        suites = dict.fromkeys(record.suite for record in mine)
        for seed in dict.fromkeys(record.run.seed for record in mine):
            here = {record.suite: record for record in mine if record.run.seed == seed}
            before, after = (
                average([getattr(here.get(suite), when, None) for suite in suites])
                for when in ("before", "after")
            )
            arms.setdefault(arm, {})[seed] = (before, after)
    return arms


def suite_table(records: Sequence[SuiteRecord]) -> pd.DataFrame:
    """One row per run, suite and context: mean@k and best@k before and after."""
    rows = [
        {
            "run": record.run.id, "arm": record.run.arm, "seed": record.run.seed,
            "suite": record.suite, "axis": record.axis, "context": record.context,
            **{
                f"{name}_{when}": getattr(found, name, None)
                for when, found in (("before", record.before), ("after", record.after))
                for name in ("reward", "best")
            },
        }
        for record in records
    ]  # fmt: skip
    return pd.DataFrame(rows)


def section(study: Study) -> Section | None:
    """Suites without a system message, before and after training; None where there is no suite."""
    measured = suite_records(study.runs)
    records = [record for record in measured if record.context == "none"]
    if not measured:
        return None
    title = "Forgetting: what training changed elsewhere"
    if not records:
        note = "No suite was measured without a context, so forgetting is undefined."
        return Section("forgetting", title, notes_of([note]), summary={"notes": [note]})
    axes = {axis: _losses([r for r in records if r.axis == axis]) for axis in _axes(records)}
    notes = [*gaps(records), *_unlike(records), *single_seeds(seeds_by_arm(records))]
    svg = to_svg("forgetting", partial(_draw, axes, _at_start(records)))
    suites = [(axis, suite) for axis, losses in axes.items() for suite in losses["suites"]]
    return Section(
        name="forgetting",
        title=title,
        body=[
            tag("p", READING, samples_sentence(records), class_="soft"),
            *notes_of(notes),
            shown_figure(svg, CAPTION + RADAR_CAPTION * readable(suites)),
            table(HEADERS, _rows(axes)),
            details("The same for best@k", table(BEST_HEADERS, _rows(axes, "best_"))),
        ],
        tables={"forgetting": suite_table(records)},
        figures={"forgetting": svg},
        summary={"axes": axes, "notes": notes},
    )


def _axes(records: Sequence[SuiteRecord]) -> list[str]:
    found = dict.fromkeys(record.axis for record in records)
    return [*(axis for axis in AXES if axis in found), *(a for a in found if a not in AXES)]


def _losses(records: Sequence[SuiteRecord]) -> Json:
    """Of one axis: forgetting per suite and arm, and averaged over suites per arm."""
    suites = {
        suite: by_arm([record for record in records if record.suite == suite])
        for suite in dict.fromkeys(record.suite for record in records)
    }
    return {
        "suites": {suite: _changes(arms) for suite, arms in suites.items()},
        "average": _changes(axis_pairs(records)),
    }


def _changes(arms: Mapping[str, Mapping[int, Pair]]) -> Json:
    return {arm: change(pairs, LOST) for arm, pairs in arms.items()}


def _unlike(records: Sequence[SuiteRecord]) -> Iterator[str]:
    for axis in _axes(records):
        mine = [record for record in records if record.axis == axis]
        suites = {arm: {r.suite for r in mine if r.run.arm == arm} for arm in by_arm(mine)}
        if len({frozenset(names) for names in suites.values()}) > 1:
            each = "; ".join(f"{arm}: {', '.join(sorted(found))}" for arm, found in suites.items())
            yield f"The average over {axis} is not over the same suites in every arm ({each})."


def _rows(axes: Json, prefix: str = "") -> list[list[Any]]:
    """One row a suite and arm, then one an arm with the average over the axis's suites."""
    rows: list[list[Any]] = []
    for axis, losses in axes.items():
        groups: dict[Any, Json] = dict(losses["suites"])
        if len(groups) > 1:
            groups[tag("strong", "average")] = losses["average"]
        for name, arms in groups.items():
            rows += [[axis, name, arm, *change_cells(arms[arm], LOST, prefix)] for arm in arms]
    return rows


def change_cells(found: Json, sign: int, prefix: str = "") -> list[Any]:
    """Seeds with a difference, and the numbers of a change in mean@k, or in best@k ("best_").

    Args:
        found: a change, as `report.changes.change` makes it of `sign`.
    """
    difference = found[f"{prefix}difference"]
    cells = [f"{difference['n']} of {len(difference['seeds'])}", *before_after(found, sign, prefix)]
    if prefix:
        return cells
    return [*cells, tag("span", span_text(found["over_problems"]), class_="span")]


def _at_start(records: Sequence[SuiteRecord]) -> dict[str, float]:
    """Mean reward of the base weights by suite: runs that begin with other weights are left out."""
    found: dict[str, list[float]] = {}
    for record in records:
        from_base = record.run.config.get("start_from") is None
        if from_base and record.before is not None and record.before.reward is not None:
            found.setdefault(record.suite, []).append(record.before.reward)
    return {suite: sum(values) / len(values) for suite, values in found.items()}


def _draw(axes: Json, start: Mapping[str, float]) -> Figure:
    """A radar chart where the number of suites allows one, else before and after as dots."""
    named = {
        (axis, suite): arms
        for axis, losses in axes.items()
        for suite, arms in losses["suites"].items()
    }
    if not readable(named):
        dumbbells = [
            Dumbbell(f"{suite} ({axis})", arm, found["before"]["mean"], found["after"]["mean"])
            for (axis, suite), arms in named.items()
            for arm, found in arms.items()
        ]
        return draw_changes(dumbbells, "reward without a context (mean@k)")
    after = {
        arm: [arms[arm]["after"]["mean"] if arm in arms else None for arms in named.values()]
        for arm in dict.fromkeys(arm for arms in named.values() for arm in arms)
    }
    spokes = [f"{suite} ({axis})" for axis, suite in named]
    return draw_radar(spokes, [start.get(suite) for _, suite in named], after)
