"""Cancelling stops a run at once, leaves it resumable, and ends what it has started."""

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect.states import Cancelling

from fst_core.checkpoint import list_checkpoints
from fst_core.journal import Event, comparable, effective, read_events
from fst_core.run_folder import RunBusy, ended, lock
from tests.e2e.flow_runs import children, finished_in_mlflow, start
from tests.e2e.lab import Lab
from tests.pipeline.clones import ROOT

pytestmark = pytest.mark.timeout(900)
SMOKE = str(ROOT / "configs/tiny/smoke.toml")
LONG = ["loop.steps=2000", "loop.cycle_steps=10", "evaluation.every=0"]
"""A run of minutes: no test waits for its end."""
MEDIUM = ["loop.steps=150", "loop.cycle_steps=50", "evaluation.every=0"]


@pytest.fixture
def worker(lab: Lab) -> Iterator[None]:
    with lab.worker("cpu"):
        yield


def steps(folder: Path) -> int:
    """Slow steps that a run's journal holds."""
    path = folder / "journal.jsonl"
    return sum(event["kind"] == "slow" for event in read_events(path)) if path.exists() else 0


def wait_for_steps(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 180
    while steps(folder) < count:
        assert time.monotonic() < deadline, f"{folder} has {steps(folder)} steps"
        time.sleep(0.1)


def cancel(lab: Lab, flow_run_id: UUID) -> None:
    with lab.client() as client:
        client.set_flow_run_state(flow_run_id, Cancelling())
    lab.wait(flow_run_id, {"Cancelled"}, 90)


def assert_ended(folder: Path) -> None:
    """Nobody writes a run's folder: its lock is free."""
    lock(folder).close()


def test_a_cancelled_run_goes_on_to_the_same_journal(
    lab: Lab, worker: None, project_runs: Path
) -> None:
    parameters = {"config_path": SMOKE, "arm": "fst", "seed": 31, "overrides": MEDIUM}
    parameters["runs"] = str(project_runs / "cancelled")
    folder = project_runs / "cancelled/smoke/fst-s31"
    begun = start(lab, "train/train", **parameters)
    wait_for_steps(folder, 2)
    cancel(lab, begun)
    assert_ended(folder)
    assert list_checkpoints(folder / "checkpoints")
    assert not ended(folder)
    again = start(lab, "train/train", **parameters)
    undisturbed = undisturbed_run(lab, project_runs / "whole")
    lab.wait(again, {"Completed"}, 240)
    raw = read_events(folder / "journal.jsonl")
    assert any(event["kind"] == "rewind" for event in raw)
    assert comparable(raw) == comparable(undisturbed)
    assert len(finished_in_mlflow(lab, "smoke", "fst-s31")) == 1


def test_a_cancelled_run_of_two_processes_ends_them_all_and_goes_on(
    lab: Lab, worker: None, project_runs: Path
) -> None:
    short = ["loop.steps=60", *MEDIUM[1:]]
    parameters = {"config_path": SMOKE, "arm": "fst", "seed": 35, "overrides": short}
    parameters |= {"runs": str(project_runs), "processes": 2}
    folder = project_runs / "smoke/fst-s35"
    begun = start(lab, "train/train", **parameters)
    wait_for_steps(folder, 2)
    cancel(lab, begun)
    wait_until_free(folder)
    assert list_checkpoints(folder / "checkpoints") and not ended(folder)
    lab.wait(start(lab, "train/train", **parameters), {"Completed"}, 240)
    done = [
        e["step"] for e in effective(read_events(folder / "journal.jsonl")) if e["kind"] == "slow"
    ]
    assert done == list(range(1, 61))
    assert len(finished_in_mlflow(lab, "smoke", "fst-s35")) == 1


def wait_until_free(folder: Path) -> None:
    """The processes of a run end a moment after its flow."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return assert_ended(folder)
        except RunBusy:
            assert time.monotonic() < deadline, f"{folder} is still held"
            time.sleep(0.2)


def undisturbed_run(lab: Lab, runs: Path) -> list[Event]:
    """The journal of the same run without Prefect, MLflow and store."""
    words = ["fst", "run", SMOKE, "--arm", "fst", "--seed", "31", "--runs", str(runs), "--no-track"]
    lab.run(*words, *(word for change in MEDIUM for word in ("--set", change)), FST_STORE="")
    return read_events(runs / "smoke/fst-s31/journal.jsonl")


@pytest.mark.parametrize("on", ["here", "workers"])
def test_the_runs_of_a_cancelled_study_end_too(
    lab: Lab, worker: None, project_runs: Path, on: str
) -> None:
    parameters = {"config_path": SMOKE, "arms": ["rl", "fst"], "seeds": [32], "jobs": 2}
    parameters |= {"overrides": LONG, "runs": str(project_runs), "on": on}
    begun = start(lab, "compare/compare", **parameters)
    folders = [project_runs / "smoke/rl-s32", project_runs / "smoke/fst-s32"]
    for folder in folders:
        wait_for_steps(folder, 1)
    cancel(lab, begun)
    if on == "workers":
        for run in children(lab, begun).values():
            lab.wait(run.id, {"Cancelled"}, 60)
    for folder in folders:
        assert_ended(folder)
        assert list_checkpoints(folder / "checkpoints")
