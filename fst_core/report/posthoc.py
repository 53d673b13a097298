"""Post-hoc search: the same search for contexts on weights that other runs ended with, and on base.

No weight changes here. Gain = reward of the best context at the end - reward of the seed context at
the start: positive is better.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fst_core.counting import counted
from fst_core.journal import Event
from fst_core.report.arms import at_step
from fst_core.report.changes import (
    GAINED,
    Dumbbell,
    Measurement,
    Pair,
    before_after,
    change,
    draw_changes,
    measurement,
    notes_of,
    shown_figure,
    single_seeds,
)
from fst_core.report.figures import to_svg
from fst_core.report.intervals import estimate_cell, span_text
from fst_core.report.markup import details, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.statistics import DOUBLE_DIFFERENCE, Json, statistic

HEADERS = (
    "arm", "searched on", "seeds", "search rollouts", "seed context before", "best context after",
    "gain", "95% over problems", "gain - base's gain",
)  # fmt: skip
BEST_HEADERS = ("arm", "seed context before", "best context after", "gain")
READING = (
    "The same budget of context search on fixed weights: those that other runs ended with, and the "
    "base model's. Before: the seed context at the first evaluation; after: the best context at "
    "the last (mean@k). Below a mean: its 95% t-interval over seeds (with two seeds, their "
    "values); beside the gain: its bootstrap interval over problems, seeds as they are; gain - "
    "base's gain is paired by seed. Means are over the seeds that have the value."
)
CAPTION = (
    "Reward (mean@k) of the seed context before the search and of the best context after it, by "
    "the weights that were searched on; means over seeds."
)


@dataclass(frozen=True, slots=True)
class Search:
    """One run's search on fixed weights."""

    run: RunLog
    before: Measurement | None
    """The seed context at the first evaluation."""
    after: Measurement | None
    """The best context at the last evaluation; None until the run has ended."""
    rollouts: float | None
    """Rollouts the search used."""

    @property
    def start(self) -> str | None:
        """The run folder whose weights are searched on; None is the base model."""
        return self.run.config.get("start_from")

    @property
    def pair(self) -> Pair:
        return (self.before, self.after)


def _searches(runs: Sequence[RunLog]) -> list[Search]:
    return [_search(run) for run in runs if run.evolves and run.events and not run.trains]


def _search(run: RunLog) -> Search:
    evaluations = list(run.of("evaluation"))
    first = min((event["step"] for event in evaluations), default=None)
    last = max((event["step"] for event in evaluations), default=None)
    before = _at(evaluations, "seed", first)
    after = _at(evaluations, "best", last) if run.finished and last != first else None
    ledgers = [event["ledger"] for event in run.of("fast") if event.get("ledger")]
    rollouts = ledgers[-1].get("fast_rollouts") if ledgers else None
    return Search(run, before, after, rollouts)


def _at(evaluations: Sequence[Event], context: str, step: int | None) -> Measurement | None:
    found = at_step(evaluations, context, step)
    return None if found is None else measurement(found)


def section(study: Study) -> Section | None:
    """Search on fixed weights; None where no such run begins with another run's weights."""
    searches = _searches(study.runs)
    if all(search.start is None for search in searches):
        return None
    arms: dict[str, list[Search]] = {}
    for search in searches:
        arms.setdefault(search.run.arm, []).append(search)
    base = next((a for a, mine in arms.items() if all(s.start is None for s in mine)), None)
    gains = _gains(arms, base)
    seeds = {arm: found["difference"]["n"] for arm, found in gains.items()}
    notes = [*_notes(arms, base), *single_seeds(seeds)]
    svg = to_svg("posthoc", partial(_draw, gains))
    return Section(
        name="posthoc",
        title="Post-hoc search on trained weights",
        body=[
            tag("p", READING, class_="soft"),
            *notes_of(notes),
            shown_figure(svg, CAPTION),
            table(HEADERS, [_row(arm, arms[arm], found) for arm, found in gains.items()]),
            details(
                "The same for best@k",
                table(BEST_HEADERS, [_best_row(arm, found) for arm, found in gains.items()]),
            ),
        ],
        tables={"posthoc": _frame(searches)},
        figures={"posthoc": svg},
        summary={"base_arm": base, "arms": gains, "notes": notes},
    )


def _gains(arms: Mapping[str, Sequence[Search]], base: str | None) -> Json:
    """Per arm its change, and `over_base`: its gain less the base arm's, paired by seed."""
    gains: Json = {arm: change({s.run.seed: s.pair for s in mine}) for arm, mine in arms.items()}
    reference = gains[base]["difference"]["seeds"] if base is not None else {}
    for arm, found in gains.items():
        own = found["difference"]["seeds"]
        found["over_base"] = statistic(
            {}
            if arm == base
            else {
                seed: gain - reference[seed]
                for seed, gain in own.items()
                if gain is not None and reference.get(seed) is not None
            },
            DOUBLE_DIFFERENCE,
        )
    return gains


def _notes(arms: Mapping[str, Sequence[Search]], base: str | None) -> Iterator[str]:
    if base is None:
        yield "No arm searches on the base model (start_from absent in all its runs)."
    searches = [search for mine in arms.values() for search in mine]
    yield from _unequal_budgets(searches)
    for arm, mine in arms.items():
        if len({search.start is None for search in mine}) > 1:
            yield f"Some runs of {arm} search on the base model and some do not."
    for search in searches:
        yield from _gaps(search)
    if base is not None:
        paired = {search.run.seed for search in arms[base]}
        for search in searches:
            if search.run.seed not in paired:
                yield f"{search.run.id} has no run of {base} with its seed to be paired with."


def _unequal_budgets(searches: Sequence[Search]) -> Iterator[str]:
    budgets: dict[tuple[Any, ...], list[str]] = {}
    for search in searches:
        fast, loop = search.run.config.get("fast", {}), search.run.config.get("loop", {})
        budget = (fast.get("metric_calls"), loop.get("steps"), loop.get("cycle_steps"))
        budgets.setdefault(budget, []).append(search.run.id)
    if len(budgets) > 1:
        told = "; ".join(
            f"{', '.join(runs)}: {counted(calls, 'metric call')} a cycle, {counted(steps, 'step')} "
            f"in cycles of {cycle}"
            for (calls, steps, cycle), runs in budgets.items()
        )
        yield f"The search budgets differ, so the gains cannot be compared as they stand ({told})."


def _gaps(search: Search) -> Iterator[str]:
    name = search.run.id
    if not search.run.finished:
        yield f"{name} has not ended (step {search.run.last_step}): its gain is not reached."
    elif search.after is None:
        yield f"{name} has no evaluation of its best context at the end: its gain is undefined."
    if search.before is None:
        yield f"{name} has no evaluation of the seed context at its start: its gain is undefined."
    for found, when in ((search.before, "at the start"), (search.after, "at the end")):
        if found is not None and found.reward is None:
            yield f"{name} has no finite reward {when}: its gain is undefined."


def _row(arm: str, searches: Sequence[Search], found: Json) -> list[Any]:
    starts = dict.fromkeys(search.start or "base model" for search in searches)
    used = [search.rollouts for search in searches if search.rollouts is not None]
    return [
        arm,
        ", ".join(starts),
        f"{found['difference']['n']} of {len(searches)}",
        number_text(sum(used) / len(used) if used else None, 0),
        *before_after(found, GAINED),
        tag("span", span_text(found["over_problems"]), class_="span"),
        estimate_cell(found["over_base"]),
    ]


def _best_row(arm: str, found: Json) -> list[Any]:
    return [arm, *before_after(found, GAINED, "best_")]


def _frame(searches: Sequence[Search]) -> pd.DataFrame:
    rows = [
        {
            "run": s.run.id,
            "arm": s.run.arm,
            "seed": s.run.seed,
            "start_from": s.start,
            "reward_before": s.before and s.before.reward,
            "reward_after": s.after and s.after.reward,
            "best_before": s.before and s.before.best,
            "best_after": s.after and s.after.best,
            "rollouts": s.rollouts,
        }
        for s in searches
    ]
    return pd.DataFrame(rows)


def _draw(gains: Json) -> Figure:
    dumbbells = [
        Dumbbell(arm, arm, found["before"]["mean"], found["after"]["mean"])
        for arm, found in gains.items()
    ]
    return draw_changes(dumbbells, "reward (mean@k)", "seed context before", "best context after")
