"""kill -9 anywhere, then resume: weights, population, journal and MLflow as if undisturbed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fst_core import tracking
from fst_core.checkpoint import list_checkpoints, read_state
from fst_core.journal import comparable, read_events
from fst_core.session import Session
from tests.invariants.killed_run import POINTS
from tests.runs import run, tiny_config


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    last = list_checkpoints(folder / "checkpoints")[-1]
    return load_file(last / "slow" / "model.safetensors")


def metric_rows(uri: str) -> list[tuple[str, int, float]]:
    """Every metric row of the store's only seed run, timestamps left out."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    rows: list[tuple[str, int, float]] = []
    for experiment in client.search_experiments():
        for found in client.search_runs([experiment.experiment_id]):
            for key in found.data.metrics:
                history = client.get_metric_history(found.info.run_id, key)
                rows += [(key, m.step, m.value) for m in history]
    return sorted(rows)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A migrated, empty SQLite store, copied for every run: the migration takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    tracking.prepare("test", f"sqlite:///{path}")
    return path.read_bytes()


def uri_of(folder: Path, store: bytes) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mlflow.db").write_bytes(store)
    return f"sqlite:///{folder / 'mlflow.db'}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, store: bytes) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("undisturbed") / "fst-s0"
    uri = uri_of(folder.parent, store)
    run(tiny_config(), folder)
    tracking.sync(folder, uri, final=True)
    return folder, metric_rows(uri)


def seconds_left_out(rows: list[tuple[str, int, float]]) -> list[Any]:
    return [row for row in rows if "seconds" not in row[0]]


@pytest.mark.parametrize("point", POINTS)
def test_killed_and_resumed_equals_undisturbed(
    tmp_path: Path, point: str, undisturbed: tuple[Path, Any], store: bytes
) -> None:
    straight, straight_rows = undisturbed
    folder = tmp_path / "fst-s0"
    uri = uri_of(tmp_path, store)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    command = [sys.executable, "-m", "tests.invariants.killed_run", str(folder), point]
    died = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    before = read_events(folder / "journal.jsonl")
    assert before and before[-1]["kind"] != "end"

    run(tiny_config(), folder)
    tracking.sync(folder, uri, final=True)

    assert comparable(read_events(folder / "journal.jsonl")) == comparable(
        read_events(straight / "journal.jsonl")
    )
    ours, theirs = final_weights(folder), final_weights(straight)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    last = [read_state(list_checkpoints(f / "checkpoints")[-1]) for f in (folder, straight)]
    assert last[0].population == last[1].population
    rows = metric_rows(uri)
    assert seconds_left_out(rows) == seconds_left_out(straight_rows)
    assert len(rows) == len(straight_rows)


def test_no_file_of_a_checkpoint_is_ever_written_into(tmp_path: Path) -> None:
    """Checkpoints share files through hard links, so a run, its end and its resume leave all be."""
    root, kept = tmp_path / "test" / "fst-s0", tmp_path / "kept"
    kept.mkdir()
    was: dict[Path, bytes] = {}

    def hold(event: dict[str, Any]) -> None:
        if event["kind"] == "checkpoint":
            for file in filter(Path.is_file, (root / "checkpoints" / event["name"]).rglob("*")):
                held = kept / str(len(was))
                os.link(file, held)
                was[held] = file.read_bytes()

    config = tiny_config(checkpoint={"keep": 2})
    run(config, root, hold)
    with Session(config, root):
        assert was and {held: held.read_bytes() for held in was} == was
    inodes = [held.stat().st_ino for held in was]
    assert len(set(inodes)) < len(inodes)
