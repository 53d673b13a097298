"""Easy to hard: trained on the easy problems, measured on hard ones, with and without contexts.

The measurement of E-SPL's authors. Gain = after - before: positive is better.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from fst_core.report.arms import CONTEXTS
from fst_core.report.changes import (
    GAINED,
    Dumbbell,
    Pair,
    change,
    draw_changes,
    notes_of,
    shown_figure,
    single_seeds,
)
from fst_core.report.figures import to_svg
from fst_core.report.forgetting import (
    SuiteRecord,
    by_arm,
    change_cells,
    gaps,
    samples_sentence,
    seeds_by_arm,
    suite_records,
    suite_table,
)
from fst_core.report.intervals import estimate_cell, span_text
from fst_core.report.markup import details, table, tag
from fst_core.report.section import Section, Study
from fst_core.report.statistics import Json

AXIS = "easy to hard"
HEADERS = (
    "suite", "context", "arm", "seeds", "mean@k before", "mean@k after", "gain",
    "95% over problems",
)  # fmt: skip
BEST_HEADERS = (
    "suite", "context", "arm", "seeds", "best@k before", "best@k after", "gain",
)  # fmt: skip
ADDED_HEADERS = (
    "suite", "arm", "no context", "seed context", "best context", "best - none",
    "95% over problems", "best - seed", "95% over problems",
)  # fmt: skip
READING = (
    "Suites of harder problems than those trained on, test split, before the first and after the "
    "last slow step. Gain = after - before. Before evolution the best context is the seed context. "
    "Below a mean: its 95% t-interval over seeds (with two seeds, their values); beside it: the "
    "bootstrap interval of the difference over problems, seeds as they are. Means are over the "
    "seeds that have the value. "
)
CAPTION = (
    "Reward (mean@k) on harder problems, before and after training on easy ones: without a "
    "context, under the seed context, and under the best evolved one. Means over seeds."
)


def section(study: Study) -> Section | None:
    """Reward on harder problems under every context; None where no suite asks for it."""
    records = _with_first_best([r for r in suite_records(study.runs) if r.axis == AXIS])
    if not records:
        return None
    gains = {suite: _gains(records, suite) for suite in dict.fromkeys(r.suite for r in records)}
    added = {suite: _added(records, suite) for suite in gains}
    notes = [*_notes(records), *single_seeds(seeds_by_arm(records))]
    svg = to_svg("transfer", partial(_draw, gains))
    return Section(
        name="transfer",
        title="Transfer from easy to hard problems",
        body=[
            tag("p", READING, samples_sentence(records), class_="soft"),
            *notes_of(notes),
            shown_figure(svg, CAPTION),
            table(HEADERS, list(_gain_rows(gains))),
            details("The same for best@k", table(BEST_HEADERS, list(_gain_rows(gains, "best_")))),
            tag("h3", "What a context adds after training"),
            table(ADDED_HEADERS, list(_added_rows(added))),
        ],
        tables={"transfer": suite_table(records)},
        figures={"transfer": svg},
        summary={"gains": gains, "context_after": added, "notes": notes},
    )


def _with_first_best(records: Sequence[SuiteRecord]) -> list[SuiteRecord]:
    """The best context before evolution is the seed context, where it was not measured itself."""
    seed = {(r.run.id, r.suite): r.before for r in records if r.context == "seed"}
    return [
        replace(record, before=seed.get((record.run.id, record.suite)))
        if record.context == "best" and record.before is None
        else record
        for record in records
    ]


def _notes(records: Sequence[SuiteRecord]) -> Iterator[str]:
    for context in _contexts(records):
        told = "without a context" if context == "none" else f"under the {context} context"
        mine = [record for record in records if record.context == context]
        yield from (f"{told[0].upper()}{told[1:]}: {sentence}" for sentence in gaps(mine))


def _contexts(records: Sequence[SuiteRecord]) -> list[str]:
    found = {record.context for record in records}
    return [context for context in CONTEXTS if context in found]


def _gains(records: Sequence[SuiteRecord], suite: str) -> Json:
    """Gain of one suite by context and arm."""
    mine = [record for record in records if record.suite == suite]
    return {
        context: {
            arm: change(pairs)
            for arm, pairs in by_arm([r for r in mine if r.context == context]).items()
        }
        for context in _contexts(mine)
    }


def _added(records: Sequence[SuiteRecord], suite: str) -> Json:
    """Of one suite after training, by arm: the best context against none and against the seed."""
    mine = [record for record in records if record.suite == suite]
    after = {
        context: {
            arm: {seed: pair[1] for seed, pair in pairs.items()}
            for arm, pairs in by_arm([r for r in mine if r.context == context]).items()
        }
        for context in CONTEXTS
    }
    found: Json = {}
    for arm in dict.fromkeys(record.run.arm for record in mine):
        best = after["best"].get(arm, {})
        found[arm] = {
            context: change(_paired(after[context].get(arm, {}), best))
            for context in ("none", "seed")
        }
    return found


def _paired(less: Mapping[int, Any], more: Mapping[int, Any]) -> dict[int, Pair]:
    seeds = sorted(less.keys() | more.keys())
    return {seed: (less.get(seed), more.get(seed)) for seed in seeds}


def _gain_rows(gains: Json, prefix: str = "") -> Iterator[list[Any]]:
    for suite, contexts in gains.items():
        for context, arms in contexts.items():
            for arm, found in arms.items():
                yield [suite, context, arm, *change_cells(found, GAINED, prefix)]


def _added_rows(added: Json) -> Iterator[list[Any]]:
    for suite, arms in added.items():
        for arm, found in arms.items():
            none, seed = found["none"], found["seed"]
            yield [
                suite, arm,
                *(estimate_cell(value) for value in (none["before"], seed["before"])),
                estimate_cell(none["after"]),
                estimate_cell(none["difference"]), span_text(none["over_problems"]),
                estimate_cell(seed["difference"]), span_text(seed["over_problems"]),
            ]  # fmt: skip


def _draw(gains: Json) -> Figure:
    dumbbells = [
        Dumbbell(
            f"{suite}, {context if context != 'none' else 'no'} context",
            arm,
            found["before"]["mean"],
            found["after"]["mean"],
        )
        for suite, contexts in gains.items()
        for context, arms in contexts.items()
        for arm, found in arms.items()
    ]
    return draw_changes(dumbbells, "reward on harder problems (mean@k)", "before", "after training")
