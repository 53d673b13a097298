"""The contexts of a run as HTML: per cycle texts, scores, lineage, and the diff to the parent."""

from collections.abc import Mapping, Sequence
from typing import Any

from fst_core.counting import counted
from fst_core.journal import Event
from fst_core.lineage import known_texts, line_diff, mean_score
from fst_core.records import content_id
from fst_core.report.markup import Markup, details, esc, join, number_text, table, tag
from fst_core.report.runs import RunLog

Json = Mapping[str, Any]


def run_contexts(run: RunLog) -> Markup:
    """Every cycle of one run; a context's text stands where it first appears."""
    texts = known_texts(run.config, run.events)
    seen: set[str] = set()
    parts = [_cycle(event, texts, seen) for event in run.of("fast")]
    title = f"{run.id}: {counted(len(parts), 'cycle')}, {counted(len(seen), 'context')} held"
    return details(title, *parts)


def _cycle(event: Event, texts: Mapping[str, str], seen: set[str]) -> Markup:
    population = event["evolution"]["population"]
    contexts = population["contexts"]
    scores = population["scores"] or [[]] * len(contexts)
    rows, bodies = [], []
    for slot, (context, row) in enumerate(zip(contexts, scores, strict=True)):
        name = content_id(context["text"])
        fresh = name not in seen
        rows.append(_slot_row(slot, name, context, row, fresh))
        if fresh:
            seen.add(name)
            bodies.append(_context(name, context, texts))
    headers = ("slot", "context", "anchor mean", "operator", "parents", "born", "")
    return tag(
        "section",
        tag("h3", f"Cycle {event['cycle']}, after slow step {event['step']}"),
        tag("p", _cost(event["evolution"]), class_="soft"),
        table(headers, rows),
        *bodies,
        _rest(event["evolution"], {content_id(context["text"]) for context in contexts}),
    )


def _slot_row(slot: int, name: str, context: Json, scores: Sequence[Any], fresh: bool) -> list[Any]:
    parents = ", ".join(context["parents"]) or "none"
    anchors = "–"
    if scores:
        anchors = f"{number_text(mean_score(scores))} ({counted(len(scores), 'anchor')})"
    return [
        slot,
        tag("code", name),
        anchors,
        context["operator"],
        tag("code", parents),
        f"cycle {context['cycle']}",
        "new" if fresh else "kept",
    ]


def _cost(evolution: Json) -> str:
    refused = ", ".join(f"{n} {reason}" for reason, n in evolution.get("rejected", {}).items())
    usage = ", ".join(f"{k} {v:g}" for k, v in evolution.get("reflection_usage", {}).items())
    metric = counted(evolution.get("metric_calls", 0), "metric call")
    generate = counted(evolution.get("generate_calls", 0), "generate call")
    proposals = counted(evolution.get("proposals", 0), "proposal")
    reflection = counted(evolution.get("reflection_calls", 0), "call")
    return (
        f"{metric} in {generate}; {proposals}, {evolution.get('accepted', 0)} accepted; "
        f"refused before evaluation: {refused or 'none'}; reflection: {reflection}"
        f"{usage and f', {usage}'}."
    )


def _context(name: str, context: Json, texts: Mapping[str, str]) -> Markup:
    parents = [parent for parent in context["parents"] if parent in texts]
    components = context.get("parts") or {"": context["text"]}
    body: list[Markup] = []
    for component, text in components.items():
        body += [*([tag("p", component)] if component else []), tag("pre", text)]
    if context["parents"] and not parents:
        body.append(tag("p", "No parent's text is in the journal.", class_="soft"))
    body += [
        join(tag("p", "Diff to parent ", tag("code", parent)), diff(texts[parent], context["text"]))
        for parent in parents
    ]
    return details(join(tag("code", name), f" by {context['operator']}"), *body)


def diff(old: str, new: str) -> Markup:
    """Line by line what `new` removes from and adds to `old`; equal lines stay."""
    elements = {"-": "del", "+": "ins"}
    return tag(
        "pre",
        *(
            tag(elements[sign], f"{sign} {line}") if sign in elements else esc(f"  {line}\n")
            for sign, line in line_diff(old, new)
        ),
    )


def _rest(evolution: Json, held: set[str]) -> Markup:
    rows = []
    for candidate in evolution.get("candidates", ()):
        context = candidate["context"]
        name = content_id(context["text"])
        if name not in held:
            score = number_text(mean_score(candidate["scores"]))
            rows.append(
                [tag("code", name), score, context["operator"], tag("pre", context["text"])]
            )
    if not rows:
        return Markup()
    headers = ("context", "anchor mean", "operator", "text")
    title = f"{counted(len(rows), 'accepted candidate')} that no slot holds"
    return details(title, table(headers, rows))
