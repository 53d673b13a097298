"""Studies: which runs there are, and what happens when one fails or the study is stopped."""

import json
from pathlib import Path

import pytest

from fst_core.config.model import ConfigError
from fst_core.journal import read_events
from fst_core.study import LOG, Outcome, expand, failures, find_runs, run_study, stop_all
from tests.unit.commands import call, finished, write_config


def test_arms_and_seeds_multiply(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    runs, study = expand(config, (), ["rl", "fst"], [3, 5])
    assert [run.id for run in runs] == ["rl-s3", "rl-s5", "fst-s3", "fst-s5"]
    assert [run.fast.type for run in runs] == ["none", "none", "gepa", "gepa"]
    assert [run.id for run in expand(config)[0]] == ["base-s0"]
    assert study.jobs == 1


def test_a_study_refuses_before_anything_starts(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(ConfigError, match="no arm 'nothing'"):
        run_study(
            write_config(tmp_path), [], ["base", "nothing"], [], 1, tmp_path / "runs",
            lambda _, line: lines.append(line), track=False,
        )  # fmt: skip
    assert not (tmp_path / "runs").exists()
    assert lines == []


def test_runs_are_found_in_run_and_study_folders(tmp_path: Path) -> None:
    folder = finished()[1]
    assert find_runs([folder]) == [folder]
    assert find_runs([folder.parent, folder]) == [folder]
    with pytest.raises(ConfigError, match="no run here"):
        find_runs([tmp_path])


def test_one_failing_run_stops_no_other(tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    answer = call(
        "compare", config, "--arms", "broken,base", "--jobs", 2, "--runs", runs, "--no-track"
    )
    assert answer.code == 1
    log = runs / "tiny" / "broken-s0" / LOG
    assert "error: broken-s0 failed (error: contexts.seed has" in answer.err
    assert str(log) in answer.err
    assert read_events(runs / "tiny" / "base-s0" / "journal.jsonl")[-1]["kind"] == "end"
    assert "base-s0    evaluation at step 0" in answer.out
    assert (runs / "tiny" / "report.html").exists()


def test_a_stopped_study_leaves_its_runs_resumable(tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    steps = ["loop.steps=400", "evaluation.every=0"]

    def stop(_: str, line: str) -> None:
        if line.startswith("step "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(config, steps, ["rl"], [0], 1, runs, stop, track=False)
    folder = runs / "tiny" / "rl-s0"
    log = (folder / LOG).read_text()
    assert "interrupted; " in log
    assert "resumable: fst run" in log
    kinds = [event["kind"] for event in read_events(folder / "journal.jsonl")]
    assert "slow" in kinds
    assert "end" not in kinds
    pid = int((folder / "lock").read_text())
    assert not Path(f"/proc/{pid}").exists()
    assert json.loads((folder / "config.json").read_text())["loop"]["steps"] == 400


def test_an_interrupted_compare_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fst_core.study.run_study", stopped)
    config = write_config(tmp_path)
    answer = call("compare", config, "--fresh", "--runs", tmp_path / "my runs", "--no-track")
    assert answer.code == 130
    assert f"fst compare {config} --runs '{tmp_path}/my runs' --no-track" in answer.err


def test_a_failed_run_is_told_in_one_sentence(tmp_path: Path) -> None:
    good = Outcome("fst-s0", tmp_path, 0, 1.0, "")
    bad = Outcome("rl-s0", tmp_path, -9, 1.0, "ended by SIGKILL")
    assert failures([good, bad]) == [
        f"rl-s0 failed (ended by SIGKILL); its log is {tmp_path / LOG}"
    ]
    stop_all([])
