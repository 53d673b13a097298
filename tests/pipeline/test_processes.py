"""A flow over several processes of a host is the flow of one, beyond rounding; none outlives it."""

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from flows.train import train
from fst_core.checkpoint import list_checkpoints
from fst_core.config import load_config
from fst_core.config.model import ConfigError
from fst_core.journal import comparable, effective, read_events
from fst_core.remote import RemoteFailed, launched
from fst_core.run_folder import ended, lock
from tasks.tries import Refused, is_lasting

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "configs/tiny/smoke.toml")
LONG = ("loop.steps=400", "loop.cycle_steps=2", "evaluation.every=0")
"""A run of minutes, with a checkpoint every second step: no test waits for its end."""


def run_of(runs: Path, seed: int) -> Path:
    return runs / "smoke" / f"fst-s{seed}"


def ranks(runs: Path) -> list[psutil.Process]:
    """The processes that hold a run, by what they were started with."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "fst_core.driven" in words and str(runs) in words and "fst_core.launcher" not in words:
            found.append(process)
    return found


def wait_until(check: Callable[[], Any], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def sockets(runs: Path) -> list[Path]:
    """Where the processes of a run were told to call, as far as it is still there."""
    words = [process.info["cmdline"] for process in ranks(runs)]
    called = [Path(line[line.index("fst_core.driven") + 1]) for line in words]
    assert called
    return [path for path in called if path.parent.exists()]


def steps(folder: Path) -> int:
    path = folder / "journal.jsonl"
    return sum(e["kind"] == "slow" for e in read_events(path)) if path.exists() else 0


def shape(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what rounding, and the state of the checkout, may change."""
    left = {key: value for key, value in event.items() if key not in ("metrics", "git")}
    return {**left, "metrics": sorted(event.get("metrics", {}))}


@pytest.mark.timeout(300)
def test_two_processes_are_one_run_and_its_phases_are_seen(
    prefect_api: str, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    train(SMOKE, "fst", 41, (), str(one), None, False)
    result = train(SMOKE, "fst", 41, (), str(two), None, False, 2)
    assert result["metrics"].keys() >= {"seed/evaluation/reward", "best/evaluation/reward"}
    ours = comparable(read_events(run_of(two, 41) / "journal.jsonl"))
    theirs = comparable(read_events(run_of(one, 41) / "journal.jsonl"))
    assert [shape(event) for event in ours] == [shape(event) for event in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        rounding = {n: v for n, v in other.get("metrics", {}).items() if "mismatch" not in n}
        assert {n: mine["metrics"][n] for n in rounding} == pytest.approx(rounding, 1e-3, 1e-5)
    with get_client(sync_client=True) as client:
        named = FlowRunFilter(name=FlowRunFilterName(any_=["fst-s41"]))
        both = {run.id for run in client.read_flow_runs(flow_run_filter=named)}
        tasks = [run for run in client.read_task_runs() if run.flow_run_id in both]
    names = {i: sorted(run.name for run in tasks if run.flow_run_id == i) for i in both}
    assert len(both) == 2 and len({tuple(of) for of in names.values()}) == 1
    assert "slow c01 2-4 fst-s41" in next(iter(names.values()))
    assert not ranks(two)
    assert (run_of(two, 41) / "log.txt").read_text() == "", "libraries talk of what nobody can mend"


@pytest.mark.timeout(300)
def test_a_killed_process_ends_all_and_the_retry_goes_on_at_the_checkpoint(
    prefect_api: str, tmp_path: Path
) -> None:
    folder = run_of(tmp_path, 42)
    killed: list[int] = []

    def kill_one() -> None:
        wait_until(lambda: steps(folder) > 2, "three steps")
        victim = max(ranks(tmp_path), key=lambda process: process.pid)
        killed.append(victim.pid)
        victim.kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    short = ("loop.steps=12", *LONG[1:])
    result = train(SMOKE, "fst", 42, short, str(tmp_path), None, False, 2)
    killer.join()
    assert killed and result["folder"] == str(folder) and ended(folder)
    raw = read_events(folder / "journal.jsonl")
    assert any(event["kind"] == "checkpoint" for event in raw[: len(raw) // 2])
    done = [event["step"] for event in effective(raw) if event["kind"] == "slow"]
    assert done == list(range(1, 13))


@pytest.mark.timeout(300)
def test_what_rank_0_cannot_do_is_told_in_its_sentence_and_not_tried_again(
    prefect_api: str, tmp_path: Path
) -> None:
    folder = run_of(tmp_path, 43)
    train(SMOKE, "fst", 43, ("loop.steps=2",), str(tmp_path), None, False)
    kept = folder / "journal.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:2]))
    again = ("loop.steps=2",)
    with pytest.raises(RemoteFailed, match=r"ends before checkpoint .*--fresh.*log\.txt") as caught:
        train(SMOKE, "fst", 43, again, str(tmp_path), None, False, 2)
    assert "fst_core.checkpoint.CheckpointError" in caught.value.kinds
    with get_client(sync_client=True) as client:
        named = FlowRunFilter(name=FlowRunFilterName(any_=["fst-s43"]))
        counts = [run.run_count for run in client.read_flow_runs(flow_run_filter=named)]
    assert counts == [1, 1]
    assert list_checkpoints(folder / "checkpoints")


@contextmanager
def command(runs: Path, seed: int) -> Iterator["subprocess.Popen[bytes]"]:
    """`python -m flows.train` over two processes, which has taken three steps."""
    words = ["-m", "flows.train", SMOKE, "--arm", "fst", "--seed", str(seed), "--runs", str(runs)]
    words += [word for change in LONG for word in ("--set", change)]
    process = subprocess.Popen(
        [sys.executable, *words, "--no-track", "--processes", "2"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: steps(run_of(runs, seed)) > 2, "three steps")
        yield process
    finally:
        process.kill()
        process.wait()
        for left in ranks(runs):
            left.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_flow(
    prefect_api: str, tmp_path: Path, how: signal.Signals
) -> None:
    with command(tmp_path, 44) as process:
        assert len(ranks(tmp_path)) == 2
        assert sockets(tmp_path) == [], "a kill would leave its socket behind"
        process.send_signal(how)
        wait_until(lambda: process.poll() is not None, "the flow ends", 150)
        wait_until(lambda: not ranks(tmp_path), "its processes end", 60)
    folder = run_of(tmp_path, 44)
    lock(folder).close()
    assert list_checkpoints(folder / "checkpoints") and not ended(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("begun", [False, True], ids=["at the start", "in a step"])
def test_no_process_outlives_its_launcher(tmp_path: Path, begun: bool) -> None:
    """At the start they wait for each other at the launcher's door."""
    words = [SMOKE, "--arm", "fst", "--seed", "46", "--runs", str(tmp_path)]
    config, _ = load_config(SMOKE, "fst", ["seed=46"])

    def kill_launcher() -> None:
        wait_until(lambda: len(ranks(tmp_path)) == 2, "two processes")
        if begun:
            wait_until(lambda: steps(run_of(tmp_path, 46)) > 0, "a step")
        launcher = ranks(tmp_path)[0].parent()
        assert launcher is not None
        launcher.kill()

    killer = threading.Thread(target=kill_launcher)
    killer.start()
    failing = pytest.raises(RemoteFailed, match=r"fst-s46: .*its log is .*log\.txt")
    with failing, launched(config, run_of(tmp_path, 46), words, 2) as session:
        while True:
            session.step()
    killer.join()
    wait_until(lambda: not ranks(tmp_path), "its processes end", 60)
    lock(run_of(tmp_path, 46)).close()


def test_what_they_meet_before_they_hold_the_run_is_told_with_its_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a flow knows that another try would meet it again; nothing is left behind."""
    scratch = Path(tempfile.mkdtemp(prefix="t-"))  # a socket's path is short
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    config, _ = load_config(SMOKE, "fst", ["seed=47"])
    words = [SMOKE, "--arm", "nobody", "--seed", "47", "--runs", str(tmp_path)]
    failing = pytest.raises(RemoteFailed, match=r"fst-s47: .*nobody.*its log is .*log\.txt")
    with failing as caught, launched(config, run_of(tmp_path, 47), words, 2):
        raise AssertionError("nobody holds it")
    assert "fst_core.config.model.ConfigError" in caught.value.kinds and is_lasting(caught.value)
    assert list(scratch.iterdir()) == []
    scratch.rmdir()


def test_processes_that_a_run_cannot_have_are_refused_before_any_begins(
    prefect_api: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"loop\.problems_per_step = 4 cannot be split over 3"):
        train(SMOKE, "fst", 45, (), str(tmp_path), None, False, 3)
    with pytest.raises(Refused, match="one process has nobody to share the weights with"):
        train(SMOKE, "fst", 45, (), str(tmp_path), None, False, 1, True)
    assert not run_of(tmp_path, 45).exists()
