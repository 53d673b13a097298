"""MLflow by replay: idempotent, never ahead of the last checkpoint, and plain about failure."""

import gzip
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy import make_url

from fst_core.journal import read_events
from fst_core.provenance import shared_settings
from fst_core.records import content_id
from fst_core.tracked import event_files, event_values, is_headline
from fst_core.tracking import SyncReport, TrackingError, event_metrics, sync
from fst_core.tracking.runs import sqlite_address, sqlite_file
from tests.journals import (
    HOSTILE,
    SEED_TEXT,
    START_SECONDS,
    JournalWriter,
    evaluate,
    fast_phase,
    quadrant,
    slow_step,
    start,
    suite,
    synthetic_run,
)
from tests.mlflow_store import everything, experiment, metrics, rows


def half_done(root: Path) -> Path:
    """A run with a checkpoint after step 2, and work beyond it."""
    writer = start(root / "fst-s0", "fst", 0)
    evaluate(writer, 0, "seed", 0.1)
    fast_phase(writer, 0, 0, 0.5)
    slow_step(writer, 1, 0.2, 0.01)
    slow_step(writer, 2, 0.3, 0.02)
    writer.add("checkpoint", step=2, name="step-000002", next_phase=3)
    slow_step(writer, 3, 0.9, 0.03)
    return writer.path.parent


def test_sync_twice_adds_nothing(tmp_path: Path, database: Path, uri: str) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    first = sync(folder, uri)
    before = everything(database)
    assert first.metrics == len(before["metrics"]) > 0 and first.artifacts > 0
    assert sync(folder, uri) == SyncReport(0, 0)
    assert everything(database) == before


def test_a_folder_that_cannot_be_written_is_sent(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = synthetic_run(tmp_path / "disk", "fst", 0)
    there = sorted((tmp_path / "disk").rglob("*"))
    monkeypatch.setattr(
        "os.access", lambda path, mode: tmp_path / "disk" not in (path, *path.parents)
    )
    assert sync(folder, uri).metrics > 0 and sync(folder, uri) == SyncReport(0, 0)
    assert sorted((tmp_path / "disk").rglob("*")) == there


def test_sync_in_growth_equals_sync_once(tmp_path: Path, migrated: Path) -> None:
    whole = synthetic_run(tmp_path / "once", "fst", 0)
    lines = (whole / "journal.jsonl").read_text().splitlines(keepends=True)
    growing = tmp_path / "growing" / "fst-s0"
    growing.mkdir(parents=True)
    found = []
    for name, folder, stops in (
        ("once.db", whole, [len(lines)]),
        ("growing.db", growing, [1, 2, 5, 9, 10, 17, len(lines)]),
    ):
        database = Path(shutil.copy(migrated, tmp_path / name))
        for stop in stops:
            (folder / "journal.jsonl").write_text("".join(lines[:stop]))
            sync(folder, f"sqlite:///{database}")
        found.append(everything(database))
    assert found[0] == found[1]


def test_nothing_beyond_the_last_checkpoint_until_final(
    tmp_path: Path, database: Path, uri: str
) -> None:
    folder = half_done(tmp_path)
    sync(folder, uri)
    assert max(step for key, _, step, _ in metrics(database) if key == "slow/reward") == 2
    assert rows(database, "SELECT status FROM runs WHERE name = 'fst-s0'") == [("RUNNING",)]
    sync(folder, uri, final=True)
    assert max(step for key, _, step, _ in metrics(database) if key == "slow/reward") == 3
    assert rows(database, "SELECT status FROM runs WHERE name = 'fst-s0'") == [("FAILED",)]


def test_a_run_without_checkpoint_sends_no_metric(tmp_path: Path, database: Path, uri: str) -> None:
    writer = start(tmp_path / "rl-s0", "rl", 0)
    slow_step(writer, 1, 0.5, 0.1)
    assert sync(writer.path.parent, uri) == SyncReport(0, 0)
    assert metrics(database) == []


def test_a_rewind_to_the_checkpoint_leaves_no_trace(
    tmp_path: Path, database: Path, uri: str
) -> None:
    folder = half_done(tmp_path)
    sync(folder, uri)
    append = appender(folder)
    append("rewind", to=len(read_events(folder / "journal.jsonl")) - 3)
    append("checkpoint", step=2, name="step-000002", next_phase=3)
    append("slow", step=3, metrics={"slow/reward": 0.4}, seconds=3.0)
    append("checkpoint", step=3, name="step-000003", next_phase=4)
    sync(folder, uri)
    sent = [(step, value) for key, _, step, value in metrics(database) if key == "slow/reward"]
    assert sorted(sent) == [(1, 0.2), (2, 0.3), (3, 0.4)]
    assert len(rows(database, "SELECT name FROM runs")) == 2  # the arm and the seed


def test_going_back_behind_what_was_sent_replays_anew(
    tmp_path: Path, database: Path, uri: str
) -> None:
    folder = half_done(tmp_path)
    sync(folder, uri, final=True)
    append = appender(folder)
    append("rewind", to=3)
    append("slow", step=2, metrics={"slow/reward": 0.7}, seconds=3.0)
    append("checkpoint", step=2, name="step-000002", next_phase=3)
    sync(folder, uri)
    client = MlflowClient(tracking_uri=uri)
    [run] = client.search_runs(experiment(client), "attributes.run_name = 'fst-s0'")
    history = client.get_metric_history(run.info.run_id, "slow/reward")
    assert [(m.step, m.value) for m in history] == [(1, 0.2), (2, 0.7)]
    assert run.info.status == "RUNNING"


def appender(folder: Path) -> Callable[..., None]:
    path = folder / "journal.jsonl"

    def append(kind: str, **fields) -> None:
        seq = len(read_events(path))
        event = {"seq": seq, "time": START_SECONDS + seq, "kind": kind, **fields}
        with path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    return append


def test_a_death_between_metrics_and_tag_doubles_nothing(
    tmp_path: Path, database: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = synthetic_run(tmp_path, "rl", 0)

    def die(*_):
        raise MlflowException("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_tag", die)
        with pytest.raises(TrackingError, match="cut off"):
            sync(folder, uri)
    before = metrics(database)
    assert before
    sync(folder, uri)
    assert metrics(database) == before
    assert rows(database, "SELECT name FROM runs") == [("rl",), ("rl-s0",)]


RACER = """
import sys, time
from pathlib import Path
from mlflow import MlflowClient
from fst_core.tracking import sync
uri, ready, go, *folders = sys.argv[1:]
MlflowClient(tracking_uri=uri).search_experiments()
Path(ready).touch()
while not Path(go).exists():
    time.sleep(0.001)
for folder in folders:
    sync(Path(folder), uri)
"""


def test_two_processes_at_once(tmp_path: Path, database: Path, uri: str) -> None:
    folders = [synthetic_run(tmp_path, arm, seed) for arm in ("rl", "base") for seed in (0, 1)]
    flags = [tmp_path / name for name in ("ready-0", "ready-1", "go")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, *map(str, (uri, ready, flags[2], *folders))],
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for ready in flags[:2]
    ]
    while not all(
        flag.exists() or process.poll() for flag, process in zip(flags[:2], processes, strict=True)
    ):
        time.sleep(0.05)
    flags[2].touch()
    for process in processes:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors.decode()
    names = [name for (name,) in rows(database, "SELECT name FROM runs")]
    assert names == ["base", "base-s0", "base-s1", "rl", "rl-s0", "rl-s1"]
    expected = sum(
        len(event_metrics(event, journal))
        for journal in (read_events(folder / "journal.jsonl") for folder in folders)
        for event in journal
    )
    assert len(metrics(database)) == expected


def test_runs_are_nested_tagged_and_finished(tmp_path: Path, uri: str) -> None:
    for seed in (0, 1):
        sync(synthetic_run(tmp_path, "fst", seed), uri)
    client = MlflowClient(tracking_uri=uri)
    found = {run.info.run_name: run for run in client.search_runs(experiment(client))}
    assert sorted(found) == ["fst", "fst-s0", "fst-s1"]
    for name in ("fst-s0", "fst-s1"):
        run = found[name]
        assert run.data.tags["mlflow.parentRunId"] == found["fst"].info.run_id
        assert run.data.tags["mlflow.source.git.commit"] == "0123456789abcdef"
        assert run.data.tags["fst.device"] == "Abacus, 10 beads"
        assert run.data.params["slow.learning_rate"] == "0.001"
        assert run.info.status == "FINISHED"
        assert run.info.start_time == START_SECONDS * 1000
    last = read_events(tmp_path / "fst-s0" / "journal.jsonl")[-1]
    assert found["fst-s0"].info.end_time == last["time"] * 1000
    inputs = found["fst-s0"].inputs.dataset_inputs
    assert {i.dataset.name: i.dataset.digest for i in inputs}["directives-train"] == (
        "train-" + "a" * 30
    )


def test_artifacts_are_readable(tmp_path: Path, uri: str) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    sync(folder, uri)
    client = MlflowClient(tracking_uri=uri)
    [run] = client.search_runs(experiment(client), "attributes.run_name = 'fst-s0'")
    here = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    for name in ("config.json", "contexts/cycle-003.json", "rollouts/step-0008-slow.json"):
        assert json.loads((here / name).read_text())
    assert (here / "journal.jsonl").read_bytes() == (folder / "journal.jsonl").read_bytes()
    assert "+ Put the answer in tags (3)." in (here / "contexts/cycle-003.md").read_text()
    assert json.loads((here / "checkpoint.json").read_text())["name"] == "step-000008"


def test_metrics_have_event_time_and_both_axes(tmp_path: Path) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    fast_phase(writer, 0, 0, 0.5)
    slow_step(writer, 1, 0.2, 0.01)
    evaluate(writer, 1, "best", 0.6, 0.03)
    found = {m.key: m for m in event_metrics(writer.events[-1])}
    by_step, by_rollouts = (found[p + "evaluation/reward.best"] for p in ("", "samples/"))
    assert (by_step.value, by_step.step) == (0.6, 1)
    assert by_step.timestamp == (START_SECONDS + 3) * 1000
    assert (by_rollouts.value, by_rollouts.step) == (0.6, 10 + 16)


def headlines(writer: JournalWriter) -> list[tuple[int, str]]:
    return [(e["step"], e["context"]) for e in writer.events if is_headline(e, writer.events)]


def test_one_key_is_common_to_all_arms(tmp_path: Path) -> None:
    """The context an arm is judged by: best where contexts evolve, and the seed before they do."""
    found = {}
    for arm in ("rl", "fst"):
        writer = start(tmp_path / f"{arm}-s0", arm, 0)
        evaluate(writer, 0, "seed", 0.1)
        if arm == "fst":
            fast_phase(writer, 0, 0, 0.5)
            evaluate(writer, 2, "best", 0.6)
        evaluate(writer, 2, "seed", 0.3)
        evaluate(writer, 2, "none", 0.2)
        found[arm] = headlines(writer)
    assert found == {"rl": [(0, "seed"), (2, "seed")], "fst": [(0, "seed"), (2, "best")]}
    values = event_values(writer.events[3], headline=True)
    assert values["evaluation/reward"] == values["evaluation/reward.best"] == 0.6
    assert "evaluation/reward" not in event_values(writer.events[3])
    assert not is_headline(writer.events[3], ())


def test_the_first_headline_is_best_where_it_was_measured(tmp_path: Path) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    evaluate(writer, 0, "seed", 0.1)
    evaluate(writer, 0, "best", 0.1)
    assert headlines(writer) == [(0, "best")]


def test_tasks_suites_and_quadrants_have_keys_of_their_own(tmp_path: Path) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    evaluate(writer, 2, "best", 0.5, tasks={"echo": 0.2, "sum": 0.8})
    values = event_values(writer.events[-1])
    assert (values["evaluation/reward.best"], values["evaluation/reward.best/sum"]) == (0.5, 0.8)
    keys = {metric.key for metric in event_metrics(writer.events[-1], writer.events)}
    assert {"evaluation/reward/echo", "samples/evaluation/reward.best/echo"} <= keys
    suite(writer, 2, "plain words", "cross domain", "none", 0.4)
    assert event_values(writer.events[-1])["suite/plain words/reward.none"] == 0.4
    quadrant(writer, 2, "best", 0.3)
    values = event_values(writer.events[-1])
    assert values["quadrant/base/reward.best"] == 0.3
    assert not any(name.startswith("evaluation/") for name in values)


def test_fast_numbers(tmp_path: Path) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    fast_phase(writer, 0, 0, 0.5)
    values = event_values(writer.events[-1])
    assert (values["fast/anchor_best"], values["fast/anchor_mean"]) == (0.5, 0.375)
    assert (values["fast/accept_rate"], values["fast/rejected.repeated"]) == (0.25, 1)
    own = dict(writer.events[-1])
    own["evolution"] = {**own["evolution"], "metrics": {"fast/pool": 7}}
    assert event_values(own)["fast/pool"] == 7


def test_context_markdown_keeps_hostile_text_inside_its_fence(tmp_path: Path) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    text = f"{HOSTILE}\n````\n# not a heading"
    fast_phase(writer, 0, 0, 0.5, text=text)
    markdown = event_files(writer.events[-1], writer.events)["contexts/cycle-000.md"]
    assert f"`````text\n{text}\n`````" in markdown
    assert f"Diff to parent {content_id(SEED_TEXT)}" in markdown


def test_long_values_are_cut_and_odd_keys_made_safe(tmp_path: Path, uri: str) -> None:
    writer = start(tmp_path / "rl-s0", "rl", 0, why="w" * 9000, contexts={"seed": "s" * 7000})
    slow_step(writer, 1, 0.5, 0.1)
    writer.events[-1]["metrics"]["slow/odd name (%)"] = 1.0
    writer.add(
        "slow", **{k: writer.events[-1][k] for k in ("step", "metrics", "seconds", "ledger")}
    )
    writer.add("checkpoint", step=1, name="step-000001", next_phase=1)
    sync(writer.path.parent, uri)
    client = MlflowClient(tracking_uri=uri)
    [run] = client.search_runs(experiment(client), "attributes.run_name = 'rl-s0'")
    assert len(run.data.params["contexts.seed"]) == 6000
    assert run.data.metrics["slow/odd name ___"] == 1.0


def test_more_than_a_thousand_metrics(tmp_path: Path, database: Path, uri: str) -> None:
    writer = start(tmp_path / "rl-s0", "rl", 0)
    for step in range(1, 301):
        slow_step(writer, step, 0.5, 0.1)
    writer.add("checkpoint", step=300, name="step-000300", next_phase=1)
    report = sync(writer.path.parent, uri)
    assert report.metrics == len(metrics(database)) == 300 * 7


def test_refused_connection_says_what_to_do(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path, "rl", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TrackingError) as caught:
        sync(folder, f"http://user:secret@127.0.0.1:{port}")
    message = str(caught.value)
    assert "nothing is lost: run `fst sync" in message and f"127.0.0.1:{port}" in message
    assert "secret" not in message


def test_a_server_that_never_answers_costs_seconds(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path, "rl", 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(TrackingError, match="timed out"):
            sync(folder, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - began < 8


def test_the_plain_file_store_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="sqlite"):
        sync(synthetic_run(tmp_path, "rl", 0), str(tmp_path / "mlruns"))


def test_default_address_is_a_database_in_the_working_folder(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    sync(synthetic_run(tmp_path / "runs", "rl", 0))
    assert metrics(database) and (tmp_path / "mlartifacts").is_dir()


def test_an_empty_journal_is_no_run(tmp_path: Path, database: Path, uri: str) -> None:
    (tmp_path / "rl-s0").mkdir()
    assert sync(tmp_path / "rl-s0", uri) == SyncReport(0, 0)
    assert rows(database, "SELECT name FROM runs") == []


def test_seeds_that_start_from_weights_of_their_own_share_an_arm() -> None:
    configs = [{"seed": seed, "start_from": f"demo/rl-s{seed}", "arm": "a"} for seed in (0, 1)]
    assert [shared_settings(config) for config in configs] == [
        {"start_from": "demo/rl", "arm": "a"}
    ] * 2
    assert shared_settings({"seed": 0, "start_from": None}) == {"start_from": None}


def test_runs_of_an_arm_may_differ_in_what_makes_no_other_arm(tmp_path: Path, uri: str) -> None:
    """Threads, data and a sentence: MLflow refuses a parameter that changes, and all after it."""
    for seed, other in enumerate([{}, {"threads": 2}, {"why": "again"}, {"data": "elsewhere"}]):
        writer = start(tmp_path / f"rl-s{seed}", "rl", seed, **other)
        slow_step(writer, 1, 0.5, 0.1)
        writer.add("checkpoint", step=1, name="0001", next_phase=1)
        assert sync(writer.path.parent, uri).metrics > 0
    client = MlflowClient(tracking_uri=uri)
    (arm,) = client.search_runs(experiment(client), "attributes.run_name = 'rl'")
    assert "slow.type" in arm.data.params and "threads" not in arm.data.params


@pytest.mark.parametrize("name", ["100%25", "my%20project", "q?x", "a b", "50% off", "研究"])
def test_a_database_is_where_its_folder_is_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "mlflow.db"
    address = sqlite_address(file)
    assert sqlite_file(address) == file
    assert make_url(address).database is not None and sqlite_file(f"{address}?timeout=3") == file


def test_an_archived_journal_is_sent(tmp_path: Path, uri: str) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    plain = folder / "journal.jsonl"
    (folder / "journal.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert sync(folder, uri).metrics > 0
    client = MlflowClient(tracking_uri=uri)
    [run] = client.search_runs(experiment(client), "attributes.run_name = 'fst-s0'")
    assert "journal.jsonl.gz" in {file.path for file in client.list_artifacts(run.info.run_id)}


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:50a0", "postgresql+nosuch://me:x@127.0.0.1/db"]
)
def test_an_address_that_no_library_takes_stops_no_run(tmp_path: Path, address: str) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    with pytest.raises(TrackingError, match=r"could not be used \("):
        sync(folder, address)
