"""What of a journal's event is tracked: its numbers by name, and the files it stands for.

Knows nothing of MLflow: tracking.py sends what this module names.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fst_core.journal import Event
from fst_core.lineage import known_texts, line_diff, mean_score
from fst_core.records import content_id


def event_values(event: Event) -> dict[str, Any]:
    """Numbers of one event by metric name; None where an event does not have one."""
    kind = event["kind"]
    if kind == "slow":
        return {**event["metrics"], "slow/seconds": event.get("seconds")}
    if kind == "evaluation":
        named = {f"{name}.{event['context']}": v for name, v in event["metrics"].items()}
        # One of the contexts of an evaluation carries the ledger: a row twice would be one row or
        # two, as the clock falls.
        ledger = event.get("ledger") if event["context"] == "seed" else None
        return {**named, **_prefixed("ledger/", ledger)}
    if kind == "fast":
        return _fast_values(event)
    if kind == "end":
        return {
            **_prefixed("seconds/", event.get("seconds")),
            **_prefixed("ledger/", event.get("ledger")),
        }
    return {}


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
