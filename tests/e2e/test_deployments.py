"""Deployments on real servers: a run started by a person, by the clock, by changed data."""

import datetime
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import PrefectHTTPStatusError

from tests.e2e.flow_runs import artifacts, children, finished_in_mlflow, first, start, stored
from tests.e2e.lab import Lab
from tests.pipeline.clones import ROOT, clone, run

pytestmark = pytest.mark.timeout(900)
SMOKE = str(ROOT / "configs/tiny/smoke.toml")


@pytest.fixture
def worker(lab: Lab) -> Iterator[None]:
    with lab.worker("cpu"):
        yield


def test_a_run_started_through_the_api(lab: Lab, worker: None, project_runs: Path) -> None:
    parameters = {"config_path": SMOKE, "arm": "fst", "seed": 21, "runs": str(project_runs)}
    begun = start(lab, "train/train", **parameters)
    lab.wait(begun, {"Completed"}, 180)
    (mlflow_id,) = finished_in_mlflow(lab, "smoke", "fst-s21")
    shown = artifacts(lab, begun)
    assert f"{lab.urls['mlflow']}/#/experiments/" in shown["smoke-fst-s21-summary"]
    assert f"runs/{mlflow_id})" in shown["smoke-fst-s21-summary"]
    assert "born in cycle" in shown["smoke-fst-s21-contexts"]
    kept = stored(lab, "runs/")
    assert any(key.endswith("journal.jsonl") for key in kept)
    assert [key for key in kept if "checkpoint" in key or "safetensors" in key]


def test_a_run_started_by_its_schedule(lab: Lab, worker: None, project_runs: Path) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=10)
    every = IntervalSchedule(interval=datetime.timedelta(minutes=1), anchor_date=soon)
    parameters = {"config_path": SMOKE, "arm": "rl", "seed": 22, "runs": str(project_runs)}
    with lab.client() as client:
        deployment = client.read_deployment_by_name("train/train")
        (schedule,) = client.create_deployment_schedules(
            deployment.id, [(every, True)], parameters=parameters
        )
        try:
            due = first(lab, "train/train", has_begun_by_itself, 150)
        finally:
            client.delete_deployment_schedule(deployment.id, schedule.id)
    done = lab.wait(due.id, {"Completed"}, 180)
    assert done.expected_start_time is not None and done.expected_start_time >= soon
    assert len(finished_in_mlflow(lab, "smoke", "rl-s22")) == 1


def has_begun_by_itself(run: FlowRun) -> bool:
    return bool(run.auto_scheduled and run.state_name in {"Running", "Completed"})


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"seed": "one"}, "field 'seed'. Failure reason: 'one' is not of type 'integer'"),
        ({"seed": -1}, "field 'seed'. Failure reason: -1 is less than the minimum of 0"),
        ({"config_path": "configs/tiny/smoke"}, "field 'config_path'. Failure reason:"),
        ({"overrides": ["loop.steps"]}, "field 'overrides[0]'. Failure reason: 'loop.steps'"),
        ({"nonsense": 1}, "('nonsense' was unexpected)"),
    ],
)
def test_a_parameter_of_the_wrong_name_or_type_is_refused(
    lab: Lab, parameters: dict[str, object], sentence: str
) -> None:
    with pytest.raises(PrefectHTTPStatusError) as caught:
        start(lab, "train/train", **{"config_path": SMOKE, **parameters})
    assert caught.value.response.status_code == 409
    assert sentence in json.loads(caught.value.response.text)["detail"]


def test_deploying_again_sets_no_paused_schedule_going(lab: Lab) -> None:
    def deployed() -> str:
        return lab.run(sys.executable, "-m", "infra.deploy").stderr

    with lab.client() as client:
        deployment = client.read_deployment_by_name("compare/nightly")
        assert "schedule of compare/nightly: cron '0 2 * * *' (UTC)" in deployed()
        (schedule,) = client.read_deployment_by_name("compare/nightly").schedules
        assert schedule.active
        client.update_deployment_schedule(deployment.id, schedule.id, active=False)
        for _ in range(2):
            assert "; it is paused\n" in deployed()
            (schedule,) = client.read_deployment_by_name("compare/nightly").schedules
            assert not schedule.active
        client.update_deployment_schedule(deployment.id, schedule.id, active=True)
        assert "; it is paused" not in deployed()


def test_a_parameter_of_the_wrong_content_fails_in_a_sentence_and_is_not_tried_again(
    lab: Lab, worker: None, project_runs: Path, tmp_path: Path
) -> None:
    wrong = {
        "outside": {"config_path": SMOKE, "runs": str(tmp_path)},
        "no such file": {"config_path": "configs/none.toml"},
        "unknown arm": {"config_path": SMOKE, "arm": "nonsense"},
    }
    given = {why: {"runs": str(project_runs), **what} for why, what in wrong.items()}
    begun = {why: start(lab, "train/train", **what) for why, what in given.items()}
    done = {why: lab.wait(flow_run, {"Failed"}, 120) for why, flow_run in begun.items()}
    assert [run.run_count for run in done.values()] == [1, 1, 1]
    said = {why: run.state.message for why, run in done.items()}
    assert "configs/none.toml: cannot be read (No such file or directory)" in said["no such file"]
    assert "no arm 'nonsense'; known arms: base, fst" in said["unknown arm"]
    assert f"'{tmp_path}' is no folder inside the project" in said["outside"]
    assert not any(tmp_path.iterdir()) and not any(project_runs.iterdir())


def test_a_study_goes_to_workers_that_share_no_disk(lab: Lab, tmp_path: Path) -> None:
    """Its runs come from the store to where the report is made."""
    here, there = clone(_made(tmp_path / "here")), clone(_made(tmp_path / "there"))
    parameters = {"config_path": "configs/tiny/smoke.toml", "arms": ["base", "rl"], "jobs": 2}
    parameters |= {"seeds": [23], "on": "workers", "deployment": "train/train-gpu"}
    with on(lab, "cpu", here), on(lab, "gpu", there):
        begun = start(lab, "compare/compare", **parameters)
        done = lab.wait(begun, {"Completed"}, 300)
    ended = {name: run.state_name for name, run in children(lab, done.id).items()}
    assert ended == {"base-s23": "Completed", "rl-s23": "Completed"}
    assert (there / "runs/smoke/rl-s23/journal.jsonl").exists()
    summary = json.loads((here / "runs/smoke/summary.json").read_text())
    assert summary["arms"]["rl"]["counted"] == ["rl-s23"]
    assert not (there / "runs/smoke/summary.json").exists()
    report = artifacts(lab, begun)["smoke-report"]
    assert "rl-s23 in MLflow" in report and "final" in report


def test_a_study_of_the_command_line_goes_to_workers(
    lab: Lab, worker: None, project_runs: Path
) -> None:
    words = ["flows.compare", SMOKE, "--arms", "base", "--seeds", "24", "--on", "workers"]
    lab.run(sys.executable, "-m", *words, "--runs", str(project_runs))
    summary = json.loads((project_runs / "smoke/summary.json").read_text())
    assert summary["arms"]["base"]["counted"] == ["base-s24"]
    begun = first(lab, "train/train", lambda run: run.name == "base-s24", 1)
    assert begun.state_name == "Completed" and begun.parent_task_run_id is not None


def test_changed_data_starts_a_comparison_once_it_is_accepted(lab: Lab, tmp_path: Path) -> None:
    root = clone(_made(tmp_path / "project"))
    smaller(root)
    old = data_hash(root)
    with on(lab, "cpu", root):
        refused = lab.wait(start(lab, "prepare/prepare"), {"Failed"}, 180)
        new = data_hash(root)
        assert new != old
        shown = artifacts(lab, refused.id)["data"]
        assert old in shown and new in shown and "fst data manifest" in shown
        assert "and run prepare again" in refused.state.message
        run(root, "fst", "data", "manifest", "data", "--out", "data.manifest.json")
        done = lab.wait(start(lab, "prepare/prepare"), {"Completed"}, 180)
        begun = first(lab, "compare/compare", lambda run: run.created > done.start_time, 60)
        lab.wait(begun.id, {"Completed"}, 240)
        assert begun.created_by is not None and begun.created_by.type == "AUTOMATION"
    assert finished_in_mlflow(lab, "demo", "rl-s0")
    (summary,) = root.glob("runs/**/demo/summary.json")
    assert set(json.loads(summary.read_text())["arms"]) == {"base", "rl"}


def smaller(root: Path) -> None:
    """A demo study of seconds, whose problems are others than those that git vouches for."""
    path = root / "configs/tiny/demo.toml"
    text = path.read_text()
    for name, value in {
        "steps": 2,
        "cycle_steps": 2,
        "problems": 4,
        "every": 2,
        "warmup_steps": 1,
    }.items():
        text = re.sub(rf"(?m)^{name} = \d+$", f"{name} = {value}", text)
    text = re.sub(r"(?m)^arms = .*$", 'arms = ["base", "rl"]', text)
    path.write_text(re.sub(r"(?m)^seeds = .*$", "seeds = [0]", text))


def data_hash(root: Path) -> str:
    return str(yaml.safe_load((root / "data.dvc").read_text())["outs"][0]["md5"])


@contextmanager
def on(lab: Lab, pool: str, root: Path) -> Iterator[None]:
    """A worker whose project is a clone."""
    with lab.worker(pool, FST_HOME=str(root), PYTHONPATH=str(root)):
        yield


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
