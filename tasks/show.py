"""What the Prefect UI shows of a run: its contexts after every cycle, its summary at the end."""

import os
import re
from pathlib import Path
from typing import Any

from prefect import get_client, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext

from fst_core.counting import counted
from fst_core.home import study_place_of
from fst_core.journal import effective, read_events
from fst_core.records import Population
from fst_core.summary import summary_rows
from tasks.sessions import find_session


def tag_with_place(study: Path) -> None:
    """Tag this flow run with where below runs/ its study is: the same study of two nights has one
    name, and lists show tags."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run, place = context.flow_run, study_place_of(study)
    if place not in run.tags:
        with get_client(sync_client=True) as client:
            client.update_flow_run(run.id, tags=[*run.tags, place])


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
def show_summary(folder: Path, untracked: int, unstored: int = 0) -> dict[str, float]:
    """Put a finished run's summary into the UI; the numbers of its last evaluation."""
    key = artifact_key(folder.parent.name, folder.name, "summary")
    create_markdown_artifact(summary_markdown(folder, untracked, unstored), key=key)
    return last_evaluations(folder)


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


def last_evaluations(folder: Path) -> dict[str, float]:
    """The numbers of a run's latest evaluation, as "context/metric"."""
    events = effective(read_events(folder / "journal.jsonl"))
    latest = {event["context"]: event for event in events if event["kind"] == "evaluation"}
    return {
        f"{label}/{name}": value
        for label, event in latest.items()
        for name, value in event["metrics"].items()
    }


def summary_markdown(folder: Path, untracked: int, unstored: int = 0) -> str:
    """The end of a run for a reader: rewards, use, time, its page in MLflow, what was not sent."""
    lines = [f"# {folder.name}", "", f"Run folder: `{folder}`", ""]
    page = mlflow_page(folder)
    if page is not None:
        lines += [f"[{folder.name} in MLflow]({page})", ""]
    lines += ["| what | how much |", "|---|---|"]
    lines += [f"| {what} | {how_much} |" for what, how_much in summary_rows(folder)]
    for away, remedy in what_was_away(folder, untracked, unstored):
        lines += ["", f"{away}: `{remedy}`."]
    return "\n".join(lines)


def what_was_away(folder: Path, untracked: int, unstored: int) -> list[tuple[str, str]]:
    """What could not be used during a run, and the command that makes up for it."""
    counts = (("MLflow", untracked, "sync"), ("The store", unstored, "archive"))
    return [
        (f"{what} could not be used {counted(missed, 'time')}", f"fst {remedy} {folder}")
        for what, missed, remedy in counts
        if missed
    ]


def mlflow_page(folder: Path) -> str | None:
    """Address of a run's page in MLflow's UI; None where no server has it or one is away."""
    if not os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        return None
    from fst_core.tracking import TrackingError, page_of

    try:
        return page_of(folder)
    except TrackingError:  # the flow's log has the reason, from when the run was sent
        return None


def artifact_key(*parts: str) -> str:
    """A name Prefect accepts: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
