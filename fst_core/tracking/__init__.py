"""Journal -> MLflow by replay: the only package that imports mlflow.

Every metric keeps its event's own time, and MLflow refuses a second row with the same run, key,
timestamp, step and value: replaying a journal twice, or after a crash in the middle, adds nothing.
A tag remembers the last journal position that was sent; it only saves work.

Only what a checkpoint covers is sent until a run has ended, so nothing that a resume will redo is
in MLflow. Should a resume go back further than what was sent (a damaged checkpoint, or `final` on a
run that later went on), the MLflow run is deleted and replayed anew.

An experiment holds one run per seed (metrics.py, replay.py, prompts.py), above them one per arm and
one for the study (summaries.py). All have the same metric keys, so that MLflow's compare view can
put any two beside each other.
"""

import os
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
from mlflow.store.db import utils as _database  # noqa: E402

from fst_core.addresses import without_password  # noqa: E402
from fst_core.journal import JournalError, effective, read_events  # noqa: E402
from fst_core.records import content_id  # noqa: E402
from fst_core.tracking.metrics import event_metrics  # noqa: E402
from fst_core.tracking.replay import SyncReport, replay  # noqa: E402
from fst_core.tracking.runs import (  # noqa: E402
    experiment_id_of,
    find_run,
    open_run,
    sqlite_address,
    sqlite_file,
)
from fst_core.tracking.summaries import log_study  # noqa: E402

__all__ = [
    "SyncReport",
    "TrackingError",
    "event_metrics",
    "log_report",
    "page_of",
    "prepare",
    "sync",
]

LOCK_SECONDS = 60
_database.MAX_RETRY_COUNT = 2  # of ten, with waits that double: minutes for a file that is none
PING_SECONDS = 3


class TrackingError(RuntimeError):
    """MLflow could not be used; the message names the address, the reason and what to do."""


def prepare(experiment: str, tracking_uri: str | None = None) -> None:
    """Make the store and an experiment once, before many runs write to them.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    with _connected(tracking_uri, "its runs can be synced later") as (client, uri):
        experiment_id_of(client, uri, experiment)


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
            run = open_run(client, uri, run_dir, started, events)
        return replay(client, run, run_dir, events, final)


def page_of(run_dir: Path, tracking_uri: str | None = None) -> str | None:
    """Address of a run's page in MLflow's UI; None where no server keeps it, or it is not there.

    Raises:
        TrackingError: if a server cannot be used.
    """
    events = read_events(run_dir / "journal.jsonl")
    started = next((event for event in effective(events) if event["kind"] == "run"), None)
    address = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if started is None or not address.startswith(("http://", "https://")):
        return None
    with _connected(address, "the run is where it was") as (client, uri):
        run = find_run(client, run_dir.name, started, events)
    if run is None:
        return None
    shown = without_password(uri, "").rstrip("/")
    return f"{shown}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def log_report(experiment: str, out_dir: Path, tracking_uri: str | None = None) -> SyncReport:
    """Put a study's report on its study run, and the report's numbers on the runs of its arms.

    Args:
        experiment: Whose runs the report is about.
        out_dir: Folder with report.html, summary.json, tables/ and figures/, as far as present.
        tracking_uri: As for `sync`.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    with _connected(tracking_uri, "make the report again later") as (client, uri):
        return log_study(client, experiment_id_of(client, uri, experiment), experiment, out_dir)


def _locked(folder: Path) -> FileLock:
    """One process at a time, for creating and for sending.

    The lock of a folder that cannot be written, say of a read-only disk, is a temporary file.
    """
    path = folder / ".mlflow.lock"
    if not os.access(folder, os.W_OK):
        path = Path(tempfile.gettempdir()) / f"mlflow-{content_id(str(folder.resolve()))}.lock"
    return FileLock(path, timeout=LOCK_SECONDS)


@contextmanager
def _connected(tracking_uri: str | None, advice: str) -> Iterator[tuple[MlflowClient, str]]:
    default = sqlite_address(Path.cwd() / "mlflow.db")
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or default
    try:
        _ping(uri)
        yield _client(uri), uri
    except (JournalError, TrackingError):
        raise
    except Exception as error:  # whatever a store, its driver or its address raises stops no run
        shown = without_password(uri)
        reason = (str(error) or repr(error)).replace(uri, shown).splitlines()[0]
        reason = reason if len(reason) <= 240 else f"{reason[:239]}…"
        raise TrackingError(
            f"MLflow at {shown} could not be used ({reason}); nothing is lost: {advice}"
        ) from error


def _client(uri: str) -> MlflowClient:
    """A client whose store exists; one process at a time makes or migrates a SQLite file."""
    if not uri.startswith("sqlite:///"):
        return MlflowClient(tracking_uri=uri)
    with _locked(sqlite_file(uri).parent):
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
        return client


def _ping(uri: str) -> None:
    """Fail within seconds where nothing answers; any answer at all will do."""
    if not uri.startswith(("http://", "https://")):
        return
    address = without_password(uri, "").rstrip("/") + "/health"
    try:
        urllib.request.urlopen(address, timeout=PING_SECONDS).close()
    except urllib.error.HTTPError:
        return  # it answered: MLflow itself will say what is wrong
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # MLflow has its own certificate settings
            raise
