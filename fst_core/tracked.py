"""What of a journal's event is tracked: its numbers by name, and the files it stands for.

Knows nothing of MLflow: the tracking package sends what this module names.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fst_core.journal import Event
from fst_core.lineage import known_texts, line_diff, mean_score
from fst_core.records import content_id


def event_values(event: Event, headline: bool = False) -> dict[str, Any]:
    """Numbers of one event by metric name; None where an event does not have one.

    Args:
        event: An event of a journal.
        headline: Of an evaluation, whether its context is the one its arm is judged by: its
            metrics are then there without ".CONTEXT" as well, under names all arms share.
    """
    kind = event["kind"]
    if kind == "slow":
        return {**event["metrics"], "slow/seconds": event.get("seconds")}
    if kind == "evaluation":
        return _evaluation_values(event, headline)
    if kind == "suite":
        return _measured(f"suite/{event['suite']}", event)
    if kind == "quadrant":
        return _measured("quadrant/base", event)
    if kind == "fast":
        return _fast_values(event)
    if kind == "end":
        return {
            **_prefixed("seconds/", event.get("seconds")),
            **_prefixed("ledger/", event.get("ledger")),
        }
    return {}


def _evaluation_values(event: Event, headline: bool) -> dict[str, Any]:
    """An evaluation's metrics by context, in a sequence of tasks by context and task as well."""
    values: dict[str, Any] = {}
    for mark in (f".{event['context']}", *([""] if headline else [])):
        values |= {f"{name}{mark}": value for name, value in event["metrics"].items()}
        for task, metrics in (event.get("tasks") or {}).items():
            values |= {f"{name}{mark}/{task}": value for name, value in metrics.items()}
    # One of the contexts of an evaluation carries the ledger: a row twice would be one row or
    # two, as the clock falls.
    ledger = event.get("ledger") if event["context"] == "seed" else None
    return {**values, **_prefixed("ledger/", ledger)}


def _measured(group: str, event: Event) -> dict[str, Any]:
    """Metrics of a measurement in a group of their own: "evaluation/reward" as "GROUP/reward"."""
    return {
        f"{group}/{name.rpartition('/')[2]}.{event['context']}": value
        for name, value in event["metrics"].items()
    }


def is_headline(event: Event, events: Sequence[Event]) -> bool:
    """Whether an event is an evaluation under the context its arm is judged by.

    That is the best context where a fast part evolves contexts, else the seed context. Before the
    first fast phase the best context is the seed, which may be all that is measured.

    Args:
        event: An event of a journal.
        events: That journal's effective events.
    """
    started = next((e for e in events if e["kind"] == "run"), None)
    if event["kind"] != "evaluation" or started is None:
        return False
    if started["config"].get("fast", {}).get("type", "none") == "none":
        return bool(event["context"] == "seed")
    if event["context"] != "seed":
        return bool(event["context"] == "best")
    earlier = any(e["kind"] == "fast" and e["seq"] < event["seq"] for e in events)
    return not earlier and not any(
        e["kind"] == "evaluation" and e["context"] == "best" and e["step"] == event["step"]
        for e in events
    )


def _fast_values(event: Event) -> dict[str, Any]:
    evolution = event["evolution"]
    slots = [mean_score(scores) for scores in evolution["population"]["scores"]]
    proposals = evolution.get("proposals") or 0
    counts = ("metric_calls", "generate_calls", "reflection_calls", "proposals", "accepted")
    return {
        "fast/anchor_best": slots[0] if slots else None,
        "fast/anchor_mean": mean_score(slots),
        **{f"fast/{name}": evolution.get(name) for name in counts},
        "fast/accept_rate": evolution.get("accepted", 0) / proposals if proposals else None,
        "fast/seconds": event.get("seconds"),
        **_prefixed("fast/rejected.", evolution.get("rejected")),
        **_prefixed("fast/reflection.", evolution.get("reflection_usage")),
        **evolution.get("metrics", {}),
    }


def _prefixed(prefix: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in (values or {}).items()}


def event_files(event: Event, events: Sequence[Event]) -> dict[str, str]:
    """Artifact texts of one event by path; `events` is the whole journal, for parents' texts."""
    kind = event["kind"]
    if kind == "run":
        return {"config.json": _json(event["config"])}
    if kind == "fast":
        name = f"contexts/cycle-{event['cycle']:03d}"
        return {f"{name}.json": _json(event["evolution"]), f"{name}.md": _markdown(event, events)}
    if kind == "rollouts":
        return {f"rollouts/step-{event['step']:04d}-{event['loop']}.json": _json(event["sample"])}
    if kind == "checkpoint":
        fields = {name: event.get(name) for name in ("step", "name", "next_phase", "seq")}
        return {"checkpoint.json": _json(fields)}
    return {}


def _markdown(event: Event, events: Sequence[Event]) -> str:
    """The slots of one cycle as a table, then each text with its diff to its parents."""
    population = event["evolution"]["population"]
    contexts = population["contexts"]
    lines = [
        f"# Cycle {event['cycle']}, after slow step {event['step']}",
        "",
        "| slot | context | anchor mean | operator | parents | born in cycle |",
        "|---|---|---|---|---|---|",
    ]
    scores = population["scores"] or [[]] * len(contexts)
    for slot, (context, row) in enumerate(zip(contexts, scores, strict=True)):
        lines.append(f"| {slot} | {' | '.join(_cells(context, mean_score(row)))} |")
    config: dict[str, Any] = next((e["config"] for e in events if e["kind"] == "run"), {})
    texts = known_texts(config, events)
    for name, context in {content_id(c["text"]): c for c in contexts}.items():
        lines += ["", f"## {name}", "", _fenced(context["text"]), *_diffs(context, texts)]
    return "\n".join(lines) + "\n"


def _cells(context: Mapping[str, Any], mean: float | None) -> tuple[str, ...]:
    return (
        content_id(context["text"]),
        "–" if mean is None else f"{mean:.3f}",
        re.sub(r"[^\w-]", " ", context["operator"]),
        " ".join(context["parents"]) or "–",
        str(context["cycle"]),
    )


def _diffs(context: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for parent in context["parents"]:
        if parent in texts:
            pairs = line_diff(texts[parent], context["text"])
            diff = "\n".join(f"{sign} {line}" for sign, line in pairs)
            lines += ["", f"Diff to parent {parent}:", "", _fenced(diff, "diff")]
    return lines


def _fenced(text: str, language: str = "text") -> str:
    """A code block that no backticks inside the text can close."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
