"""kill -9 of a run and its worker, and of a worker alone: the run goes on as if nothing had been.

All cases share one wait for heartbeats that do not come. Runs are caught at a place, not by luck:
they wait there (tests/e2e/patched).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from uuid import UUID

import psutil
import pytest

from fst_core.journal import read_events
from tests.e2e.lab import Lab
from tests.e2e.smoke_runs import (
    assert_same_run,
    folder_of,
    held_at,
    kill,
    let_go,
    rows_in_mlflow,
    rows_of_journal,
    start,
    states,
    undisturbed,
    wait_for_hold,
    wait_until,
)

PLACES = {"slow": "slow 3", "fast": "fast 1", "silent": "slow 1", "beating": "slow 1"}
"""Where each run is caught. `slow` and `fast` are killed with their worker; `silent` and `beating`
are left without it, and `silent` is stopped until another process has its flow run."""


@dataclass
class Run:
    """A run that was disturbed, after all is over."""

    id: UUID
    folder: Path
    other: Path
    """Folder of the same run, undisturbed."""
    states: list[str]
    starts: int
    log: str


@pytest.fixture(scope="module")
def runs(lab: Lab, project_folder: Path) -> Iterator[dict[str, Run]]:
    home = Path(mkdtemp(prefix="kill-", dir=project_folder))
    ids, processes = {}, {}
    with lab.worker("cpu") as worker:
        for case, place in PLACES.items():
            hold = held_at(home / case, place)
            ids[case] = start(lab, home / f"runs-{case}", **hold)
        processes = {case: wait_for_hold(home / case, place) for case, place in PLACES.items()}
        kill(psutil.Process(worker.pid))
        for case in ("slow", "fast"):
            kill(processes[case])
        processes["silent"].suspend()
    for case in ("silent", "beating"):
        let_go(home / case, PLACES[case])
    try:
        whole = undisturbed(lab, home / "whole")
        with lab.worker("cpu"):
            wait_until(lambda: waits(lab, ids["silent"]), 300, "a newcomer waits for the orphan")
            processes["silent"].resume()
            ended = {case: lab.wait(ids[case], {"Completed"}, 240) for case in PLACES}
            wait_until(lambda: gone(processes["silent"]), 60, "the orphan ends")
    finally:
        for process in processes.values():
            kill(process)
    yield {
        case: Run(
            ids[case],
            folder_of(home / f"runs-{case}"),
            whole,
            states(lab, ids[case]),
            ended[case].run_count,
            lab.log(ids[case]),
        )
        for case in PLACES
    }


def waits(lab: Lab, flow_run_id: UUID) -> bool:
    return "is being written by another process; waiting" in lab.log(flow_run_id)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("case", PLACES)
def test_the_run_is_the_same_as_an_undisturbed_one(runs: dict[str, Run], case: str) -> None:
    assert_same_run(runs[case].folder, runs[case].other)


@pytest.mark.parametrize("case", PLACES)
def test_mlflow_has_every_row_once(lab: Lab, runs: dict[str, Run], case: str) -> None:
    assert rows_in_mlflow(lab, runs[case].folder) == rows_of_journal(runs[case].folder)


@pytest.mark.parametrize("case", ["slow", "fast", "silent"])
def test_a_run_without_a_sign_of_life_is_crashed_and_put_back(
    runs: dict[str, Run], case: str
) -> None:
    had = runs[case].states
    after = had[had.index("Crashed") :]
    assert had.count("Crashed") == 1
    assert after[1] == "Scheduled" and after[-2:] == ["Running", "Completed"]
    assert runs[case].starts == 2


@pytest.mark.parametrize("case", ["slow", "fast"])
def test_only_the_phase_that_was_cut_off_is_done_again(runs: dict[str, Run], case: str) -> None:
    raw = read_events(runs[case].folder / "journal.jsonl")
    (rewind,) = [event for event in raw if event["kind"] == "rewind"]
    dropped = [event for event in raw if rewind["to"] < event["seq"] < rewind["seq"]]
    assert {event["kind"] for event in dropped} <= {"slow", "rollouts", "checkpoint"}
    assert len([event for event in dropped if event["kind"] == "slow"]) == (case == "slow")


def test_an_orphan_whose_run_is_another_s_stops_at_its_next_boundary(
    runs: dict[str, Run],
) -> None:
    """It ends its slow phase of two steps, and the newcomer does neither again."""
    assert "stopped at a checkpoint, since its flow run" in runs["silent"].log
    raw = read_events(runs["silent"].folder / "journal.jsonl")
    assert [event["step"] for event in raw if event["kind"] == "slow"] == [1, 2, 3, 4]


def test_an_orphan_that_gives_signs_of_life_is_left_to_its_end(runs: dict[str, Run]) -> None:
    assert "Crashed" not in runs["beating"].states
    assert runs["beating"].starts == 1
    raw = read_events(runs["beating"].folder / "journal.jsonl")
    assert not any(event["kind"] == "rewind" for event in raw)
