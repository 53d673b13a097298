"""What is left when a flow's own server, or the flow itself, is killed: nothing, and a sentence."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fst_core.journal import read_events
from tests.pipeline.test_processes import LONG, ROOT, SMOKE, wait_until

ENDED_SECONDS = 90.0
"""Less than the minutes for which Prefect asks a server that is gone."""


@contextmanager
def begun(flow: str, runs: Path) -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """A flow's command with a server of its own, in its steps, and the processes below it."""
    arm = ["--arm", "rl"] if flow == "train" else ["--arms", "rl"]
    words = ["-m", f"flows.{flow}", SMOKE, *arm, "--no-track", "--runs", str(runs)]
    words += [word for change in LONG for word in ("--set", change)]
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    below: list[psutil.Process] = []
    try:
        journal = runs / "smoke" / "rl-s0" / "journal.jsonl"
        wait_until(lambda: journal.exists() and len(read_events(journal)) > 4, "it has begun")
        below += psutil.Process(process.pid).children(recursive=True)
        yield process, below
    finally:
        process.kill()
        process.communicate()
        for left in below:
            if left.is_running():
                left.kill()


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flow", ["train", "compare"])
def test_a_flow_whose_own_server_is_killed_says_so_and_ends(flow: str, tmp_path: Path) -> None:
    with begun(flow, tmp_path) as (process, below):
        server = next(p for p in below if "flows.prefect_process" in p.cmdline())
        server.kill()
        _, told = process.communicate(timeout=ENDED_SECONDS)
        assert process.returncode == 1
        assert "error: the Prefect server of this command ended (-9)" in told
        wait_until(lambda: gone(below), "its processes end", 20)


@pytest.mark.timeout(300)
def test_the_runs_of_a_study_that_is_killed_do_not_outlive_it(tmp_path: Path) -> None:
    """Nor the server that they would ask for minutes: the same command may be run at once."""
    with begun("compare", tmp_path) as (process, below):
        process.kill()
        process.wait()
        wait_until(lambda: gone(below), "its processes end", ENDED_SECONDS)
