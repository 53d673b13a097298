"""The command line: runs, resumes, refusals, and one sentence for every foreseen mistake."""

import errno
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fst_core.checkpoint import list_checkpoints
from fst_core.config import RunConfig, load_config
from fst_core.failures import KNOWN_ERRORS, OUT_OF_MEMORY, sentence_for
from fst_core.journal import Journal, comparable, read_events
from tests.journals import start, synthetic_study
from tests.unit.commands import CONFIG, Answer, call, finished, write_config

HOLD_LOCK = """
import fcntl, os, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(str(os.getpid()))
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


def loaded_after(statement: str) -> set[str]:
    """Top-level modules a fresh Python holds after a statement."""
    code = f"import sys\ntry:\n {statement}\nexcept SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


@contextmanager
def locked_by_another_process(folder: Path) -> Iterator[int]:
    """The lock of a run folder, held by a process of its own (its pid)."""
    command = [sys.executable, "-c", HOLD_LOCK, str(folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process.pid
        finally:
            process.terminate()


@pytest.mark.parametrize(
    "words", ["['--help']", "['run', '--help']", "['run', 'no-such.toml']", "['report', 'nowhere']"]
)
def test_help_and_early_mistakes_load_nothing_heavy(words: str) -> None:
    loaded = loaded_after(f"from fst_core.cli import main; main({words})")
    assert not loaded & {"torch", "transformers", "trl", "gepa", "mlflow", "prefect", "pandas"}
    assert "fst_core" in loaded


def test_dry_run_prints_config_plan_and_cost_and_writes_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    answer = call("run", config, "--dry-run", "--seed", 7, "--runs", tmp_path / "runs")
    assert answer.code == 0
    plan, cost = answer.out.find("plan: "), answer.out.find("cost of")
    assert "2 fast phases, 2 slow steps, 3 eval" in answer.out[plan:cost]
    told = RunConfig.model_validate(tomllib.loads(answer.out))
    assert told == load_config(config, None, ["seed=7"])[0]
    assert answer.err == "" and answer.out.startswith("# tiny/")
    assert "slow rollouts: 32" in answer.out
    assert not (tmp_path / "runs").exists()


def test_dry_run_warns_of_a_budget_that_buys_no_search(tmp_path: Path) -> None:
    answer = call("run", write_config(tmp_path), "--dry-run", "--set", "fast.metric_calls=8")
    assert "does not pay for one search step" in answer.out


def test_a_study_s_dry_run_prints_what_each_arm_and_all_cost(tmp_path: Path) -> None:
    words = [write_config(tmp_path), "--arms", "base,fst", "--seeds", "3,4,5"]
    answer = call("compare", *words, "--dry-run", "--runs", tmp_path / "runs")
    assert answer.code == 0 and answer.err == ""
    title, *rows = answer.out.splitlines()
    arms = [row.strip().partition(": ")[0] for row in rows]
    assert title == "cost of tiny" and arms == ["base, 3 runs", "fst, 3 runs", "all 6 runs"]
    rollouts = [int(row.split("at most ")[1].split(" ")[0].replace(",", "")) for row in rows]
    one = call("run", words[0], "--arm", "fst", "--dry-run").out
    assert f"all rollouts: at most {rollouts[1] // 3:,}" in one
    assert rollouts[0] + rollouts[1] == rollouts[2] and "optimizer step" not in rows[0]
    assert not (tmp_path / "runs").exists()


def test_a_study_s_dry_run_refuses_and_warns_as_a_run_s(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    words = ["--arms", "base,fst", "--seeds", "1,2", "--set", "fast.metric_calls=8"]
    idle = call("compare", config, "--dry-run", *words)
    assert idle.out.count("does not pay for one search step") == 1
    refused = call("compare", config, "--dry-run", "--set", 'start_from="no/such-s0"')
    assert refused.code == 1 and "no/such-s0" in refused.err


HELP = [
    *(["run"], ["compare"], ["report"], ["contexts"], ["sync"], ["doctor"], ["bench"], ["methods"]),
    *(["settings"], ["archive"], ["restore"], ["data"], ["data", "build"], ["data", "check"]),
    *(["data", "manifest"], []),
]


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_shows_no_type_of_options_that_take_no_value_or_have_a_name(command: list) -> None:
    answer = call(*command, "--help")
    assert answer.code == 0 and "--help" in answer.out
    assert "<bool>" not in answer.out
    options = [line for line in answer.out.splitlines() if "--" in line]
    assert not [line for line in options if re.search(r"<(int|str|list|path)", line)]


BAD_INPUT: list[tuple[list[str], int, str]] = [
    (["--set", "loop.setps=3"], 1, "loop.setps"),
    (["--set", "loop.steps"], 1, "key.path=value"),
    (["--set", "contexts.size=3"], 1, "choose K among the divisors of G"),
    (["--set", "slow.micro_batch=5"], 1, "slow.micro_batch = 5"),
    (["--arm", "nothing"], 1, "known arms"),
    (["--arm", "broken"], 1, "leaves 0 beside the longest problem"),
    (["--set", 'policy={"type":"hub","model":"./no-such"}'], 1, "no such folder"),
    (["--set", 'environment.required=["shout"]'], 1, "unknown directives"),
    (["--data", "no-such-data"], 1, "build the pools"),
    (["--seed", "x"], 2, "--seed"),
    (["--colour"], 2, "--colour"),
]


@pytest.mark.parametrize(("words", "code", "part"), BAD_INPUT)
def test_bad_input_is_one_sentence(words: list[str], code: int, part: str, tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    answer = call("run", config, "--runs", runs, "--no-track", *words)
    assert answer.code == code
    assert part in answer.err
    assert "Traceback" not in answer.err
    if code == 1:
        *before, sentence = answer.err.splitlines()
        assert sentence.startswith("error: ")
        assert all("loading the policy" in line or line.startswith("note: ") for line in before)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "{missing}"], "cannot be read"),
        (["run", "{broken}"], "not valid TOML"),
        (["run", "{good}", "--runs", "{broken}"], "choose another --runs folder"),
        (["report", "{empty}"], "no run here"),
        (["contexts", "{empty}"], "no run here"),
        (["sync", "{empty}"], "no run here"),
        (["data", "check", "{empty}"], "fst data build"),
        (["data", "check", "{missing}"], "no such folder"),
        (["data", "manifest", "{missing}", "--out", "{missing}"], "no such folder"),
        (["compare", "{good}", "--arms", "rl,nothing"], "no arm 'nothing'"),
        (["compare", "{good}", "--seeds", "1,1"], "twice"),
    ],
)
def test_bad_paths_are_one_sentence(words: list[str], part: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").write_text("name = ")
    names = {name: tmp_path / name for name in ("missing", "broken", "empty")}
    good = write_config(tmp_path)
    answer = call(*(word.format(good=good, **names) for word in words))
    assert answer.code == 1
    assert part in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("seeds", ["x", "1,two", "1.5", "--1"])
def test_seeds_that_are_no_numbers_are_wrong_usage(seeds: str, tmp_path: Path) -> None:
    answer = call("compare", write_config(tmp_path), f"--seeds={seeds}", "--dry-run")
    assert answer.code == 2 and "is no whole number" in answer.err + answer.out


@pytest.mark.parametrize("words", [("--arms", ""), ("--arms", ","), ("--seeds", " ")])
def test_an_option_of_no_name_is_refused_as_a_variable_without_a_value(
    words: tuple[str, str], tmp_path: Path
) -> None:
    answer = call("compare", write_config(tmp_path), *words, "--dry-run")
    assert answer.code == 1 and f"{words[0]} names nothing; leave it out" in answer.err


@pytest.mark.parametrize("change", ["seed=5", "arm=rl"])
def test_what_a_study_s_options_say_is_refused_among_its_overrides(
    change: str, tmp_path: Path
) -> None:
    answer = call("compare", write_config(tmp_path), "--set", change, "--dry-run")
    assert answer.code == 1 and f"'{change}' among the overrides would not count" in answer.err


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in call("--debug", "run", tmp_path / "missing.toml").err
    assert "Traceback" in call("run", tmp_path / "missing.toml", "--debug").err


def test_unforeseen_errors_show_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("fst_core.cost.estimate", fail)
    answer = call("run", write_config(tmp_path), "--dry-run")
    assert answer.code == 1
    assert "Traceback" in answer.err


@pytest.mark.parametrize("name", sorted(KNOWN_ERRORS))
def test_known_errors_are_the_classes_they_name(name: str) -> None:
    module, _, kind = name.rpartition(".")
    if module == "fst_core.tracking":
        pytest.importorskip("mlflow")
    error = getattr(importlib.import_module(module), kind)("what and why")
    assert sentence_for(error) == "what and why"


def test_out_of_memory_names_the_settings_to_lower() -> None:
    torch = importlib.import_module("torch")
    assert sentence_for(torch.OutOfMemoryError("CUDA out of memory")) == OUT_OF_MEMORY
    assert "slow.micro_batch" in OUT_OF_MEMORY
    assert sentence_for(ValueError("a bug")) is None


@pytest.mark.parametrize(
    "number",
    [
        *("ENOSPC", "EACCES", "EROFS", "ENOTDIR", "ENOENT", "EEXIST", "EISDIR", "ELOOP"),
        *("EFBIG", "EIO", "ESTALE"),
    ],
)
def test_what_a_disk_refuses_is_told_with_its_path(number: str) -> None:
    error = OSError(getattr(errno, number), "why", "where/it/is")
    said = sentence_for(error)
    assert said and said.startswith("where/it/is: why; ")
    assert sentence_for(OSError(errno.EBADF, "a bug")) is None


def test_a_too_long_completion_is_refused_with_the_setting_to_lower(tmp_path: Path) -> None:
    words = ["--runs", tmp_path / "runs", "--no-track", "--set", "policy.max_new_tokens=512"]
    answer = call("run", write_config(tmp_path), *words)
    assert answer.code == 1
    assert "policy.max_new_tokens = 512; lower policy.max_new_tokens, or" in answer.err


def test_a_run_reaches_its_end_and_says_what_came_of_it() -> None:
    _, folder, answer = finished()
    assert answer.code == 0, answer.err
    assert read_events(folder / "journal.jsonl")[-1]["kind"] == "end"
    assert "step 2/2" in answer.out
    assert "fast phase 1:" in answer.out
    assert "evaluation at step 2 under the best context: reward" in answer.out
    assert "reward under the seed context:" in answer.out
    assert "reward without a context:" in answer.out and "none context" not in answer.out
    assert "\x1b" not in answer.out
    assert answer.err == f"{folder}: loading the policy\n"


def test_a_finished_run_is_not_run_again() -> None:
    config, folder, _ = finished()
    before = (folder / "journal.jsonl").read_bytes()
    answer = call("run", config, "--runs", folder.parents[1])
    assert answer.code == 0
    assert "is finished" in answer.err
    assert "reward under the best context" in answer.out
    assert (folder / "journal.jsonl").read_bytes() == before


def test_another_config_is_refused() -> None:
    config, folder, _ = finished()
    words = ("--runs", folder.parents[1], "--no-track", "--set", "slow.beta=0.5")
    answer = call("run", config, *words)
    assert answer.code == 1
    assert "slow.beta 0.0 -> 0.5" in answer.err


def interrupted(config: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """A run stopped by Ctrl-C in front of its second slow step."""
    session = importlib.import_module("fst_core.session").Session
    step = session.step

    def stopped_step(self: Any) -> None:
        if self.step_done == 1:
            raise KeyboardInterrupt
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(session, "step", stopped_step)
        return call("run", config, "--runs", runs, "--no-track")


def test_an_interrupted_run_resumes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    first = interrupted(config, runs, monkeypatch)
    assert first.code == 130
    assert f"resumable: fst run {config} --runs {runs} --no-track" in first.err
    second = call("run", config, "--runs", runs, "--no-track")
    assert second.code == 0, second.err
    assert "resuming" in second.err
    resumed = without_checkpoints(runs / "tiny" / "fst-s0")
    assert resumed == without_checkpoints(finished()[1])


def without_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """What a run measured; a resume records the checkpoint it starts from once more."""
    events = comparable(read_events(folder / "journal.jsonl"))
    return [event for event in events if event["kind"] != "checkpoint"]


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_a_folder_is_written_by_one_process(fresh: list[str], tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    folder = runs / "tiny" / "fst-s0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with locked_by_another_process(folder) as pid:
        answer = call("run", config, "--runs", runs, "--no-track", *fresh)
    assert answer.code == 1
    assert "another process" in answer.err
    assert fresh or f"pid {pid}" in answer.err
    assert (folder / "config.json").read_text() == "{}"


def test_fresh_removes_runs_only(tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    folder = runs / "tiny" / "base-s0"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("precious")
    words = ("run", config, "--arm", "base", "--runs", runs, "--no-track", "--fresh")
    refused = call(*words)
    assert refused.code == 1
    assert "'thesis.tex', which is no part of a run" in refused.err
    assert (folder / "thesis.tex").read_text() == "precious"
    (folder / "thesis.tex").rename(folder / "config.json")
    assert "'config.json', which is no part of a run" in call(*words).err
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert "'config.json', which is no part of a run" in call(*words).err
    (folder / "config.json").write_text("")
    assert call(*words).code == 0
    assert json.loads((folder / "config.json").read_text())["arm"] == "base"
    assert read_events(folder / "journal.jsonl")[-1]["kind"] == "end"
    assert len(list_checkpoints(folder / "checkpoints")) == 1


def test_contexts_show_lineage_and_diffs() -> None:
    answer = call("contexts", finished()[1])
    assert answer.code == 0
    assert "contexts after the fast phase of cycle 1" in answer.out
    assert "You are a helpful assistant." in answer.out
    first = call("contexts", finished()[1], "--cycle", 0)
    assert "cycle 0" in first.out
    assert call("contexts", finished()[1], "--cycle", 9).code == 1


def test_report_takes_runs_and_studies(tmp_path: Path) -> None:
    folder = finished()[1]
    for number, path in enumerate((folder, folder.parent)):
        out = tmp_path / str(number)
        answer = call("report", path, "--out", out)
        assert answer.code == 0, answer.err
        assert str(out / "report.html") in answer.out
        assert (out / "report.html").exists()


def test_a_report_warns_of_an_arm_of_several_configs(tmp_path: Path) -> None:
    """Seeds that begin from the seeds of another arm are of one config."""
    for seed in (0, 1):
        start(tmp_path / f"rl-s{seed}", "rl", seed, start_from=f"first/rl-s{seed}")
    answer = call("report", tmp_path, "--out", tmp_path / "one")
    assert answer.code == 0 and "different settings" not in answer.err
    start(tmp_path / "rl-s2", "rl", 2, slow={"type": "cispo", "learning_rate": 2e-3})
    answer = call("report", tmp_path, "--out", tmp_path / "two")
    told = "rl-s0 and rl-s2 were run with different settings"
    assert answer.code == 0 and told in answer.err and "slow.learning_rate" in answer.err


def test_a_report_has_the_built_in_arms_in_their_order(tmp_path: Path) -> None:
    synthetic_study(tmp_path, seeds=(0,))
    answer = call("report", tmp_path, "--out", tmp_path / "out")
    first = [line.split()[0] for line in answer.out.splitlines() if "1/1" in line]
    assert first == ["base", "rl", "gepa", "fst"]
    assert "fst is ahead of rl, but not certainly, on: " in answer.out


def test_pools_are_built_checked_and_used(tmp_path: Path) -> None:
    config, data, manifest = write_config(tmp_path), tmp_path / "data", tmp_path / "m.json"
    built = call("data", "build", config, "--out", data)
    assert built.code == 0, built.err
    assert "8 train, 4 validation, 4 test problems" in built.err
    assert call("data", "manifest", data, "--out", manifest).code == 0
    assert call("data", "check", data, "--manifest", manifest).code == 0
    words = ("--arm", "base", "--runs", tmp_path / "runs", "--no-track", "--data", data)
    assert call("run", config, *words).code == 0
    (data / "directives" / "train.jsonl").write_text("{}\n")
    broken = call("data", "check", data, "--manifest", manifest)
    assert broken.code == 1
    assert "train.jsonl" in broken.err


def test_sync_sends_a_journal_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    first, second = call("sync", finished()[1]), call("sync", finished()[1])
    assert first.code == 0, first.err
    assert " 0 metric rows" not in first.err
    assert " 0 metric rows" in second.err


@pytest.mark.parametrize("journal", ["", '{"seq": 0, "kind": "rewind", "to": -1}\n'])
def test_sync_of_nothing_is_not_all_that_there_is(tmp_path: Path, journal: str) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "journal.jsonl").write_text(journal)
    answer = call("sync", tmp_path)
    assert answer.code == 1 and "no journal of these runs holds an event" in answer.err


def test_a_run_goes_on_without_its_tracking_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    config, runs = write_config(tmp_path), tmp_path / "runs"
    answer = call("run", config, "--arm", "base", "--runs", runs)
    assert answer.code == 0
    assert answer.err.count("warning: MLflow at") == 1
    assert f"fst sync {runs / 'tiny' / 'base-s0'}" in answer.err.splitlines()[-1]


def test_doctor_finds_this_machine_sound_and_a_dead_server_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    sound = call("doctor", "--runs", tmp_path)
    assert sound.code == 0, sound.out
    assert {"torch:", "trl:", "vllm:", "disk:"} <= set(sound.out.split())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    dead = call("doctor", "--runs", tmp_path)
    assert dead.code == 1
    assert "does not answer" in dead.out
    assert "secret" not in dead.out


def test_the_tiny_policy_never_asks_the_hub(tmp_path: Path) -> None:
    code = (
        "import os; from fst_core.config import load_config; from fst_core import quiet; "
        "quiet.settle_environment(); "
        f"quiet.settle_for(load_config({str(write_config(tmp_path))!r})[0]); "
        "print(os.environ['HF_HUB_OFFLINE'], os.environ['DO_NOT_TRACK'])"
    )
    hidden = ("HF_HUB_OFFLINE", "DO_NOT_TRACK")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


def test_a_hub_policy_may_ask_the_hub(tmp_path: Path) -> None:
    from fst_core.config import load_config
    from fst_core.quiet import needs_hub

    text = CONFIG.replace('type = "tiny"', 'type = "hub"\nmodel = "someone/model"')
    assert needs_hub(load_config(write_config(tmp_path, text))[0])
    assert not needs_hub(load_config(write_config(tmp_path))[0])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--set", "name=../up"], "name:"),
        (["--set", 'name=""'], "name:"),
        (["--set", "slow.taau=3"], "did you mean tau?"),
        (
            ["--set", "slow.learning_rate=1e999"],
            "learning_rate: must be a finite number, not Infinity",
        ),
        (["--set", "policy.device=toaster"], "torch knows no such device"),
        (["--set", "environment.path=nope.jsonl", "--set", "environment.type=jsonl"], "nope.jsonl"),
    ],
)
def test_more_bad_settings_are_one_sentence(words: list[str], part: str, tmp_path: Path) -> None:
    answer = call("run", write_config(tmp_path), "--runs", tmp_path / "r", "--no-track", *words)
    assert answer.code == 1 and part in answer.err and "Traceback" not in answer.err


def test_fresh_removes_nothing_before_the_new_run_could_start(tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    words = ["run", config, "--arm", "base", "--runs", runs, "--no-track"]
    assert call(*words).code == 0
    journal = runs / "tiny" / "base-s0" / "journal.jsonl"
    before = journal.read_bytes()
    assert call(*words, "--fresh", "--set", "policy.engine=vllm").code == 1
    assert journal.read_bytes() == before


def test_a_dry_run_reads_the_problems(tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    rows = [{"question": f"What is {i}?", "answer": str(i)} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)))
    config = tmp_path / "few.toml"
    config.write_text(f'environment = {{ type = "jsonl", path = "{path}" }}\n')
    answer = call("run", config, "--dry-run")
    assert answer.code == 1 and "raise environment.validation" in answer.err
    answer = call("run", config, "--dry-run", "--set", "evaluation.problems=2")
    assert answer.code == 0 and "times through" in answer.err


def test_contexts_are_shown_without_terminal_commands(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished()[1], folder)
    text = (folder / "journal.jsonl").read_text()
    (folder / "journal.jsonl").write_text(text.replace("a helpful", "a \\u001b[2Jhelpful"))
    answer = call("contexts", folder)
    assert answer.code == 0 and "\x1b" not in answer.out


@pytest.mark.parametrize(
    ("contexts", "told"),
    [({}, "the contexts never changed"), ({"start_from": "demo/fst-s0"}, "those of demo/fst-s0")],
)
def test_a_run_without_fast_phases_says_whose_contexts_it_has(
    contexts: dict[str, str], told: str, tmp_path: Path
) -> None:
    folder = tmp_path / "fold" / "fold-s0"
    folder.mkdir(parents=True)
    journal = Journal(folder / "journal.jsonl")
    journal.append("run", {"config": {"contexts": {"seed": "s", **contexts}}})
    journal.close()
    answer = call("contexts", folder)
    assert answer.code == 1
    assert told in answer.err
