"""`prepare` on clones in which DVC is really run: what it refuses, what it announces."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.prepare import prepare
from tasks.tries import Refused
from tests.pipeline.clones import clone, run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("project"))


@pytest.fixture
def home(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clone as the working directory, its code that of DVC's stages."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(project))
    return project


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    events: list[tuple[str, str]] = []

    def emit(event: str, resource: dict[str, str], payload: dict[str, str]) -> None:
        events.append((payload["old"], payload["new"]))

    monkeypatch.setattr("tasks.data.emit_event", emit)
    return events


@pytest.mark.parametrize("variable", ["DVC_STAGE", "DVC_ROOT"])
def test_inside_a_stage_it_is_refused(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "compare")
    with pytest.raises(Refused, match="inside the DVC stage"):
        prepare()


def test_outside_a_project_it_is_refused(
    prefect_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match="FST_HOME must name a clone of the project"):
        prepare()


def test_changed_data_is_announced_once_it_is_accepted(
    prefect_api: str, home: Path, announced: list[tuple[str, str]]
) -> None:
    same = prepare()
    assert same["old"] == same["new"]
    assert announced == []
    config = home / "configs/tiny/demo.toml"
    suites = config.read_text().replace("problems = 32\nsamples = 2", "problems = 33\nsamples = 2")
    config.write_text(suites)
    for _ in range(2):
        with pytest.raises(Refused, match=r"`fst data manifest data --out .* run prepare again"):
            prepare()
    assert announced == []
    run(home, "fst", "data", "manifest", "data", "--out", "data.manifest.json")
    accepted = prepare()
    assert announced == [(same["new"], accepted["new"])] and accepted["new"] != same["new"]
    again = prepare()
    assert again["old"] == again["new"] == accepted["new"]
    assert len(announced) == 1


def test_beside_another_dvc_command_it_is_refused(
    prefect_api: str, home: Path, announced: list[tuple[str, str]]
) -> None:
    code = (
        "import sys; from dvc.repo import Repo\n"
        "with Repo('.').lock: print('held', flush=True); sys.stdin.readline()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline().strip() == "held"
        with pytest.raises(Refused, match="another DVC command is at work"):
            prepare()
    finally:
        holder.kill()
        holder.wait()
    assert announced == []


def test_a_failure_of_dvc_is_told_with_its_end(
    prefect_api: str, home: Path, announced: list[tuple[str, str]]
) -> None:
    path = home / "dvc.yaml"
    text = path.read_text()
    path.write_text(text + "\nnonsense: 1\n")
    try:
        with pytest.raises(Refused, match=r"`dvc repro data.dvc` ended with status"):
            prepare()
    finally:
        path.write_text(text)
