"""A study's report in MLflow: files and numbers where the compare view finds them."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from fst_core.report import make_report
from fst_core.tracking import log_report, sync
from tests.journals import synthetic_study
from tests.mlflow_store import by_name, everything, experiment, rows


def test_report_goes_to_one_study_run(tmp_path: Path, database: Path, uri: str) -> None:
    out, names = tmp_path / "out", {"report.html", "summary.json"}
    names |= {"tables/curves.parquet", "figures/reward.svg", "figures/synthetic/kl.svg"}
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("x")
    (out / "rl-s0").mkdir()
    assert log_report("synthetic", out, uri) == log_report("synthetic", out, uri)
    assert rows(database, "SELECT name, status FROM runs") == [("study", "FINISHED")]
    client = MlflowClient(tracking_uri=uri)
    [run] = client.search_runs(experiment(client))
    here = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    found = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    assert found & names == names and "rl-s0" not in {path.name for path in here.iterdir()}


@pytest.fixture
def reported(tmp_path: Path, uri: str) -> Path:
    """The folder of a study of two arms and two seeds that is in MLflow, with its report."""
    folders = synthetic_study(tmp_path / "runs", ("rl", "fst"))
    for folder in folders:
        sync(folder, uri)
    make_report(folders, tmp_path / "out")
    log_report("synthetic", tmp_path / "out", uri)
    return tmp_path / "out"


def test_arms_have_the_reports_numbers(reported: Path, uri: str) -> None:
    summary = json.loads((reported / "summary.json").read_text())["arms"]["fst"]
    runs = by_name(uri)
    arm = runs["fst"]
    assert arm.data.metrics["final/reward"] == summary["final_reward"]["mean"]
    assert arm.data.metrics["final/n_seeds"] == 2
    low, high = summary["final_reward"]["interval"]
    assert (arm.data.metrics["final/reward_low"], arm.data.metrics["final/reward_high"]) == (
        (low, high)
    )
    assert runs["study"].data.metrics["study/reward.fst"] == summary["final_reward"]["mean"]
    assert runs["rl"].data.tags["fst.rollouts_to_rl_peak"] == "128"  # 8 steps of 16
    assert runs["study"].data.tags["fst.arms_left_out"] == "none"


def test_arms_and_the_study_last_as_long_as_their_runs(reported: Path, uri: str) -> None:
    """So that the column "Duration" of MLflow's list tells of training, not of its replay."""
    runs = by_name(uri)
    seeds = [run.info for name, run in runs.items() if name.endswith(("-s0", "-s1"))]
    span = min(one.start_time for one in seeds), max(one.end_time for one in seeds)
    assert len(seeds) == 4 and span[0] < span[1]
    assert (runs["study"].info.start_time, runs["study"].info.end_time) == span
    mine = [run.info for name, run in runs.items() if name in ("fst-s0", "fst-s1")]
    arm = runs["fst"].info
    assert arm.start_time == min(one.start_time for one in mine)
    assert arm.end_time == max(one.end_time for one in mine)


def test_arms_have_mean_curves_under_the_keys_of_their_seeds(reported: Path, uri: str) -> None:
    client, runs = MlflowClient(tracking_uri=uri), by_name(uri)

    def curve(name: str, key: str) -> dict[int, float]:
        history = client.get_metric_history(runs[name].info.run_id, key)
        assert len({m.step for m in history}) == len(history)
        return {metric.step: metric.value for metric in history}

    for key in ("evaluation/reward", "evaluation/reward.seed", "samples/evaluation/reward"):
        seeds = [curve(name, key) for name in ("fst-s0", "fst-s1")]
        means = {step: (seeds[0][step] + seeds[1][step]) / 2 for step in seeds[0]}
        assert curve("fst", key) == pytest.approx(means)
    assert runs["fst"].data.params["fast.type"] == "gepa"
    assert "seed" not in runs["fst"].data.params
    assert set(runs["rl"].data.metrics) <= set(runs["fst"].data.metrics)


def test_a_report_logged_twice_adds_nothing(reported: Path, database: Path, uri: str) -> None:
    before = everything(database)
    assert log_report("synthetic", reported, uri).metrics == 0
    after = everything(database)
    ends = [(name, status, began) for name, status, began, _ in after.pop("runs")]
    assert ends == [(name, status, began) for name, status, began, _ in before.pop("runs")]
    assert after == before


def test_another_seed_makes_the_arms_run_anew(reported: Path, uri: str) -> None:
    """MLflow keeps every row: means over two and over three seeds would stand in one curve."""
    folders = synthetic_study(reported.parent / "more", ("fst",), (2,))
    old = by_name(uri)["fst"].info.run_id
    sync(folders[0], uri)
    everyone = sorted((reported.parent / "runs").iterdir()) + folders
    make_report([path for path in everyone if path.is_dir()], reported)
    log_report("synthetic", reported, uri)
    runs = by_name(uri)
    arm = runs["fst"].info.run_id
    assert arm != old and runs["fst"].data.metrics["final/n_seeds"] == 3
    for name in ("fst-s0", "fst-s1", "fst-s2"):
        assert runs[name].data.tags["mlflow.parentRunId"] == arm
    history = MlflowClient(tracking_uri=uri).get_metric_history(arm, "evaluation/reward")
    assert len({metric.step for metric in history}) == len(history)
    assert runs["fst"].data.params["fast.type"] == "gepa"


def test_a_seed_finds_its_arm_again(reported: Path, uri: str) -> None:
    client, runs = MlflowClient(tracking_uri=uri), by_name(uri)
    client.delete_run(runs["fst"].info.run_id)
    sync(reported.parent / "runs" / "fst-s0", uri)
    runs = by_name(uri)
    assert runs["fst-s0"].data.tags["mlflow.parentRunId"] == runs["fst"].info.run_id


def test_an_arm_that_mlflow_lacks_is_named(tmp_path: Path, uri: str) -> None:
    folders = synthetic_study(tmp_path / "runs", ("base", "fst"), (0,))
    sync(folders[1], uri)
    make_report(folders, tmp_path / "out")
    log_report("synthetic", tmp_path / "out", uri)
    runs = by_name(uri)
    assert runs["study"].data.tags["fst.arms_left_out"] == "base"
    assert runs["fst"].data.tags["fst.rollouts_to_rl_peak"] == "undefined: no rl arm"
    assert runs["fst"].data.metrics["final/n_seeds"] == 1
    assert "final/reward_low" not in runs["fst"].data.metrics


def test_a_study_finds_its_part_in_a_report_over_several(reported: Path, uri: str) -> None:
    path = reported / "summary.json"
    whole = {"studies": {"synthetic": json.loads(path.read_text()), "other": {}}}
    path.write_text(json.dumps(whole))
    assert log_report("synthetic", reported, uri).metrics == 0  # the same numbers as alone


def test_the_same_study_of_two_nights_is_told_apart_in_the_list(
    tmp_path: Path, database: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nights = [f"nightly/2026-11-2{day}/synthetic" for day in (7, 8)]
    found = []
    for shift, night in enumerate(nights):
        folders = synthetic_study(Path("runs", night), ("rl", "fst"), (0,))
        for folder in folders:
            begin_later(folder / "journal.jsonl", 86_400 * shift)
            sync(folder, uri)
        make_report(folders, Path("runs", night))
        for _ in range(2):  # a second time changes nothing
            log_report("synthetic", Path("runs", night), uri)
        for folder in folders:
            sync(folder, uri)
        found.append(places(database))
    first, second = shown = [night.replace("/", " > ") for night in nights]
    assert found[0] == sorted([
        ("fst", first), ("fst-s0", f"{first} > fst-s0"), ("rl", first), ("study", first),
        ("rl-s0", f"{first} > rl-s0"),
    ])  # fmt: skip
    assert found[1] == sorted([
        ("fst", second), ("rl", second), ("study", second),
        *((f"{arm}-s0", f"{night} > {arm}-s0") for arm in ("fst", "rl") for night in shown),
    ])  # fmt: skip


def places(database: Path) -> list[tuple]:
    """Names of the runs that are not deleted, and what the list shows as their source."""
    return rows(
        database,
        "SELECT name, value FROM runs LEFT JOIN tags ON runs.run_uuid = tags.run_uuid AND "
        "key = 'mlflow.source.name' WHERE lifecycle_stage = 'active'",
    )


def begin_later(journal: Path, seconds: int) -> None:
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    lines = [json.dumps({**event, "time": event["time"] + seconds}) for event in events]
    journal.write_text("".join(f"{line}\n" for line in lines))
