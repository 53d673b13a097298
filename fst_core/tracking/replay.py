"""A journal into its MLflow run: metrics, artifacts, settings, contexts, then the position."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from fst_core.journal import Event, effective
from fst_core.tracked import event_files
from fst_core.tracking.metrics import event_metrics
from fst_core.tracking.prompts import register_contexts
from fst_core.tracking.runs import SYNCED_TAG, log_settings, set_status, synced_seq

MAX_METRICS = 1000


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one sync sent: metric rows, artifact files and versions of prompts."""

    metrics: int = 0
    artifacts: int = 0
    prompts: int = 0


def replay(
    client: MlflowClient, run: Run, run_dir: Path, events: Sequence[Event], final: bool
) -> SyncReport:
    """Send what a run's journal holds beyond what was sent before.

    Args:
        events: Every event of the journal.
        final: As for `sync`.
    """
    counted = effective(list(events))
    horizon = _horizon(counted, final)
    ended = next((event for event in reversed(counted) if event["kind"] == "end"), None)
    fresh = [event for event in counted if synced_seq(run) < event["seq"] <= horizon]
    sent = SyncReport()
    if fresh:
        covered = [event for event in counted if event["seq"] <= horizon]
        sent = _send(client, run, run_dir, fresh, covered, whole=bool(ended or final))
        client.set_tag(run.info.run_id, SYNCED_TAG, str(fresh[-1]["seq"]))
    set_status(client, run, ended, counted[-1] if final else None)
    return sent


def _send(
    client: MlflowClient,
    run: Run,
    run_dir: Path,
    fresh: Sequence[Event],
    covered: Sequence[Event],
    whole: bool,
) -> SyncReport:
    """Send the fresh ones of the covered events; `whole`: the journal itself too."""
    run_id = run.info.run_id
    for event in fresh:
        if event["kind"] == "run":
            log_settings(client, run, event)
    metrics = [metric for event in fresh for metric in event_metrics(event, covered)]
    for start in range(0, len(metrics), MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
    files = {name: text for e in fresh for name, text in event_files(e, covered).items()}
    if files:
        _log_files(client, run_id, files)
    prompts = 0
    if any(event["kind"] in ("fast", "end") for event in fresh):
        prompts = register_contexts(client, run, covered)
    if whole:
        plain, packed = run_dir / "journal.jsonl", run_dir / "journal.jsonl.gz"
        client.log_artifact(run_id, str(plain if plain.exists() else packed))
    return SyncReport(len(metrics), len(files) + whole, prompts)


def _log_files(client: MlflowClient, run_id: str, files: Mapping[str, str]) -> None:
    """Upload texts by path in one call: one look-up of the run instead of one for each file."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        client.log_artifacts(run_id, folder)


def _horizon(events: Sequence[Event], final: bool) -> int:
    """The last sequence number that may be sent."""
    if final or any(event["kind"] == "end" for event in events):
        return int(events[-1]["seq"])
    return max((int(e["seq"]) for e in events if e["kind"] == "checkpoint"), default=-1)
