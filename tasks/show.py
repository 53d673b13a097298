"""What the Prefect UI shows of a run: its contexts after every cycle, its summary at the end."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from fst_core.journal import Event, effective, read_events
from fst_core.records import Population
from tasks.sessions import find_session


@task(name="show contexts", task_run_name="contexts c{cycle:02d} {run_id}", cache_policy=NO_CACHE)
def show_contexts(run_id: str, cycle: int) -> None:
    """Put the population after a fast phase into the UI as a table."""
    session = find_session(run_id)
    create_table_artifact(
        context_rows(session.population),
        key=artifact_key(session.config.name, run_id, "contexts"),
        description=f"Contexts of cycle {cycle}, best first",
    )


@task(name="show summary", task_run_name="summary {folder.name}", cache_policy=NO_CACHE)
def show_summary(folder: Path, untracked: int) -> dict[str, float]:
    """Put a finished run's summary into the UI; the last evaluation's numbers by context."""
    events = effective(read_events(folder / "journal.jsonl"))
    create_markdown_artifact(
        summary_markdown(folder, events, untracked),
        key=artifact_key(folder.parent.name, folder.name, "summary"),
    )
    return {
        f"{label}/{name}": value
        for label, event in last_evaluations(events).items()
        for name, value in event["metrics"].items()
    }


def context_rows(population: Population) -> list[dict[str, Any]]:
    """One row per slot of a population."""
    scores = population.scores or ((),) * len(population.contexts)
    return [
        {
            "slot": slot,
            "anchor score": round(sum(row) / len(row), 3) if row else None,
            "born in cycle": context.cycle,
            "operator": context.operator,
            "text": context.text,
        }
        for slot, (context, row) in enumerate(zip(population.contexts, scores, strict=True))
    ]


def last_evaluations(events: Sequence[Event]) -> dict[str, Event]:
    """The latest evaluation event by context label."""
    return {event["context"]: event for event in events if event["kind"] == "evaluation"}


def summary_markdown(folder: Path, events: Sequence[Event], untracked: int) -> str:
    """The end of a run for a reader: rewards, cost, time, and what MLflow did not get."""
    lines = [f"# {folder.name}", "", f"Run folder: `{folder}`", ""]
    lines += ["| context | step | reward | KL to base (nats/token) |", "|---|---|---|---|"]
    for label, event in last_evaluations(events).items():
        metrics = event["metrics"]
        cells = (metrics.get(f"evaluation/{name}") for name in ("reward", "kl"))
        shown = " | ".join("–" if value is None else f"{value:.3f}" for value in cells)
        lines.append(f"| {label} | {event['step']} | {shown} |")
    end = next((event for event in reversed(events) if event["kind"] == "end"), None)
    if end is not None:
        used = ", ".join(f"{value} {name}" for name, value in end["ledger"].items())
        took = ", ".join(f"{name} {value:.1f} s" for name, value in end["seconds"].items())
        lines += ["", f"Used: {used}", "", f"Time of the last process: {took}"]
    if untracked:
        lines += ["", f"MLflow could not be used {untracked} times; run `fst sync {folder}`."]
    return "\n".join(lines)


def artifact_key(*parts: str) -> str:
    """A name Prefect accepts: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
