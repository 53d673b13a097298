"""One run of configs/tiny/smoke.toml, disturbed in many ways, and what it must be equal to."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import psutil
from mlflow import MlflowClient
from mlflow.entities import Metric

from fst_core.checkpoint import list_checkpoints
from fst_core.journal import Event, comparable, effective, read_events
from fst_core.tracking import event_metrics
from tests.e2e.lab import Lab
from tests.pipeline.clones import ROOT

SMOKE = str(ROOT / "configs/tiny/smoke.toml")
PATCHED = str(Path(__file__).parent / "patched")
SEED = 51
"""Of all runs: they differ by nothing but what happens to them."""
HEARTBEAT = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}

Row = tuple[str, int, int, float]
"""A metric's name, Unix milliseconds, step and value."""


def folder_of(runs: Path) -> Path:
    """Folder of the run, below a folder of runs."""
    return runs / f"smoke/fst-s{SEED}"


def undisturbed(lab: Lab, runs: Path) -> Path:
    """Run it without Prefect, MLflow and store; its folder."""
    words = ["fst", "run", SMOKE, "--arm", "fst", "--seed", str(SEED), "--runs", str(runs)]
    lab.run(*words, "--no-track", FST_STORE="")
    return folder_of(runs)


def start(lab: Lab, runs: Path, **env: str) -> UUID:
    """Start a run of train/train through the API, in an environment and a store of its own."""
    parameters = {"config_path": SMOKE, "arm": "fst", "seed": SEED, "runs": str(runs)}
    own = {"PYTHONPATH": PATCHED, "FST_STORE": store_of(lab, runs)}
    variables = {"env": HEARTBEAT | own | env}
    with lab.client() as client:
        deployment = client.read_deployment_by_name("train/train")
        return client.create_flow_run_from_deployment(
            deployment.id, parameters=parameters, job_variables=variables
        ).id


def store_of(lab: Lab, runs: Path) -> str:
    """Where the run of a folder of runs is kept in the store."""
    return f"s3://{lab.bucket}/{runs.parent.name}/{runs.name}"


def states(lab: Lab, flow_run_id: UUID) -> list[str]:
    """Names of all states that a flow run has had, in order."""
    with lab.client() as client:
        had = client.read_flow_run_states(flow_run_id)
    return [str(state.name) for state in sorted(had, key=lambda state: state.timestamp)]


def wait_until(check: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until something is true; the test fails where it is not in time."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


def held_at(folder: Path, *places: str) -> dict[str, str]:
    """Variables with which a run waits at places; `folder`, made here, will tell of it."""
    folder.mkdir()
    return {"FST_TEST_HOLD": ",".join(places), "FST_TEST_HELD": str(folder)}


def wait_for_hold(folder: Path, place: str, seconds: float = 180) -> psutil.Process:
    """Wait until a run waits at a place; its process."""
    path = folder / place
    wait_until(lambda: path.exists() and path.read_text(), seconds, f"a process is held at {path}")
    return psutil.Process(int(path.read_text()))


def let_go(folder: Path, place: str) -> None:
    """Let the run that waits at a place go on."""
    (folder / f"{place} go").touch()


def kill(process: psutil.Process) -> None:
    """kill -9, unless it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def events(folder: Path) -> list[Event]:
    """What two runs of one config and seed have in common, whatever revision of the code."""
    kept = comparable(read_events(folder / "journal.jsonl"))
    return [{name: value for name, value in event.items() if name != "git"} for event in kept]


def weights(folder: Path) -> bytes:
    """The last weights, as they are on the disk."""
    return (list_checkpoints(folder / "checkpoints")[-1] / "slow/model.safetensors").read_bytes()


def assert_same_run(folder: Path, other: Path) -> None:
    """Bitwise: what was measured, and the final weights."""
    assert events(folder) == events(other)
    assert weights(folder) == weights(other)


def rows_of_journal(folder: Path) -> Counter[Row]:
    """The rows of metrics that MLflow should have of a run: each once."""
    counted = effective(read_events(folder / "journal.jsonl"))
    metrics = (metric for event in counted for metric in event_metrics(event, counted))
    return Counter({_row(metric): 1 for metric in metrics})


def rows_in_mlflow(lab: Lab, folder: Path, status: str = "FINISHED") -> Counter[Row]:
    """The rows that MLflow has of the one run of this folder, told by its first moment."""
    client = MlflowClient(lab.urls["mlflow"])
    experiment = client.get_experiment_by_name("smoke")
    assert experiment is not None
    found = client.search_runs(
        [experiment.experiment_id], f"attributes.run_name = '{folder.name}'", max_results=50
    )
    began = int(effective(read_events(folder / "journal.jsonl"))[0]["time"] * 1000)
    (run,) = [run for run in found if run.info.start_time == began]
    assert run.info.status == status
    histories = (client.get_metric_history(run.info.run_id, name) for name in run.data.metrics)
    return Counter(_row(metric) for history in histories for metric in history)


def _row(metric: Metric) -> Row:
    return metric.key, metric.timestamp, metric.step, metric.value
