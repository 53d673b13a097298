"""Studies: which runs there are, and what happens when one fails or the study is stopped."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fst_core.config import load_config
from fst_core.config.model import ConfigError
from fst_core.journal import read_events
from fst_core.processes import LOG, PARENT
from fst_core.run_folder import lock
from fst_core.study import (
    Outcome,
    expand,
    failures,
    find_runs,
    in_study_order,
    reported_beside,
    run_study,
    stop_all,
)
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


def test_what_holds_no_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder, said = finished()[1], list[str]()
    (tmp_path / "report.html").write_text("")
    (tmp_path / "tables").mkdir()
    others = [tmp_path / "report.html", tmp_path / "tables"]
    assert find_runs([*others, folder], said.append) == [folder]
    assert said == [f"warning: {path} is left out: no run here" for path in others]
    with pytest.raises(ConfigError, match=r"report\.html, .*tables: no run here"):
        find_runs(others, said.append)
    with pytest.raises(ConfigError, match="no such folder"):
        find_runs([folder, tmp_path / "typo"], said.append)


def test_a_run_that_left_only_its_log_is_told_of(tmp_path: Path) -> None:
    study, said = tmp_path / "study", list[str]()
    shutil.copytree(finished()[1], study / "rl-s0")
    (study / "rl-s1").mkdir()
    (study / "rl-s1" / "log.txt").write_text("error: it could not begin\n")
    assert find_runs([study], said.append) == [study / "rl-s0"]
    assert said == [
        f"warning: {study / 'rl-s1'} is left out: its run left only log.txt, which says why"
    ]
    with pytest.raises(ConfigError, match=r"rl-s1: no run here \(its run left only log\.txt"):
        find_runs([study / "rl-s1"])


def test_a_report_of_everything_in_a_folder_is_made(tmp_path: Path) -> None:
    study = finished()[1].parent
    (study / "prefect").mkdir(exist_ok=True)
    answer = call("report", *sorted(study.iterdir()), "--out", tmp_path / "report")
    assert answer.code == 0, answer.err
    assert f"warning: {study / 'prefect'} is left out: no run here" in answer.err.splitlines()
    assert (tmp_path / "report" / "report.html").exists()


def test_a_report_tells_of_what_is_left_out_and_unfinished(tmp_path: Path) -> None:
    good, bad, half = (tmp_path / name for name in ("B/fst-s0", "A/fst-s0", "B/fst-s1"))
    for folder in (good, bad, half):
        shutil.copytree(finished()[1], folder)
    (bad / "journal.jsonl").write_text("{]\n")
    config = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps({**config, "seed": 1}))
    lines = (half / "journal.jsonl").read_text().splitlines(keepends=True)
    (half / "journal.jsonl").write_text("".join(lines[:-1]))
    for order in ([bad, good, half], [half, good, bad]):
        answer = call("report", *order, "--out", tmp_path / "out")
        assert answer.code == 0 and "1/2*" not in answer.out
        said = answer.err.splitlines()
        assert len(said) == 2 and all(line.startswith("warning: ") for line in said)
        assert any(f"{bad}: left out: the same arm and seed as B/fst-s0" in s for s in said)
        assert any(f"{half}: the run has not ended" in line for line in said)
        arm = json.loads((tmp_path / "out" / "summary.json").read_text())["arms"]["fst"]
        assert arm["counted"] == ["fst-s0"] and not arm["partial"]
    answer = call("report", half, "--out", tmp_path / "out")
    assert answer.code == 0 and "1/1*" in answer.out and "* unfinished: " in answer.out


def test_a_report_of_nothing_that_can_be_read_fails_and_writes_nothing(tmp_path: Path) -> None:
    bad, empty = tmp_path / "bad-s0", tmp_path / "empty-s0"
    for folder, text in ((bad, "{]\n"), (empty, "")):
        folder.mkdir()
        (folder / "journal.jsonl").write_text(text)
    answer = call("report", tmp_path)
    assert answer.code == 1 and answer.out == ""
    assert f"warning: {bad}: the journal is damaged" in answer.err
    assert f"warning: {empty}: the journal is empty" in answer.err
    assert "error: none of these runs can be read" in answer.err
    assert {path.name for path in tmp_path.iterdir()} == {"bad-s0", "empty-s0"}


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for out in (file, file / "below", Path("/proc/none")):
        answer = call("report", finished()[1], "--out", out)
        assert answer.code == 1 and len(answer.err.splitlines()) == 1
        assert f"the report cannot be written to {out} (" in answer.err and "--out" in answer.err
        assert "go on later" not in answer.err


def test_one_failing_run_stops_no_other(tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    answer = call(
        "compare", config, "--arms", "broken,base", "--jobs", 2, "--runs", runs, "--no-track"
    )
    assert answer.code == 1
    log = runs / "tiny" / "broken-s0" / LOG
    assert "error: broken-s0 failed (contexts.seed has" in answer.err
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
    pid = int((folder / "lock").read_text().split()[0])
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


HOLD_LOG = """
import fcntl, sys
log = open(sys.argv[1], "ab")
fcntl.flock(log, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_study_on_one_folder_names_the_first_as_the_reason(tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    folder = runs / "tiny" / "base-s0"
    folder.mkdir(parents=True)
    log = folder / LOG
    log.write_text("step 1/2 of the first study\n")
    command = [sys.executable, "-c", HOLD_LOG, str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        answer = call("compare", config, "--runs", runs, "--no-track")
        first.kill()
    assert answer.code == 1
    assert (
        f"error: base-s0 failed (another study, or flow, runs {folder}; wait for it" in answer.err
    )
    assert log.read_text() == "step 1/2 of the first study\n"


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_runs_of_a_killed_study_end_and_can_go_on(tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    folder = runs / "tiny" / "rl-s0"
    words = ["compare", str(config), "--arms", "rl", "--runs", str(runs), "--no-track"]
    words += ["--set", "loop.steps=4000", "--set", "evaluation.every=0"]
    command = [sys.executable, "-m", "fst_core.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as study:
        eventually(lambda: (folder / LOG).is_file() and "step " in (folder / LOG).read_text())
        child = int((folder / "lock").read_text().split()[0])
        assert alive(child)
        study.kill()
    eventually(lambda: not alive(child))
    assert "interrupted; " in (folder / LOG).read_text()
    assert read_events(folder / "journal.jsonl")[-1]["kind"] != "end"
    lock(folder).close()


def test_a_run_whose_study_has_gone_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fst_core.cli", "run", str(write_config(tmp_path))]
    environment = {**os.environ, PARENT: "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "error: what started this process (pid 1)" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_failed_run_is_told_in_one_sentence(tmp_path: Path) -> None:
    good = Outcome("fst-s0", tmp_path, 0, 1.0, "")
    bad = Outcome("rl-s0", tmp_path, -9, 1.0, "ended by SIGKILL")
    assert failures([good, bad]) == [
        f"rl-s0 failed (ended by SIGKILL); its log is {tmp_path / LOG}"
    ]
    stop_all([])


@pytest.mark.parametrize("words", [["--arms", "base"], ["--seeds", "0"]])
def test_a_part_of_a_study_is_reported_with_the_runs_that_are_there(
    words: list[str], tmp_path: Path
) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    shutil.copytree(finished()[1], runs / "tiny" / "fst-s0")
    answer = call("compare", config, *words, "--runs", runs, "--no-track")
    assert answer.code == 0
    assert "the report covers these runs of the study, too: fst-s0" in answer.err
    summary = json.loads((runs / "tiny" / "summary.json").read_text())
    assert [run["run"] for run in summary["runs"]] == ["base-s0", "fst-s0"]


@pytest.mark.parametrize("before", [False, True], ids=["run", "finished"])
def test_every_run_of_a_study_ends_with_one_line(tmp_path: Path, before: bool) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    for _ in range(1 + before):
        answer = call("compare", config, "--arms", "base", "--runs", runs, "--no-track")
        assert answer.code == 0, answer.err
    folder = runs / "tiny" / "base-s0"
    relayed = [line for line in answer.out.splitlines() if line.startswith("base-s0")]
    assert "reward 0.000" in relayed[-1] and f"{folder}: reward" in relayed[-1]
    assert sum("evaluation at step" not in line for line in relayed) == 2  # loading, or finished
    assert "rollouts: " not in answer.out and "the last process" not in answer.out


def test_other_seeds_of_a_planned_arm_are_reported_if_their_settings_are_the_same(
    tmp_path: Path,
) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    study = runs / "tiny"
    for seed, changes in ((1, []), (2, ["loop.steps=3"]), (3, ["name=other"])):
        made, _ = load_config(config, "fst", [*changes, f"seed={seed}"])
        folder = study / f"fst-s{seed}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(made.model_dump(mode="json")))
        (folder / "journal.jsonl").write_text("")
    planned, _ = expand(config, arms=["fst"], seeds=[0])
    beside, other = reported_beside(config, [], planned, runs)
    assert [run.name for run in beside] == ["fst-s1"]
    assert [run.name for run in other] == ["fst-s2"]
    elsewhere, _ = expand(config, arms=["rl"], seeds=[0])
    beside, other = reported_beside(config, [], elsewhere, runs)
    assert [run.name for run in beside] == ["fst-s1", "fst-s2"] and not other


@pytest.mark.parametrize(
    "damaged", ["", "[]", "{}", "no JSON", '{"name": "smoke", "arm": ["rl"], "seed": 0}']
)
def test_a_folder_without_a_whole_config_is_not_reported_beside(
    damaged: str, tmp_path: Path
) -> None:
    config, folder = write_config(tmp_path), tmp_path / "runs" / "tiny" / "rl-s9"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(damaged)
    (folder / "journal.jsonl").write_text("")
    planned, _ = expand(config)
    assert reported_beside(config, [], planned, tmp_path / "runs") == ([], [])


def test_runs_stand_in_the_order_of_the_studys_arms_each_once(tmp_path: Path) -> None:
    names = ["rl-s0", "new-arm-s0", "base-s1", "rl-s0", "rl-s1"]
    ordered = in_study_order([tmp_path / name for name in names], ["base", "rl"])
    assert [run.name for run in ordered] == ["base-s1", "rl-s0", "rl-s1", "new-arm-s0"]
