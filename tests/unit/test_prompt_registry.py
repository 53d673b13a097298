"""Contexts in the Prompt Registry: each once, in order, with its text intact."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities.model_registry import PromptVersion
from mlflow.exceptions import MlflowException

from fst_core.journal import read_events
from fst_core.records import content_id
from fst_core.tracking import SyncReport, TrackingError, sync
from fst_core.tracking.prompts import escape, prompt_name, snapshots, unescape
from tests.journals import HOSTILE, SEED_TEXT, end, fast_phase, slow_step, start, synthetic_run
from tests.mlflow_store import by_name

ROOT = Path(__file__).parents[2]
TEXTS = st.text(alphabet="{}%\\ x\n#", max_size=40) | st.text(max_size=40)
BRACES = 'Say {{answer}} as {"a": {"b": "{% raw %}"}}, or \\boxed{\\frac{1}{2}}.'


def versions(uri: str) -> list[PromptVersion]:
    """Every version of every prompt, oldest first."""
    client = MlflowClient(tracking_uri=uri)
    found = [v for p in client.search_prompts() for v in client.search_prompt_versions(p.name)]
    return sorted(found, key=lambda version: (version.name, version.version))


def told(uri: str) -> list[tuple[str, int, str, str]]:
    """What must be the same however often and from wherever a run is sent."""
    return [(v.name, v.version, v.tags["fst.context"], v.template) for v in versions(uri)]


@given(TEXTS)
@example("{{{{")
@example("{\\{a}\\}")
@example("{\\\\%}}")
@example(BRACES)
def test_unescape_is_the_inverse_of_escape(text: str) -> None:
    assert unescape(escape(text)) == text


@given(TEXTS)
@example(BRACES)
def test_mlflow_finds_nothing_to_fill_in(text: str) -> None:
    template = escape(text)
    assert not any(pair in template for pair in ("{{", "}}", "{%", "%}"))
    prompt = PromptVersion("p", 1, template)
    assert prompt.variables == set()
    assert prompt.format() == template


def test_escaping_changes_nothing_but_doubled_braces() -> None:
    for text in ("", "\\boxed{x}", '{"a": 1}', "100%", "a\\\\b"):
        assert escape(text) == text
    assert escape("{{x}}") == "{\\{x}\\}"


def test_names_are_accepted_and_differ_by_run() -> None:
    name = prompt_name("a study/of {x}", "fst-s0", "0123456789ab")
    assert name == "a_study_of__x_-fst-s0-01234567-contexts"
    assert prompt_name("s", "fst-s0", "a" * 12) != prompt_name("s", "fst-s0", "b" * 12)
    assert len(prompt_name("n" * 900, "fst-s0", "a" * 12)) < 250


def test_each_context_is_a_version_once(tmp_path: Path, uri: str) -> None:
    """Four cycles of a new child in slot 0 and the seed in slot 1."""
    folder = synthetic_run(tmp_path, "fst", 0)
    assert sync(folder, uri).prompts == 5
    found = versions(uri)
    children = [f"{SEED_TEXT}\nPut the answer in tags ({cycle})." for cycle in range(4)]
    assert [v.template for v in found] == [children[0], SEED_TEXT, *children[1:]]
    assert [v.version for v in found] == [1, 2, 3, 4, 5]
    last = found[-1].tags
    assert last["fst.context"] == content_id(children[3])
    assert (last["fst.cycle"], last["fst.step"], last["fst.slots"]) == ("3", "6", "0")
    assert (last["fst.operator"], last["fst.parents"]) == ("lesson", content_id(SEED_TEXT))
    assert (last["fst.arm"], last["fst.seed"]) == ("fst", "0")
    assert last["fst.run_id"] == by_name(uri)["fst-s0"].info.run_id
    mean = last["fst.anchor_mean"]
    assert found[-1].commit_message == (
        f"cycle 3, slot 0: lesson of {content_id(SEED_TEXT)}; anchor mean {mean}"
    )


def test_the_final_population_is_marked_and_linked(tmp_path: Path, uri: str) -> None:
    sync(synthetic_run(tmp_path, "fst", 0), uri)
    found = versions(uri)
    final = [v.version for v in found if v.tags["fst.in_final_population"] == "yes"]
    assert final == [2, 5]
    client = MlflowClient(tracking_uri=uri)
    assert client.get_prompt_version_by_alias(found[0].name, "best").version == 5
    run = by_name(uri)["fst-s0"]
    linked = json.loads(run.data.tags["mlflow.linkedPrompts"])
    assert [link["version"] for link in linked] == ["5", "2"]
    [prompt] = client.search_prompts(f"experiment_id = '{run.info.experiment_id}'")
    assert prompt.name == found[0].name


def test_a_run_in_progress_has_no_final_population(tmp_path: Path, uri: str) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    fast_phase(writer, 0, 0, 0.5)
    slow_step(writer, 1, 0.2, 0.01)
    writer.add("checkpoint", step=1, name="step-000001", next_phase=2)
    fast_phase(writer, 1, 1, 0.6)
    sync(writer.path.parent, uri)
    assert {v.tags["fst.in_final_population"] for v in versions(uri)} == {"no"}
    assert len(versions(uri)) == 2  # the second cycle may yet be redone
    end(writer, 1)
    assert sync(writer.path.parent, uri).prompts == 1
    marks = [v.tags["fst.in_final_population"] for v in versions(uri)]
    assert marks == ["no", "yes", "yes"]


def test_a_run_without_fast_phase_has_no_prompt(tmp_path: Path, uri: str) -> None:
    assert sync(synthetic_run(tmp_path, "rl", 0), uri).prompts == 0
    assert versions(uri) == []


def test_slots_that_repeat_a_context_are_one_snapshot(tmp_path: Path) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    fast_phase(writer, 0, 0, 0.5, text=SEED_TEXT)
    [snapshot] = snapshots(writer.events)
    assert snapshot.slots == (0, 1) and snapshot.anchor_mean == 0.5


@pytest.mark.parametrize("text", [BRACES, HOSTILE, "é 漢字 🙂", " \n", "{" * 9])
def test_a_hostile_text_comes_back_whole(tmp_path: Path, uri: str, text: str) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    fast_phase(writer, 0, 0, 0.5, text=text)
    end(writer, 0)
    sync(writer.path.parent, uri)
    child = versions(uri)[0]
    assert unescape(child.template) == text and child.tags["fst.context"] == content_id(text)


def test_a_text_longer_than_mlflow_takes_is_cut(tmp_path: Path, uri: str) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    fast_phase(writer, 0, 0, 0.5, text="x" * 100_001)
    end(writer, 0)
    sync(writer.path.parent, uri)
    assert versions(uri)[0].template.endswith("… [cut; whole in contexts/cycle-000.json]")


def test_twice_and_in_growth_give_the_same_versions(tmp_path: Path, migrated: Path) -> None:
    whole = synthetic_run(tmp_path / "once", "fst", 0)
    lines = (whole / "journal.jsonl").read_text().splitlines(keepends=True)
    growing = tmp_path / "growing" / "fst-s0"
    growing.mkdir(parents=True)
    found = []
    for name, folder, stops in (
        ("once.db", whole, [len(lines)] * 2),
        ("growing.db", growing, range(1, len(lines) + 1)),
    ):
        uri = f"sqlite:///{shutil.copy(migrated, tmp_path / name)}"
        for stop in stops:
            (folder / "journal.jsonl").write_text("".join(lines[:stop]))
            sync(folder, uri)
        marks = [v.tags["fst.in_final_population"] for v in versions(uri)]
        found.append((told(uri), marks))
    assert found[0] == found[1]


def test_an_interrupted_registration_is_completed(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    register, calls = MlflowClient.create_prompt_version, []

    def die_at_the_third(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 3:
            raise MlflowException("cut off")
        return register(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "create_prompt_version", die_at_the_third)
        with pytest.raises(TrackingError, match="cut off"):
            sync(folder, uri)
    assert len(versions(uri)) == 2
    assert sync(folder, uri).prompts == 3
    assert [v.version for v in versions(uri)] == [1, 2, 3, 4, 5]
    assert len({v.tags["fst.context"] for v in versions(uri)}) == 5


def test_a_version_that_another_machine_made_first_stays_alone(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a common lock both look, find nothing, and register; the first of a pair stays."""
    folder = synthetic_run(tmp_path, "fst", 0)
    register = MlflowClient.create_prompt_version

    def twice(*arguments, **named):
        register(*arguments, **named)
        return register(*arguments, **named)

    monkeypatch.setattr(MlflowClient, "create_prompt_version", twice)
    sync(folder, uri)
    ids = [v.tags["fst.context"] for v in versions(uri)]
    assert len(ids) == len(set(ids)) == 5


def test_a_run_replayed_anew_has_its_prompt_made_anew(tmp_path: Path, uri: str) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    sync(folder, uri)
    journal = folder / "journal.jsonl"
    second = next(e for e in read_events(journal) if e["kind"] == "fast" and e["cycle"] == 1)
    rewind = {"seq": len(read_events(journal)), "time": 2e9, "kind": "rewind"}
    with journal.open("a") as file:
        file.write(json.dumps({**rewind, "to": second["seq"] - 1}) + "\n")
    sync(folder, uri)
    assert [v.version for v in versions(uri)] == [1, 2]  # the child of cycle 0, and the seed
    run_id = by_name(uri)["fst-s0"].info.run_id
    assert {v.tags["fst.run_id"] for v in versions(uri)} == {run_id}


RACER = """
import sys, time
from pathlib import Path
from fst_core.tracking import sync
uri, ready, go, folder = sys.argv[1:]
Path(ready).touch()
while not Path(go).exists():
    time.sleep(0.001)
sync(Path(folder), uri)
"""


def race(folder: Path, uri: str, flags: Path) -> None:
    """Two processes send one run at the same moment."""
    ready = [flags / f"ready-{number}" for number in (0, 1)]
    command = [sys.executable, "-c", RACER, uri]
    processes = [
        subprocess.Popen(
            [*command, str(flag), str(flags / "go"), str(folder)], stderr=subprocess.PIPE, cwd=ROOT
        )
        for flag in ready
    ]
    while not all(f.exists() or p.poll() for f, p in zip(ready, processes, strict=True)):
        time.sleep(0.05)
    (flags / "go").touch()
    for process in processes:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors.decode()


def test_two_processes_make_the_versions_of_one(tmp_path: Path, migrated: Path) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    alone, raced = (
        f"sqlite:///{shutil.copy(migrated, tmp_path / name)}" for name in ("alone.db", "raced.db")
    )
    race(folder, raced, tmp_path)
    sync(folder, alone)
    assert told(raced) == told(alone)
    assert len(told(raced)) == 5


@pytest.fixture
def server(database: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a real server on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{database}"),
        *("--artifacts-destination", str(tmp_path / "artifacts")),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    with (tmp_path / "server.log").open("w") as log:
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None and not answers(address):
            time.sleep(0.2)
        assert process.poll() is None, (tmp_path / "server.log").read_text()
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/health", timeout=1).close()
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
    return True


def test_a_server_gets_the_same_as_a_file(tmp_path: Path, migrated: Path, server: str) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    alone = f"sqlite:///{shutil.copy(migrated, tmp_path / 'alone.db')}"
    sync(folder, alone)
    race(folder, server, tmp_path)
    assert sync(folder, server) == SyncReport()
    assert told(server) == told(alone)
    links = [by_name(uri)["fst-s0"].data.tags["mlflow.linkedPrompts"] for uri in (server, alone)]
    assert links[0] == links[1]
