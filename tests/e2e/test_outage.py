"""MLflow and the store away for a while, two runs of one name, a clock set back: nothing is lost.

One module fixture disturbs all runs at once; they wait at places (tests/e2e/patched), so that what
happens between two of these is no matter of luck.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from uuid import UUID

import pytest

from fst_core.journal import read_events
from fst_core.tracking import sync as send
from infra.servers import ROOT
from tests.e2e.flow_runs import artifacts
from tests.e2e.lab import Lab
from tests.e2e.smoke_runs import (
    assert_same_run,
    events,
    folder_of,
    held_at,
    kill,
    let_go,
    rows_in_mlflow,
    rows_of_journal,
    start,
    states,
    store_of,
    undisturbed,
    wait_for_hold,
    wait_until,
    weights,
)

CASES = ("within", "to the end", "no access", "twice", "set back")
"""Servers that are away within a run, and to its end; wrong keys for the store; a name that is
taken; a clock."""
HELD = {
    "within": ("slow 1", "slow 3"),
    "to the end": ("slow 1",),
    "twice": ("slow 1", "slow 3"),
}
ENVIRONMENT = {
    "no access": {"AWS_SECRET_ACCESS_KEY": "wrong"},
    "set back": {"FST_TEST_BACK": "2"},
}


@dataclass
class Scene:
    """Runs that were disturbed, once all have ended."""

    home: Path
    ids: dict[str, UUID] = field(default_factory=dict)
    second: UUID | None = None
    """The other flow run of the run "twice"."""
    syncs: list["subprocess.CompletedProcess[str]"] = field(default_factory=list)
    """`fst sync`, twice at once, of a run that goes on."""
    behind: dict[str, bool] = field(default_factory=dict)
    """Whether MLflow lacked rows of a run when that had ended."""

    def runs(self, case: str) -> Path:
        return self.home / f"runs {case}".replace(" ", "-")

    def folder(self, case: str) -> Path:
        return folder_of(self.runs(case))

    def summary(self, lab: Lab, case: str) -> str:
        return artifacts(lab, self.ids[case])[f"smoke-{self.folder(case).name}-summary"]


@pytest.fixture(scope="module")
def scene(lab: Lab, project_folder: Path) -> Iterator[Scene]:
    scene = Scene(Path(mkdtemp(prefix="outage-", dir=project_folder)))
    with lab.worker("cpu"), ExitStack() as stack:
        for case in CASES:
            env = ENVIRONMENT.get(case, {})
            if case in HELD:
                env = env | held_at(scene.home / case, *HELD[case])
            scene.ids[case] = start(lab, scene.runs(case), **env)
        for case in HELD:
            stack.callback(kill, wait_for_hold(scene.home / case, "slow 1"))
        for case in ("no access", "set back"):
            lab.wait(scene.ids[case], {"Completed"}, 180)
        two_of_one_name(lab, scene)
        outage(lab, scene)
        yield scene


def two_of_one_name(lab: Lab, scene: Scene) -> None:
    """The second comes while the first holds, and gives up when that has gone on a while."""
    scene.second = start(lab, scene.runs("twice"))

    def waits() -> bool:
        return "waiting for its next checkpoint" in lab.log(scene.second)

    wait_until(waits, 120, "the second waits")
    let_go(scene.home / "twice", "slow 1")
    wait_for_hold(scene.home / "twice", "slow 3")
    lab.wait(scene.second, {"Failed"}, 120)
    let_go(scene.home / "twice", "slow 3")
    lab.wait(scene.ids["twice"], {"Completed"}, 120)


def outage(lab: Lab, scene: Scene) -> None:
    """Both servers go; one run ends meanwhile, the other after they are back."""
    lab.stop("mlflow", "s3")
    try:
        let_go(scene.home / "within", "slow 1")
        let_go(scene.home / "to the end", "slow 1")
        wait_for_hold(scene.home / "within", "slow 3")
        lab.wait(scene.ids["to the end"], {"Completed"}, 240)
    finally:
        lab.start("s3", "mlflow")
    folder = scene.folder("to the end")
    scene.behind["to the end"] = rows_in_mlflow(lab, folder, "RUNNING") < rows_of_journal(folder)
    syncing = [sync(lab, scene.folder("within")) for _ in range(2)]
    let_go(scene.home / "within", "slow 3")
    lab.wait(scene.ids["within"], {"Completed"}, 180)
    for process in syncing:
        said, _ = process.communicate(timeout=120)
        scene.syncs.append(subprocess.CompletedProcess(process.args, process.returncode, said))


def sync(lab: Lab, folder: Path) -> "subprocess.Popen[str]":
    words, both = ["fst", "sync", str(folder)], subprocess.STDOUT
    return subprocess.Popen(words, env=lab.env, stdout=subprocess.PIPE, stderr=both, text=True)


def test_disturbed_runs_are_the_same_as_an_undisturbed_one(lab: Lab, scene: Scene) -> None:
    whole = undisturbed(lab, scene.home / "whole")
    for case in CASES:
        assert_same_run(scene.folder(case), whole)


@pytest.mark.parametrize("case", ["within", "to the end"])
def test_what_could_not_be_sent_is_counted_and_said(lab: Lab, scene: Scene, case: str) -> None:
    summary, log = scene.summary(lab, case), lab.log(scene.ids[case])
    assert "MLflow could not be used" in summary and "The store could not be used" in summary
    assert f"MLflow at {lab.urls['mlflow']} could not be used" in log
    assert lab.env["AWS_SECRET_ACCESS_KEY"] not in log


def test_a_store_that_refuses_the_keys_costs_warnings_alone(lab: Lab, scene: Scene) -> None:
    summary, log = scene.summary(lab, "no access"), lab.log(scene.ids["no access"])
    assert "The store could not be used" in summary and "MLflow could not" not in summary
    assert "AWS_SECRET_ACCESS_KEY" in log


@pytest.mark.parametrize("case", CASES)
def test_after_a_sync_mlflow_has_every_row_once(lab: Lab, scene: Scene, case: str) -> None:
    if case == "to the end":
        assert scene.behind[case]
        lab.run("fst", "sync", str(scene.folder(case)))
    for _ in range(2):
        assert rows_in_mlflow(lab, scene.folder(case)) == rows_of_journal(scene.folder(case))
        send(scene.folder(case), lab.urls["mlflow"])


@pytest.mark.parametrize("case", ["within", "to the end", "no access"])
def test_after_an_archive_the_store_has_the_whole_run(
    lab: Lab, scene: Scene, tmp_path: Path, case: str
) -> None:
    folder, store = scene.folder(case), store_of(lab, scene.runs(case))
    if case != "within":
        lab.run("fst", "archive", str(folder), "--to", store)
    kept = folder.relative_to(ROOT / "runs")
    lab.run("fst", "restore", f"{store}/{kept}", "--runs", str(tmp_path))
    again = folder_of(tmp_path)
    assert events(again) == events(folder)
    assert weights(again) == weights(folder)


def test_two_syncs_at_once_of_a_run_that_goes_on_are_both_well(scene: Scene) -> None:
    assert [done.returncode for done in scene.syncs] == [0, 0], scene.syncs


def test_of_two_runs_of_one_name_the_second_ends_in_a_sentence_untried_again(
    lab: Lab, scene: Scene
) -> None:
    assert scene.second is not None
    ended = lab.wait(scene.second, {"Failed"}, 1)
    assert ended.run_count == 1 and ended.state is not None
    assert "is a run of its own and goes on; wait until that has ended" in ended.state.message
    assert "Failed" not in states(lab, scene.ids["twice"])
    raw = read_events(scene.folder("twice") / "journal.jsonl")
    assert not any(event["kind"] == "rewind" for event in raw)


def test_a_clock_that_was_set_back_leaves_every_event(scene: Scene) -> None:
    times = [event["time"] for event in read_events(scene.folder("set back") / "journal.jsonl")]
    assert min(b - a for a, b in pairwise(times)) < -3000
