"""What the runs of a study were: their contexts, sample rollouts, settings and provenance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fst_core.counting import counted
from fst_core.report.contexts import run_contexts
from fst_core.report.markup import Markup, details, join, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.tables import settings_by_arm

Json = Mapping[str, Any]

SAMPLES_SHOWN = 8
TEXT_SHOWN_CHARACTERS = 4000
PROVENANCE_NOTE = (
    "Git: the revision the run was begun with; -dirty: with changes that were not committed. "
    "Device: where it was begun; another kind of CPU or GPU rounds otherwise, so that after some "
    "steps other tokens are drawn. "
    "Problems and data files: the beginnings of their hashes, so equal ones are the same."
)


def contexts(runs: Sequence[RunLog]) -> Iterator[Markup]:
    """The contexts of every run that evolved some."""
    evolved = [run for run in runs if any(run.of("fast"))]
    if not evolved:
        yield tag("p", "No run evolved contexts.", class_="soft")
    for run in evolved:
        yield run_contexts(run)


def samples(runs: Sequence[RunLog]) -> Iterator[Markup]:
    """The first and the last logged rollouts of every run and loop."""
    shown = {run.id: _first_and_last(list(run.of("rollouts"))) for run in runs if run.events}
    if not any(shown.values()):
        yield tag("p", "No rollouts were logged.", class_="soft")
    for name, events in shown.items():
        if events:
            yield details(f"{name}: first and last of each kind", *map(_sample, events))


def _first_and_last(events: Sequence[Json]) -> list[Json]:
    kept: dict[int, Json] = {}
    for loop in dict.fromkeys(event["loop"] for event in events):
        mine = [event for event in events if event["loop"] == loop]
        kept |= {event["seq"]: event for event in (mine[0], mine[-1])}
    return list(kept.values())


def _sample(event: Json) -> Markup:
    rows = [_rollout_row(rollout) for rollout in event["sample"][:SAMPLES_SHOWN]]
    headers = ("question", "context", "reward", "text", "feedback")
    title = tag("h3", f"{event['loop']}, step {event['step']}")
    return join(title, table(headers, rows))


def _rollout_row(rollout: Json) -> list[Any]:
    context = rollout.get("context_id", rollout.get("context", ""))
    text = str(rollout["text"])
    beyond = len(text) - TEXT_SHOWN_CHARACTERS
    if beyond > 0:
        text = f"{text[:TEXT_SHOWN_CHARACTERS]}\n[{counted(beyond, 'more character')}]"
    return [
        tag("pre", str(rollout.get("question") or rollout["problem"])),
        tag("code", context),
        number_text(rollout["reward"]),
        tag("pre", text),
        tag("ul", *(tag("li", line) for line in rollout.get("feedback", ()))),
    ]


def settings(frame: pd.DataFrame, runs: Sequence[RunLog]) -> Markup:
    """The resolved settings that differ between runs, one column an arm; the others folded."""
    shown = settings_by_arm(frame, runs)
    headers = ["setting", *shown.columns[2:]]
    apart, same = (_setting_rows(shown[shown["differs"] == differ]) for differ in (True, False))
    note = (
        "The settings that differ between runs. A dash: the arm has no such setting."
        if apart
        else "No setting differs between runs."
    )
    rest = details(
        f"The other {counted(len(same), 'setting')}: the same in all runs, but for arm and seed",
        table(headers, same),
    )
    parts = [table(headers, apart)] * bool(apart) + [rest] * bool(same)
    return join(tag("p", note, class_="soft"), *parts)


def _setting_rows(shown: pd.DataFrame) -> list[list[Any]]:
    return [[tag("code", row[0]), *row[2:]] for row in shown.itertuples(index=False, name=None)]


def provenance(runs: Sequence[RunLog]) -> Markup:
    """Git revision, device, problem and data hashes, parameters and versions of every run."""
    rows = []
    for run in runs:
        started = next(run.of("run"), {})
        rows.append(
            [
                run.id,
                "ended" if run.finished else "not ended",
                tag("code", started.get("git") or "unknown"),
                started.get("device", "–"),
                _pairs(started.get("problems", {})),
                _pairs(started.get("data", {})),
                _pairs(started.get("parameters", {})),
                _pairs(started.get("versions", {})),
            ]
        )
    columns = ("run", "state", "git", "device", "problems", "data files", "parameters", "versions")
    return join(tag("p", PROVENANCE_NOTE, class_="soft"), table(columns, rows))


def _pairs(values: Json | None) -> Markup:
    lines = (
        tag("div", f"{key} ", tag("code", str(value)[:16])) for key, value in (values or {}).items()
    )
    return join(*lines) or join("–")
