"""Journal -> MLflow by replay: the only module that imports mlflow.

Every metric keeps its event's own time, and MLflow refuses a second row with the same run, key,
timestamp, step and value: replaying a journal twice, or after a crash in the middle, adds nothing.
A tag remembers the last journal position that was sent; it only saves work.

Only what a checkpoint covers is sent until a run has ended, so nothing that a resume will redo is
in MLflow. Should a resume go back further than what was sent (a damaged checkpoint, or `final` on a
run that later went on), the MLflow run is deleted and replayed anew.
"""

import json
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before the import: no telemetry, and no minutes of retries against a server that is away.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}.items():
    os.environ.setdefault(_name, _value)

from filelock import FileLock  # noqa: E402
from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import (  # noqa: E402
    Dataset,
    DatasetInput,
    InputTag,
    Metric,
    Param,
    Run,
)
from mlflow.exceptions import MlflowException  # noqa: E402
from sqlalchemy.exc import SQLAlchemyError  # noqa: E402

from fst_core.config.flat import flatten  # noqa: E402
from fst_core.journal import Event, effective, read_events  # noqa: E402
from fst_core.provenance import config_hash  # noqa: E402
from fst_core.records import content_id  # noqa: E402
from fst_core.tracked import event_files, event_values  # noqa: E402

KEY_TAG = "fst.key"
"""Identity of a run: a hash of experiment, folder name, config and the journal's first moment."""
SYNCED_TAG = "fst.synced_seq"
"""Last journal position whose metrics and artifacts have all been sent."""

MAX_METRICS = 1000
MAX_PARAMS = 100
MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 8000
MAX_DIGEST_CHARACTERS = 36
LOCK_SECONDS = 60
PING_SECONDS = 3
SAMPLES_AXIS = ("evaluation/", "fast/anchor", "slow/reward")
"""Metrics also written over training rollouts, under "samples/..."; the rest only over steps."""
MEASURING = frozenset({"fast", "slow", "evaluation", "end"})


class TrackingError(RuntimeError):
    """MLflow could not be used; the message names the address, the reason and what to do."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one sync sent: metric rows and artifact files."""

    metrics: int = 0
    artifacts: int = 0


def prepare(experiment: str, tracking_uri: str | None = None) -> None:
    """Make the store and an experiment once, before many runs write to them.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    with _connected(tracking_uri, "its runs can be synced later") as (client, uri):
        _experiment_id(client, uri, experiment)


def sync(run_dir: Path, tracking_uri: str | None = None, final: bool = False) -> SyncReport:
    """Replay a run's journal into MLflow; sending the same events again changes nothing.

    Args:
        run_dir: Folder with journal.jsonl.
        tracking_uri: Address; else MLFLOW_TRACKING_URI, else mlflow.db in the working folder.
        final: Also send what lies beyond the last checkpoint, for a run that will not go on.

    Raises:
        TrackingError: if MLflow cannot be used; within seconds where a server does not answer.
        JournalError: if the journal is damaged.
    """
    events = read_events(run_dir / "journal.jsonl")
    started = next((event for event in effective(events) if event["kind"] == "run"), None)
    if started is None:
        return SyncReport()
    advice = f"run `fst sync {run_dir}` later"
    with _connected(tracking_uri, advice) as (client, uri), _locked(run_dir):
        events = read_events(run_dir / "journal.jsonl")  # it may have grown while we waited
        with _locked(run_dir.parent):
            run = _open_run(client, uri, run_dir.name, started, events)
        return _replay(client, run, run_dir, events, final)


def log_report(experiment: str, out_dir: Path, tracking_uri: str | None = None) -> SyncReport:
    """Put report.html, summary.json and the tables of a study on the experiment's study run.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    with _connected(tracking_uri, "make the report again later") as (client, uri):
        experiment_id, key = (
            _experiment_id(client, uri, experiment),
            content_id(experiment, "study"),
        )
        run = _find_or_create(client, experiment_id, key, "study", None, {"fst.level": "study"})
        pages = [out_dir / name for name in ("report.html", "summary.json")]
        tables = sorted((out_dir / "tables").glob("*.parquet"))
        present = [path for path in (*pages, *tables) if path.exists()]
        for path in present:
            folder = "tables" if path in tables else None
            client.log_artifact(run.info.run_id, str(path), folder)
        client.set_terminated(run.info.run_id, "FINISHED")
    return SyncReport(artifacts=len(present))


def _locked(folder: Path) -> FileLock:
    """One process at a time, for creating and for sending."""
    return FileLock(folder / ".mlflow.lock", timeout=LOCK_SECONDS)


@contextmanager
def _connected(tracking_uri: str | None, advice: str) -> Iterator[tuple[MlflowClient, str]]:
    default = f"sqlite:///{Path.cwd() / 'mlflow.db'}"
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or default
    try:
        _ping(uri)
        yield _client(uri), uri
    except (MlflowException, SQLAlchemyError, OSError) as error:
        shown = re.sub(r"//[^/@]*@", "//***@", uri)
        reason = (str(error) or repr(error)).replace(uri, shown).splitlines()[0]
        reason = reason if len(reason) <= 240 else f"{reason[:239]}…"
        raise TrackingError(
            f"MLflow at {shown} could not be used ({reason}); nothing is lost: {advice}"
        ) from error


def _client(uri: str) -> MlflowClient:
    """A client whose store exists; one process at a time makes or migrates a SQLite file."""
    if not uri.startswith("sqlite:///"):
        return MlflowClient(tracking_uri=uri)
    with _locked(Path(uri.removeprefix("sqlite:///")).parent):
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
        return client


def _ping(uri: str) -> None:
    """Fail within seconds where nothing answers; any answer at all will do."""
    if not uri.startswith(("http://", "https://")):
        return
    address = re.sub(r"//[^/@]*@", "//", uri).rstrip("/") + "/health"
    try:
        urllib.request.urlopen(address, timeout=PING_SECONDS).close()
    except urllib.error.HTTPError:
        return  # it answered: MLflow itself will say what is wrong
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # MLflow has its own certificate settings
            raise


def _experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, _artifact_location(uri, name))
        except MlflowException:  # another machine may have made it just now
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id


def _artifact_location(uri: str, experiment: str) -> str | None:
    """mlartifacts/ beside a SQLite file; a server decides for itself."""
    if not uri.startswith("sqlite:///"):
        return None
    database = Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()
    safe = re.sub(r"[^\w.-]", "_", experiment).lstrip(".")
    return (database.parent / "mlartifacts" / f"{safe}-{content_id(experiment)}").as_uri()


def _find(client: MlflowClient, experiment_id: str, key: str) -> Run | None:
    found = client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{key}'")
    return min(found, key=lambda run: (run.info.start_time, run.info.run_id), default=None)


def _find_or_create(
    client: MlflowClient,
    experiment_id: str,
    key: str,
    name: str,
    start_ms: int | None,
    tags: Mapping[str, str],
) -> Run:
    found = _find(client, experiment_id, key)
    if found is not None:
        return found
    tags = {tag: _cut(value, MAX_TAG_CHARACTERS) for tag, value in {**tags, KEY_TAG: key}.items()}
    mine = client.create_run(experiment_id, start_ms, tags, run_name=name)
    first = _find(client, experiment_id, key) or mine
    if first.info.run_id != mine.info.run_id:  # a machine without our lock created one as well
        client.delete_run(mine.info.run_id)
    return first


def _open_run(
    client: MlflowClient, uri: str, folder: str, started: Event, events: Sequence[Event]
) -> Run:
    """The MLflow run of a journal, under its arm's run; deleted and made anew if it went back."""
    config = started["config"]
    experiment_id = _experiment_id(client, uri, config["name"])
    shared = {key: value for key, value in config.items() if key != "seed"}
    arm_key = content_id(config["name"], "arm", config_hash(shared))
    start_ms = _milliseconds(started)
    arm_tags = {"fst.level": "arm", "fst.arm": config["arm"]}
    arm = _find_or_create(client, experiment_id, arm_key, config["arm"], start_ms, arm_tags)
    moment = repr(events[0]["time"])
    key = content_id(config["name"], folder, config_hash(config), moment)
    tags = {"mlflow.parentRunId": arm.info.run_id, **_run_tags(started)}
    run = _find_or_create(client, experiment_id, key, folder, start_ms, tags)
    if _went_back(events, _synced(run)):
        client.delete_run(run.info.run_id)
        run = _find_or_create(client, experiment_id, key, folder, start_ms, tags)
    return run


def _run_tags(started: Event) -> dict[str, str]:
    config, git = started["config"], started.get("git")
    return {
        "fst.level": "seed",
        "fst.arm": config["arm"],
        "fst.seed": str(config["seed"]),
        "fst.data": json.dumps(started.get("data") or {}, sort_keys=True),
        "fst.versions": json.dumps(started.get("versions") or {}, sort_keys=True),
        "mlflow.note.content": config.get("why", ""),
        **({"mlflow.source.git.commit": git} if git else {}),
    }


def _synced(run: Run) -> int:
    return int(run.data.tags.get(SYNCED_TAG, -1))


def _went_back(events: Sequence[Event], synced: int) -> bool:
    """Whether a measurement that was sent has since been rewound."""
    then = {e["seq"] for e in effective(list(events[: synced + 1])) if e["kind"] in MEASURING}
    return not then <= {event["seq"] for event in effective(list(events))}


def _replay(
    client: MlflowClient, run: Run, run_dir: Path, events: Sequence[Event], final: bool
) -> SyncReport:
    counted = effective(list(events))
    ended = next((event for event in reversed(counted) if event["kind"] == "end"), None)
    fresh = [e for e in counted if _synced(run) < e["seq"] <= _horizon(counted, final)]
    run_id, metrics = run.info.run_id, [metric for e in fresh for metric in event_metrics(e)]
    for start in range(0, len(metrics), MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
    files = {name: text for e in fresh for name, text in event_files(e, counted).items()}
    if files:
        _log_files(client, run_id, files)
    for event in fresh:
        if event["kind"] == "run":
            _log_settings(client, run_id, event)
    if fresh and (ended or final):
        client.log_artifact(run_id, str(run_dir / "journal.jsonl"))
        files["journal.jsonl"] = ""
    if fresh:
        client.set_tag(run_id, SYNCED_TAG, str(fresh[-1]["seq"]))
    _set_status(client, run, ended, counted[-1] if final else None)
    return SyncReport(len(metrics), len(files))


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


def _set_status(client: MlflowClient, run: Run, ended: Event | None, last: Event | None) -> None:
    """FINISHED at the end event; FAILED if told to be final without one; else RUNNING."""
    stop = ended or last
    status = "FINISHED" if ended else ("FAILED" if last else "RUNNING")
    if run.info.status == status:
        return
    if stop is None:
        client.update_run(run.info.run_id, status=status)
        return
    client.set_terminated(run.info.run_id, status, _milliseconds(stop))
    client.set_terminated(run.data.tags["mlflow.parentRunId"], "FINISHED", _milliseconds(stop))


def _log_settings(client: MlflowClient, run_id: str, started: Event) -> None:
    """Parameters and data sets of a run; both are unchanged by a second call."""
    params = [
        Param(_key(name), _cut(value, MAX_PARAM_CHARACTERS))
        for name, value in flatten(started["config"]).items()
    ]
    for start in range(0, len(params), MAX_PARAMS):
        client.log_batch(run_id, params=params[start : start + MAX_PARAMS])
    environment = started["config"]["environment"]
    name = str(environment.get("name") or environment.get("dataset") or environment["type"])
    source = json.dumps({"environment": environment, "data": started.get("data") or {}})
    inputs = [
        DatasetInput(
            Dataset(f"{name}-{split}", digest[:MAX_DIGEST_CHARACTERS], "code", source),
            [InputTag("mlflow.data.context", split)],
        )
        for split, digest in (started.get("problems") or {}).items()
    ]
    if inputs:
        client.log_inputs(run_id, datasets=inputs)


def event_metrics(event: Event) -> list[Metric]:
    """Metrics of one event over slow steps, and the main ones over training rollouts as well."""
    values = {_key(name): value for name, value in event_values(event).items() if _is_number(value)}
    time, step = _milliseconds(event), int(event.get("step", 0))
    ledger = event.get("ledger") or {}
    samples = int(ledger.get("slow_rollouts", 0) + ledger.get("fast_rollouts", 0))
    metrics = [Metric(name, float(value), time, step) for name, value in values.items()]
    metrics += [
        Metric(f"samples/{name}", float(value), time, samples)
        for name, value in values.items()
        if ledger and name.startswith(SAMPLES_AXIS)
    ]
    return metrics


def _key(name: str) -> str:
    """A name MLflow accepts."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


def _cut(text: str, limit: int) -> str:
    mark = "… [cut; whole in config.json]"
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _milliseconds(event: Event) -> int:
    return int(event["time"] * 1000)
