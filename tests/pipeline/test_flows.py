"""Flows against a real temporary Prefect server and a real MLflow store, on two small cycles."""

import errno
import json
import logging
import os
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterName,
)
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.ablation import ablation
from flows.compare import compare, mlflow_command, prefect_command, study_parser
from flows.continual import continual
from flows.plasticity import plasticity
from flows.prepare import prepare
from flows.report import report
from flows.server import (
    ServerError,
    ended_by_sigterm,
    missed_if_gone,
    prefect_server,
    refuse_without_server,
)
from flows.train import train
from fst_core.config.model import ConfigError
from fst_core.journal import Journal, comparable, effective, read_events
from fst_core.session import Session
from fst_core.slow.base import TrainingDiverged
from fst_core.storage import StorageError
from fst_core.tracking import TrackingError
from infra.servers import PREFECT_UI
from tasks.runs import Follower, with_data
from tasks.tries import Refused, sentence_of

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "configs/tiny/smoke.toml")


def journal(runs: Path, run: str) -> list[dict]:
    events = comparable(read_events(runs / "smoke" / run / "journal.jsonl"))
    return [{k: v for k, v in event.items() if k != "git"} for event in events]


def flow_runs(name: str) -> list:
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name]))
        )


def task_names(flow_run_id) -> set[str]:
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs()
    return {run.name for run in runs if run.flow_run_id == flow_run_id}


def eventually(check, seconds: float = 15.0) -> None:
    """Task runs reach the server's tables through its event queue."""
    deadline = time.monotonic() + seconds
    while not check() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert check()


@pytest.fixture(scope="module")
def undisturbed(prefect_api, mlflow_store, tmp_path_factory) -> Path:
    runs = tmp_path_factory.mktemp("undisturbed")
    result = train(SMOKE, "fst", 5, (), str(runs))
    assert result["untracked"] == 0
    assert result["metrics"].keys() >= {"seed/evaluation/reward", "best/evaluation/reward"}
    return runs


def test_a_run_shows_one_task_run_per_phase(undisturbed):
    run = min(flow_runs("fst-s5"), key=lambda run: run.start_time)
    assert run.state.is_completed()
    wanted = {
        "evaluate 0 fst-s5",
        "fast c00 fst-s5",
        "slow c00 0-2 fst-s5",
        "evaluate 2 fst-s5",
        "fast c01 fst-s5",
        "slow c01 2-4 fst-s5",
        "evaluate 4 fst-s5",
    }
    eventually(lambda: wanted <= task_names(run.id))


def test_a_finished_run_is_left_as_it_is(undisturbed):
    path = undisturbed / "smoke/fst-s5/journal.jsonl"
    before = path.read_bytes()
    train(SMOKE, "fst", 5, (), str(undisturbed))
    assert path.read_bytes() == before


def test_a_failed_phase_resumes_at_the_checkpoint_to_the_same_journal(
    undisturbed, tmp_path, monkeypatch
):
    failures, step = [], Session.step

    def fail_once(session: Session) -> None:
        step(session)
        if session.step_done == 3 and not failures:
            failures.append(session.step_done)
            raise OSError("injected")

    monkeypatch.setattr(Session, "step", fail_once)
    with_retry = train.with_options(retries=1, name="train retried")
    state = with_retry(SMOKE, "fst", 5, (), str(tmp_path), return_state=True)
    assert state.is_completed()
    assert failures == [3]
    raw = read_events(tmp_path / "smoke/fst-s5/journal.jsonl")
    assert any(event["kind"] == "rewind" for event in raw)
    assert journal(tmp_path, "fst-s5") == journal(undisturbed, "fst-s5")
    phases = [event["kind"] for event in raw if event["kind"] in ("fast", "evaluation")]
    finished = [event["kind"] for event in effective(raw) if event["kind"] in phases]
    assert phases == finished  # none of those before the failure was repeated
    assert sum(event["kind"] == "slow" for event in raw) == 5  # step 3, of the phase that failed


def test_an_error_that_another_try_would_meet_again_is_not_tried_again(
    prefect_api, tmp_path, monkeypatch
):
    tries = []

    def fail(_: Session) -> None:
        tries.append(1)
        raise TrainingDiverged("injected")

    monkeypatch.setattr(Session, "step", fail)
    with pytest.raises(TrainingDiverged):
        train.with_options(retries=3)(SMOKE, "rl", 8, (), str(tmp_path), track=False)
    (run,) = flow_runs("rl-s8")
    assert (len(tries), run.run_count, run.state.is_failed()) == (1, 1, True)
    with pytest.raises(ConfigError):
        train.with_options(retries=3)(SMOKE, "nonsense", 8, (), str(tmp_path))
    (run,) = flow_runs("nonsense-s8")
    assert run.run_count == 1


def fails_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Session) -> None:
        raise error

    monkeypatch.setattr(Session, "step", fail)


FORESEEN = [
    pytest.param(TrainingDiverged("it diverged"), 1, id="lasting"),
    pytest.param(StorageError("it is away"), 2, id="passing"),
    pytest.param(OSError(errno.ENOSPC, "No space left on device"), 2, id="disk"),
]


@pytest.mark.parametrize(("error", "tries"), FORESEEN)
def test_an_error_with_a_sentence_ends_a_run_with_that_alone(
    prefect_api, tmp_path, monkeypatch, caplog, request, error, tries
):
    fails_with(error, monkeypatch)
    arm_seed = ("rl", 20 + [p.id for p in FORESEEN].index(request.node.callspec.id))
    with pytest.raises(type(error)):
        train(SMOKE, *arm_seed, (), str(tmp_path), track=False)
    (run,) = flow_runs("{}-s{}".format(*arm_seed))
    assert run.state.is_failed() and run.run_count == tries
    assert run.state.message == sentence_of(error)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("study_flow", "given", "said"),
    [
        (train, {"config_path": SMOKE, "arm": "nonsense"}, "no arm 'nonsense'"),
        (train, {"config_path": "none.toml"}, "none.toml: cannot be read"),
        (compare, {"config_path": SMOKE, "arms": ("nonsense",)}, "no arm 'nonsense'"),
        (ablation, {"config_path": SMOKE}, "no [[study.sweeps]]"),
        (continual, {"config_path": SMOKE}, "'directives'"),
        (plasticity, {"config_path": SMOKE}, "no arm sets start_from"),
        (report, {"study": "none"}, "none: no run here: no such folder"),
        (prepare, {}, "inside the DVC stage"),
    ],
)
def test_every_flow_tells_what_it_cannot_run_in_a_sentence(
    prefect_api, monkeypatch, tmp_path, caplog, study_flow, given, said
):
    monkeypatch.setenv("DVC_STAGE", "a stage")
    monkeypatch.chdir(tmp_path)
    state = study_flow(**given, return_state=True)
    assert state.is_failed() and state.message.count("\n") == 0
    assert said in state.message and not state.message.startswith("Flow run encountered")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [state.message] and "Traceback" not in caplog.text


def test_an_error_that_nobody_foresaw_keeps_its_traceback(
    prefect_api, tmp_path, monkeypatch, caplog
):
    fails_with(ZeroDivisionError("a fault of the code"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        train.with_options(retries=0)(SMOKE, "rl", 29, (), str(tmp_path), track=False)
    assert "Traceback" in caplog.text


@pytest.mark.filterwarnings("ignore:Logger 'prefect")
@pytest.mark.parametrize(("error", "shown"), [(Refused("no"), False), (KeyError(), True)])
def test_an_error_that_was_told_is_not_called_unexpected(caplog, error, shown):
    logger = logging.getLogger("prefect.flow_runs")
    logger.error("Engine execution exited with unexpected exception", exc_info=error)
    assert ("unexpected" in caplog.text) == shown


@pytest.mark.filterwarnings("ignore:Logger 'prefect")
@pytest.mark.parametrize(
    ("name", "error", "level", "shown", "traced"),
    [
        ("prefect.engine", Refused("no"), logging.INFO, False, False),
        ("prefect.flow_runs", Refused("no"), logging.INFO, True, False),
        ("prefect.task_runs", ConfigError("no"), logging.INFO, True, False),
        ("prefect.engine", ZeroDivisionError(), logging.INFO, True, True),
        ("prefect.engine", Refused("no"), logging.DEBUG, True, True),
    ],
)
def test_tracebacks_are_for_what_nobody_foresaw_and_for_debugging(
    caplog, name, error, level, shown, traced
):
    with caplog.at_level(level, name):
        logging.getLogger(name).error("it failed", exc_info=error)
    assert ("it failed" in caplog.text, type(error).__name__ in caplog.text) == (shown, traced)


def test_long_phases_show_how_far_they_are(prefect_api, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.progress.UPDATE_SECONDS", 0.0)
    train(SMOKE, "fst", 9, (), str(tmp_path), track=False)
    with get_client(sync_client=True) as client:
        key = ArtifactFilterKey(any_=["smoke-fst-s9-progress"])
        shown = client.read_artifacts(artifact_filter=ArtifactFilter(key=key))
    assert [artifact.data for artifact in shown] == [100.0] * 4
    texts = {artifact.description for artifact in shown}
    assert "fst-s9, cycle 1: slow steps 3 to 4: 2 of 2 slow steps" in texts
    assert any(t.startswith("fst-s9, cycle 0: evolving contexts: ") for t in texts)
    assert all("engine calls" in text for text in texts if "evolving" in text)


def test_a_server_that_shows_no_progress_stops_no_run(prefect_api, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise httpx.ConnectError("the server is away")

    monkeypatch.setattr("tasks.progress.UPDATE_SECONDS", 0.0)
    monkeypatch.setattr("tasks.progress.create_progress_artifact", refuse)
    train(SMOKE, "gepa", 9, (), str(tmp_path), track=False)
    assert journal(tmp_path, "gepa-s9")[-1]["kind"] == "end"


def test_without_retries_a_failed_phase_fails_the_flow(
    prefect_api, mlflow_store, tmp_path, monkeypatch
):
    def fail(_: Session) -> None:
        raise OSError("injected")

    monkeypatch.setattr(Session, "step", fail)
    with pytest.raises(OSError, match="injected"):
        train.with_options(retries=0)(SMOKE, "rl", 6, (), str(tmp_path))
    (run,) = flow_runs("rl-s6")
    assert run.state.is_failed()


def test_how_a_run_completed_is_told_in_its_state(prefect_api, tmp_path):
    """What it came to; of a run that was finished before, that."""
    results = [train(SMOKE, "base", 32, (), str(tmp_path), track=False) for _ in range(2)]
    assert results[0] == results[1]
    runs = sorted(flow_runs("base-s32"), key=lambda run: run.start_time)
    first, second = (run.state.message for run in runs)
    folder = tmp_path / "smoke" / "base-s32"
    reward = results[0]["metrics"]["seed/evaluation/reward"]
    assert first.startswith(f"{folder}: reward {reward:.3f} (exact KL ")
    assert first.endswith("under the seed context at step 0"), "the base model is measured once"
    assert second.startswith(f"{folder} is finished: nothing is left to train")


def test_how_a_study_completed_is_told_in_its_state(prefect_api, tmp_path):
    arguments = (SMOKE, ("rl", "fst"), (33,), 1, (), str(tmp_path), None, False)
    state = compare(*arguments, return_state=True)
    done = state.result()
    assert state.is_completed()
    assert state.message.startswith(f"{done.report.paths['report']}: smoke: ")
    assert "rl" in state.message and "fst" in state.message
    assert state.message.count("\n") == 0


def test_the_same_study_of_two_nights_is_told_apart_by_tags(prefect_api, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nights = [f"runs/nightly/2026-11-2{day}" for day in (7, 8, 8)]
    for night in nights:
        train(SMOKE, "base", 30, (), night, track=False)
        report(f"{night}/smoke", track=False)
    wanted = [[f"{night.removeprefix('runs/')}/smoke"] for night in nights]
    assert sorted(run.tags for run in flow_runs("base-s30")) == wanted
    for night, tags in zip(nights, wanted, strict=True):
        assert {tuple(run.tags) for run in flow_runs(f"report {night}/smoke")} == {tuple(tags)}


def test_a_dead_mlflow_costs_a_line_each_time_and_no_run(
    prefect_api, tmp_path, monkeypatch, caplog
):
    def refuse(*_: object, **__: object) -> None:
        raise TrackingError("MLflow is away")

    monkeypatch.setattr("fst_core.tracking.sync", refuse)
    monkeypatch.setattr("tasks.track.RETRY_SECONDS", 0)
    result = train(SMOKE, "base", 7, (), str(tmp_path))
    assert result["untracked"] == 2  # after its one checkpoint, and at the end
    said = [r.getMessage() for r in caplog.records if "MLflow is away" in r.getMessage()]
    tried_again = [line for line in said if " - Retry " in line]
    assert len(tried_again) == 2 and len(said) == 2 + len(tried_again)
    assert "Traceback" not in caplog.text
    assert journal(tmp_path, "base-s7")[-1]["kind"] == "end"


def test_compare_runs_arms_in_processes_and_reports(prefect_api, mlflow_store, tmp_path):
    line = [sys.executable, "-m", "flows.compare", SMOKE, "--arms", "base", "gepa"]
    line += ["--runs", str(tmp_path), "--seeds", "0"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    study = tmp_path / "smoke"
    summary = json.loads((study / "summary.json").read_text())
    assert {arm: data["counted"] for arm, data in summary["arms"].items()} == {
        "base": ["base-s0"],
        "gepa": ["gepa-s0"],
    }
    assert "<html" in (study / "report.html").read_text()
    assert len(flow_runs("base-s0")) == len(flow_runs("gepa-s0")) == 1
    for shown in (study / "report.html", study / "summary.json", "mlflow ui", prefect_api[:-4]):
        assert str(shown) in done.stdout


def test_compare_names_the_run_that_failed_and_still_reports(tmp_path):
    """Also: without a configured server, the whole study shares one of its own."""
    (tmp_path / "smoke/rl-s0").mkdir(parents=True)
    (tmp_path / "smoke/rl-s0/config.json").write_text('{"name": "another"}')
    line = [sys.executable, "-m", "flows.compare", SMOKE, "--arms", "rl", "base", "--jobs", "2"]
    line += ["--runs", str(tmp_path), "--no-track"]
    env = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "error: rl-s0 ended with status 1: " in done.stdout and "INFO" not in done.stdout
    assert "holds a run of another config" in done.stdout
    assert (tmp_path / "smoke/report.html").exists()
    with closing(sqlite3.connect(tmp_path / "smoke/prefect/prefect.db")) as database:
        states = dict(database.execute("select name, state_type from flow_run"))
    assert states == {
        f"compare {SMOKE}": "FAILED",
        "rl-s0": "FAILED",
        "base-s0": "COMPLETED",
    }


def told(*words: str) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture
def probes(tmp_path) -> str:
    """The smoke study under another name, with an arm that starts from its rl runs."""
    text = Path(SMOKE).read_text().replace('name = "smoke"', 'name = "probes"')
    text = text.replace('["base", "rl", "gepa", "fst"]', '["rl", "from-rl"]')
    text += '\n[arms.from-rl]\nstart_from = "smoke/rl-s{seed}"\nfast = { type = "none" }\n'
    path = tmp_path / "probes.toml"
    path.write_text(text)
    return str(path)


def test_probes_run_the_study_they_start_from_and_share_a_report(
    prefect_api, mlflow_store, tmp_path, probes
):
    words = ["flows.plasticity", probes, "--first", SMOKE, "--runs", str(tmp_path)]
    done = told(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    first = {path.name for path in (tmp_path / "smoke").glob("*-s0")}
    assert first == {"base-s0", "rl-s0", "gepa-s0", "fst-s0"}
    summary = json.loads((tmp_path / "probes/summary.json").read_text())
    assert set(summary["studies"]) == {"smoke", "probes"}
    states = {run.name: run.state for run in flow_runs(f"plasticity {probes}")}
    (state,) = states.values()
    assert state.is_completed() and "smoke: " in state.message and "probes: " in state.message
    assert set(summary["studies"]["probes"]["arms"]) == {"rl", "from-rl"}
    assert set(json.loads((tmp_path / "smoke/summary.json").read_text())["arms"]) == {
        "base", "rl", "gepa", "fst",
    }  # fmt: skip
    joint = told("fst_core.cli", "report", str(tmp_path / "smoke"), str(tmp_path / "probes"))
    assert joint.returncode == 0, joint.stderr
    assert (tmp_path / "report/report.html").exists()
    kept = (tmp_path / "smoke/rl-s0/journal.jsonl").read_bytes()
    again = told(*words, "--fresh")
    assert again.returncode == 0, again.stdout + again.stderr
    assert (tmp_path / "smoke/rl-s0/journal.jsonl").read_bytes() == kept


def test_probes_without_anything_to_start_from_are_refused_before_anything_starts(tmp_path, probes):
    runs = tmp_path / "runs"
    lost = told("flows.plasticity", probes, "--runs", str(runs), "--no-track")
    assert lost.returncode == 1
    assert "there is no run in" in lost.stderr and "--first" in lost.stderr
    none = told("flows.plasticity", SMOKE, "--runs", str(runs), "--no-track")
    assert none.returncode == 1
    assert "no arm sets start_from" in none.stderr
    wrong = told("flows.plasticity", probes, "--first", probes, "--runs", str(runs), "--no-track")
    assert wrong.returncode == 1
    assert "does not make it" in wrong.stderr
    assert not runs.exists()


def test_probes_refuse_a_first_study_of_another_config(tmp_path, probes):
    folder = tmp_path / "smoke/rl-s0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"name": "another"}')
    words = ["flows.plasticity", probes, "--first", SMOKE, "--runs", str(tmp_path), "--no-track"]
    done = told(*words)
    assert done.returncode == 1
    assert "holds a run of another config" in done.stderr and "flows.compare" in done.stderr
    assert "name=..., by --set or in a deployment's overrides" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"smoke", "probes.toml"}


SEQUENCE = """
[environment]
type = "sequence"
task_steps = 2
[[environment.tasks]]
type = "directives"
name = "tags"
required = ["answer-tag"]
[[environment.tasks]]
type = "directives"
name = "dots"
required = ["dots"]

"""


def test_a_continual_study_runs_and_refuses_a_single_task(prefect_api, mlflow_store, tmp_path):
    text = Path(SMOKE).read_text()
    start, stop = text.index("[environment]"), text.index("[policy]")
    path = tmp_path / "sequence.toml"
    path.write_text(text[:start] + SEQUENCE + text[stop:])
    line = ["flows.continual", str(path), "--arms", "rl", "--runs", str(tmp_path)]
    done = told(*line)
    assert done.returncode == 0, done.stdout + done.stderr
    events = read_events(tmp_path / "smoke/rl-s0/journal.jsonl")
    assert [e["task"] for e in events if e["kind"] == "slow"] == ["tags"] * 2 + ["dots"] * 2
    assert "<html" in (tmp_path / "smoke/report.html").read_text()
    refused = told("flows.continual", SMOKE, "--runs", str(tmp_path / "none"))
    assert refused.returncode == 1
    assert "'directives'" in refused.stderr and '"sequence"' in refused.stderr
    assert not (tmp_path / "none").exists()


def test_an_ablation_runs_its_sweeps_and_refuses_a_study_without(
    prefect_api, mlflow_store, tmp_path
):
    sweep = '[{"name": "baseline", "key": "slow.baseline", "values": ["problem", "batch"]}]'
    line = ["flows.ablation", SMOKE, "--runs", str(tmp_path), "--set", "study.arms=[]"]
    done = told(*line, "--set", f"study.sweeps={sweep}", "--no-track")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "smoke/summary.json").read_text())
    assert summary["ablation"]["base"] == "fst"
    arms = [row["arm"] for row in summary["ablation"]["settings"]["slow.baseline"]]
    assert arms == ["fst", "baseline-batch"]
    refused = told("flows.ablation", SMOKE, "--runs", str(tmp_path / "none"))
    assert refused.returncode == 1 and "no [[study.sweeps]]" in refused.stderr
    assert not (tmp_path / "none").exists()


def test_the_log_tells_one_line_an_evaluation(tmp_path, caplog):
    """Under the context by which the arm is judged, whichever others were measured."""
    follower = Follower(tmp_path / "fst-s0", logging.getLogger("study"), "best")
    with closing(Journal(tmp_path / "fst-s0/journal.jsonl")) as written:
        for context, reward in (("seed", 0.25), ("best", 0.5), ("none", 0.0)):
            metrics = {"evaluation/reward": reward}
            written.append("evaluation", {"step": 4, "context": context, "metrics": metrics})
    with caplog.at_level(logging.INFO, "study"):
        follower.look()
        follower.look()
    assert caplog.messages == ["fst-s0 step 4: reward 0.500 under the best context"]


def test_a_server_that_ends_first_ends_the_block_in_a_sentence(tmp_path):
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], text=True)
    told = pytest.raises(ServerError, match=r"server of this command ended \(-9\); its log is")
    with told, ended_by_sigterm(), missed_if_gone(server, tmp_path):
        server.kill()
        time.sleep(60)


def test_a_server_that_outlives_the_block_is_not_missed(tmp_path):
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], text=True)
    told = pytest.raises(ValueError, match="own")
    with told, ended_by_sigterm(), missed_if_gone(server, tmp_path):
        raise ValueError("own")
    server.kill()
    server.wait()
    time.sleep(0.2)  # nothing comes of it now


def ended(health: str) -> bool:
    """Whether a server goes away, at once or as soon as it has heard of its parent's end."""
    for _ in range(150):
        try:
            urllib.request.urlopen(health, timeout=5)
        except OSError:
            return True
        time.sleep(0.2)
    return False


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_ends_ends_its_server(tmp_path, how):
    code = (
        "import sys, time; from pathlib import Path; from flows.server import prefect_server\n"
        "with prefect_server(Path(sys.argv[1])) as url: print(url, flush=True); time.sleep(99)"
    )
    env = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    line = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(line, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    health = f"{process.stdout.readline().strip()}/health"
    assert health.startswith("http://127.0.0.1:")
    assert urllib.request.urlopen(health, timeout=5).status == 200
    process.send_signal(how)
    assert process.wait(30) == (-how if how == signal.SIGKILL else 128 + how)
    assert ended(health)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fresh"], "--fresh replaces runs of this machine"),
        (["--deployment", "train/none"], "has no deployment 'train/none': `make deploy`"),
        (["--deployment", "none"], "deployment: String should match pattern"),
    ],
)
def test_a_command_that_workers_cannot_follow_ends_in_a_sentence(
    prefect_api, tmp_path, words, sentence
):
    line = ["flows.compare", SMOKE, "--on", "workers", *words, "--no-track"]
    done = told(*line, "--runs", str(tmp_path))
    assert done.returncode == 1
    (said,) = [part for part in done.stderr.split("\n") if part.startswith("error: ")]
    assert sentence in done.stderr[done.stderr.index(said) :]
    assert not list(tmp_path.glob("smoke/*-s*"))


def test_workers_take_runs_from_a_configured_server_only(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    done = told("flows.compare", SMOKE, "--on", "workers", "--runs", str(tmp_path))
    assert done.returncode == 1
    assert "error: no Prefect server is configured, and workers take runs from one" in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.fixture
def status():
    """What another service answers with."""
    return 200


@pytest.fixture
def another_service(status):
    """The address of a service that answers every request, and is no Prefect server."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{service.server_port}/api"
        service.shutdown()


NOTHING = ["http://127.0.0.1:9/api", "nonsense", "http://127.0.0.1:99999/api", "http://a:b/api"]


def server_refused(url: str, folder: Path) -> list[str]:
    """What is said where a command needs a server, and where one would be started otherwise."""
    said = []
    with temporary_settings({PREFECT_API_URL: url}):
        with pytest.raises(ServerError) as refused:
            refuse_without_server("one is needed", "do without")
        said.append(str(refused.value))
        with pytest.raises(ServerError) as refused, prefect_server(folder):
            pass
    return [*said, str(refused.value)]


@pytest.mark.parametrize("url", NOTHING)
def test_a_configured_address_where_no_server_answers_is_told(tmp_path, url):
    for said in server_refused(url, tmp_path):
        assert f"{url}, does not answer" in said and "set another address" in said


def test_a_configured_address_of_another_service_is_told(tmp_path, another_service):
    for said in server_refused(another_service, tmp_path):
        assert f"what answers at {another_service} is no Prefect server" in said


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_asks_who_one_is_is_left_to_prefects_client(tmp_path, another_service):
    with temporary_settings({PREFECT_API_URL: another_service}), prefect_server(tmp_path) as used:
        assert used == another_service


def test_a_configured_server_that_is_slow_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("infra.deploy.PING_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as slow:
        url = f"http://127.0.0.1:{slow.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}), prefect_server(tmp_path) as used:
            assert used == url


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["flows.train", SMOKE, "--set", "seed=3"], "error: 'seed=3' among the overrides"),
        (["flows.compare", SMOKE, "--set", "arm=rl"], "error: 'arm=rl' among the overrides"),
        (["flows.train", SMOKE, "--processes", "3"], "error: loop.problems_per_step = 4 cannot be"),
        (["flows.train", SMOKE, "--sharded"], "error: one process has nobody to share the weights"),
        (["flows.compare", SMOKE, "--on", "workers"], "error: the Prefect server in PREFECT_API"),
        (["flows.compare", SMOKE], "error: the Prefect server in PREFECT_API_URL, "),
        (["flows.prepare"], "error: the Prefect server in PREFECT_API_URL, "),
    ],
)
def test_a_command_that_cannot_begin_ends_in_a_sentence(tmp_path, monkeypatch, line, sentence):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    done = told(*line, *([] if line == ["flows.prepare"] else ["--runs", str(tmp_path)]))
    assert done.returncode == 1
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["flows.compare", SMOKE, "--jobs", "0"], "argument --jobs: 0 is less than 1"),
        (["flows.continual", SMOKE, "--jobs", "two"], "invalid whole number value: 'two'"),
        (
            ["flows.compare", SMOKE, "--seeds", "0,two"],
            "--seeds: no list of whole numbers: '0,two'",
        ),
        (["flows.compare", SMOKE, "--arms", "rl,"], "argument --arms: no list of names: 'rl,'"),
        (["flows.train", SMOKE, "--processes", "-1"], "argument --processes: -1 is less than 1"),
        (["flows.train", SMOKE, "--retries", "-1"], "argument --retries: -1 is less than 0"),
    ],
)
def test_a_number_that_cannot_be_is_told_before_any_server_starts(tmp_path, line, sentence):
    done = told(*line, "--runs", str(tmp_path))
    assert done.returncode == 2
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["rl,fst", "0, 1"], ["rl", "fst", "0", "1"], ["rl, fst", "0,1"]])
def test_arms_and_seeds_are_apart_by_spaces_or_commas(words):
    half = len(words) // 2
    line = [SMOKE, "--arms", *words[:half], "--seeds", *words[half:]]
    args = study_parser("compare", "").parse_args(line)
    assert (args.arms, args.seeds) == (["rl", "fst"], [0, 1])


@pytest.mark.parametrize("pair", ["seed=3", " seed = 3", "arm=rl"])
def test_an_override_that_would_not_count_names_the_parameter(pair):
    with pytest.raises(ConfigError, match=rf"the parameter {pair.split('=')[0].strip()} of a run"):
        with_data([pair], None)
    assert with_data(["fast.seed=you", "seeded=1"], None) == ("fast.seed=you", "seeded=1")


def test_the_command_that_shows_the_flow_runs_again_asks_its_own_server(tmp_path):
    with temporary_settings({PREFECT_API_URL: None}):
        words = shlex.split(prefect_command(tmp_path))
    assert words[0] == "env"
    given = dict(word.split("=", 1) for word in words[1 : words.index("server") - 1])
    assert given == PREFECT_UI | {"PREFECT_HOME": str(tmp_path / "prefect")}


def test_a_config_error_is_one_sentence_before_any_server_starts(tmp_path):
    line = [sys.executable, "-m", "flows.compare", SMOKE, "--arms", "nonsense"]
    line += ["--runs", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no arm 'nonsense'" in done.stderr and "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_no_password_is_in_what_is_shown_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:sekret@db/mlflow")
    assert mlflow_command().endswith(' --backend-store-uri "$MLFLOW_TRACKING_URI"')
    with temporary_settings({PREFECT_API_URL: "http://me:sekret@host:4200/api"}):
        assert prefect_command(tmp_path) == "http://host:4200"
