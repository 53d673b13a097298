"""--fresh replaces an earlier run once a new one is open; whatever happens before loses nothing."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fst_core.config.model import ConfigError
from fst_core.journal import read_events
from fst_core.run_folder import (
    RunBusy,
    final_checkpoint,
    forget_earlier,
    lock,
    set_aside,
    settle,
)
from fst_core.study import find_runs
from tests.unit.commands import call, finished, write_config

DEADLY = """
import os, sys
from pathlib import Path
from fst_core import run_folder

folder, what, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def deadly(call):
    def counted(*given, **named):
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return call(*given, **named)
    return counted

os.rename, os.unlink, os.rmdir = map(deadly, (os.rename, os.unlink, os.rmdir))
held = run_folder.set_aside(folder, {"log.txt"})
(folder / "config.json").write_text("new")
(folder / "journal.jsonl").write_text("new\\n")
{"put back": run_folder.settle, "remove": run_folder.forget_earlier}[what](folder)
print("alive")
"""
HOLDER = """
import sys
from pathlib import Path
from fst_core.run_folder import set_aside
held = set_aside(Path(sys.argv[1]), {"log.txt"})
print("held", flush=True)
sys.stdin.read()
"""

Tree = dict[str, bytes]


def tree(folder: Path) -> Tree:
    """Every file of a run folder but its lock, by its path inside."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A finished run of the tiny study's arm fst, to be replaced."""
    folder = tmp_path / "runs" / "tiny" / "fst-s0"
    shutil.copytree(finished()[1], folder)
    (folder / "log.txt").write_text("what it printed\n")
    return folder


def fresh(folder: Path, *words: object) -> Any:
    config = write_config(folder.parents[2])
    return call("run", config, "--runs", folder.parents[1], "--no-track", "--fresh", *words)


@pytest.mark.parametrize(
    "settings",
    [
        ["policy.device=cuda:9"],
        ["policy.device=meta"],
        ["policy.max_new_tokens=512"],
        ["start_from=tiny/nothing-s0"],
        [
            "policy.engine=vllm",
            'policy.vllm={"mode":"server","url":"http://127.0.0.1:9","weights_folder":"w",'
            '"retries":0}',
        ],
        ["policy.engine=vllm", 'policy.vllm={"mode":"server","url":"h:","weights_folder":"w"}'],
        ['environment={"type":"jsonl","path":"nowhere.jsonl"}'],
    ],
    ids=lambda settings: settings[-1][:24],
)
def test_a_run_that_cannot_start_leaves_the_earlier_one(settings: list[str], earlier: Path) -> None:
    before = tree(earlier)
    answer = fresh(earlier, *[word for one in settings for word in ("--set", one)])
    assert answer.code == 1 and "error: " in answer.err and "Traceback" not in answer.err
    assert tree(earlier) == before


def test_a_start_that_fails_behind_the_first_event_leaves_the_earlier_run(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        assert len(read_events(earlier / "journal.jsonl")) == 1
        raise OSError(28, "No space left on device")

    before = tree(earlier)
    monkeypatch.setattr("fst_core.session.Session._open_slow", fail)
    answer = fresh(earlier)
    assert answer.code == 1 and "No space left on device" in answer.err
    assert f"the earlier run in {earlier} is kept" in answer.err
    assert tree(earlier) == before


def test_an_interrupt_while_loading_leaves_the_earlier_run(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = tree(earlier)
    monkeypatch.setattr("fst_core.session.Session._build", stop)
    answer = fresh(earlier)
    assert answer.code == 130 and "is kept" in answer.err
    assert tree(earlier) == before


def test_a_new_run_replaces_the_earlier_one_and_keeps_its_log(earlier: Path) -> None:
    (earlier / "checkpoints" / "old").mkdir()
    answer = fresh(earlier, "--set", "loop.steps=1")
    assert answer.code == 0, answer.err
    assert f"removed the earlier run in {earlier}" in answer.err
    events = read_events(earlier / "journal.jsonl")
    assert [e["step"] for e in events if e["kind"] == "end"] == [1]
    assert (earlier / "log.txt").read_text() == "what it printed\n"
    assert not any((earlier / name).exists() for name in (".earlier", ".removed"))
    assert not (earlier / "checkpoints" / "old").exists()


def test_a_run_that_fails_later_has_replaced_the_earlier_one(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fst_core.session.Session.step", fail)
    assert fresh(earlier).code == 1
    kinds = [event["kind"] for event in read_events(earlier / "journal.jsonl")]
    assert "evaluation" in kinds and "end" not in kinds


@pytest.mark.parametrize("what", ["put back", "remove"])
@pytest.mark.parametrize("journal", [True, False])
def test_a_kill_at_any_point_leaves_one_whole_run(what: str, journal: bool, tmp_path: Path) -> None:
    survived, deaths = False, 0
    while not survived:
        folder = tmp_path / str(deaths)
        (folder / "checkpoints" / "step").mkdir(parents=True)
        for name in ("config.json", "log.txt", "checkpoints/step/state.json"):
            (folder / name).write_text(f"old {name}")
        if journal:
            (folder / "journal.jsonl").write_text("old\n" * 5)
        before = tree(folder)
        command = [sys.executable, "-c", DEADLY, str(folder), what, str(deaths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        survived, deaths = done.stdout == "alive\n", deaths + 1
        assert survived or done.returncode == 9, done.stderr
        lock(folder).close()
        new = {"config.json": b"new", "journal.jsonl": b"new\n", "log.txt": before["log.txt"]}
        allowed = [before] if what == "put back" else [before, new]
        assert tree(folder) in allowed
    assert deaths > 6
    assert what == "put back" or tree(folder) == new


@contextmanager
def replaced_by_another_process(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("words", [[], ["--fresh"]])
def test_two_at_once_lose_nothing_and_a_killed_one_is_put_back(
    words: list[str], earlier: Path
) -> None:
    before, config = tree(earlier), write_config(earlier.parents[2])
    command = ["run", config, "--runs", earlier.parents[1], "--no-track"]
    with replaced_by_another_process(earlier) as process:
        answer = call(*command, *words)
        assert answer.code == 1
        assert f"is being written by another process (pid {process.pid})" in answer.err
        assert not (earlier / "journal.jsonl").exists()
        with pytest.raises(RunBusy):
            lock(earlier)
    answer = call(*command)
    assert answer.code == 0 and "is finished" in answer.err
    assert tree(earlier) == before


def set_aside_by_a_dead_process(folder: Path) -> None:
    with replaced_by_another_process(folder):
        pass
    assert not (folder / "journal.jsonl").exists() and (folder / ".earlier").is_dir()


@pytest.mark.parametrize("command", ["report", "report study", "contexts"])
def test_readers_see_the_run_that_a_killed_start_had_set_aside(command: str, earlier: Path) -> None:
    before = tree(earlier)
    set_aside_by_a_dead_process(earlier)
    word, *study = command.split()
    out = ["--out", earlier.parents[2] / "out"] if word == "report" else []
    answer = call(word, earlier.parent if study else earlier, *out)
    assert answer.code == 0 and answer.err == ""
    assert tree(earlier) == before


def test_readers_leave_a_living_start_alone(earlier: Path) -> None:
    with replaced_by_another_process(earlier) as process:
        before = tree(earlier)
        for path in (earlier, earlier.parent):
            with pytest.raises(ConfigError, match=r"fst-s0: no run here \(its run is set aside"):
                find_runs([path])
        shutil.copytree(finished()[1], earlier.with_name("fst-s1"))
        said = list[str]()
        assert find_runs([earlier.parent], said.append) == [earlier.with_name("fst-s1")]
        [line] = said
        assert line.startswith(f"warning: {earlier} is left out: its run is set aside in .earlier")
        assert call("contexts", earlier).code == 1
        assert tree(earlier) == before
        assert (earlier / ".earlier" / "lock").read_text().startswith(f"{process.pid} ")


def test_starting_from_a_run_that_is_set_aside_says_how_it_comes_back(earlier: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot start from .*nothing: there is no run in it"):
        final_checkpoint(earlier / "nothing")
    set_aside_by_a_dead_process(earlier)
    with pytest.raises(ConfigError, match="run the same command without --fresh to put it back"):
        final_checkpoint(earlier)
    lock(earlier).close()
    (earlier / "journal.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"^cannot start from .* has not ended; finish it first"):
        final_checkpoint(earlier)


def test_a_new_run_beyond_its_start_is_never_thrown_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "journal.jsonl").write_text("old\n")
    held = set_aside(folder, ())
    assert held is not None and set_aside(tmp_path / "nothing", ()) is None
    (folder / "journal.jsonl").write_text("new\nnew\n")
    assert not settle(folder)
    held.close()
    assert tree(folder) == {"journal.jsonl": b"new\nnew\n"}
    assert not settle(folder) and not forget_earlier(folder)


def test_a_study_keeps_the_runs_that_no_new_one_replaced(earlier: Path) -> None:
    broken, base = earlier.with_name("broken-s0"), earlier.with_name("base-s0")
    shutil.copytree(earlier, base)
    earlier.rename(broken)
    before, config = tree(broken), write_config(broken.parents[2])
    words = ["--arms", "broken,base", "--runs", broken.parents[1], "--no-track"]
    answer = call("compare", config, "--fresh", *words)
    assert answer.code == 1
    assert "error: broken-s0 failed (contexts.seed has" in answer.err
    assert f"the earlier run in {broken} is kept" in answer.err
    log = before.pop("log.txt")
    after = tree(broken)
    assert after.pop("log.txt").startswith(log)
    assert after == before
    started, *_, ended = read_events(base / "journal.jsonl")
    assert started["config"]["arm"] == "base" and ended["kind"] == "end"
    assert not (base / ".earlier").exists()
