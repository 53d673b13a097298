"""What a launcher says, and which of its processes speaks; devices that are refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fst_core.config.model import ConfigError
from fst_core.launch import Launch, launch, refuse_processes, speaks
from fst_core.ranks import joined
from tests.runs import tiny_config
from tests.unit.commands import call, write_config

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
VARIABLES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", *TORCHRUN)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def launched(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_one_process_and_several(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch() == Launch(0, 0, 1)
    launched(monkeypatch, WORLD_SIZE="", LOCAL_RANK="1")
    assert launch() == Launch(0, 0, 1) and speaks()
    launched(monkeypatch, WORLD_SIZE="1", LOCAL_RANK="3", RANK="x")
    assert launch() == Launch(0, 0, 1) and speaks()
    launched(monkeypatch, WORLD_SIZE="4", **TORCHRUN)
    assert launch() == Launch(1, 1, 4) and not speaks()
    launched(monkeypatch, LOCAL_RANK="0")  # the first process of a second host
    assert launch() == Launch(1, 0, 4) and speaks()


BAD = [
    ({"WORLD_SIZE": "abc"}, "WORLD_SIZE = 'abc' is no whole number"),
    ({"WORLD_SIZE": "2.5"}, "WORLD_SIZE = '2.5' is no whole number"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE = 0 is no number of processes"),
    ({"WORLD_SIZE": "-2"}, "WORLD_SIZE = -2 is no number of processes"),
    ({"WORLD_SIZE": "2"}, "without RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "RANK": ""}, "is set without RANK;"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "RANK": "one"}, "RANK = 'one' is no whole number"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "MASTER_PORT": "x"}, "MASTER_PORT = 'x' is no whole number"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "MASTER_PORT": ""}, "is set without MASTER_PORT;"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "MASTER_PORT": "-1"}, "MASTER_PORT = -1 is no port"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "MASTER_PORT": "0"}, "MASTER_PORT = 0 is no port"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "MASTER_PORT": "65536"}, "MASTER_PORT = 65536 is no port"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "MASTER_ADDR": "no.invalid"}, "'no.invalid' is no host"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "MASTER_ADDR": "a" * 70}, "aaa' is no host"),
    ({"WORLD_SIZE": "2", "RANK": "5"}, "without LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "LOCAL_RANK": "zz"}, "LOCAL_RANK = 'zz' is no whole number"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "RANK": "2"}, "RANK = 2 and LOCAL_RANK = 1 do not fit"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "RANK": "0"}, "RANK = 0 and LOCAL_RANK = 1 do not fit"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "LOCAL_RANK = -1 do not fit"),
]


@pytest.mark.parametrize(("variables", "said"), BAD)
@pytest.mark.parametrize("words", [["run"], ["run", "--dry-run"], ["bench"]])
def test_a_launch_that_cannot_be_read_is_one_sentence(
    variables: dict[str, str],
    said: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched(monkeypatch, **variables)
    with pytest.raises(ConfigError, match="start with torchrun or accelerate launch, or unset"):
        launch()
    with pytest.raises(ConfigError, match=said), joined(tiny_config()):
        pass
    monkeypatch.setattr("fst_core.launch.SILENT_SECONDS", float("nan"))  # no wait is allowed
    assert speaks()
    answer = call(*words[:1], write_config(tmp_path), *words[1:])
    assert answer.code == 1 and said in answer.err and len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["bench", "c.toml"], ["compare", "c.toml"], ["doctor"], ["data", "check", "."]]
)
def test_only_run_takes_several_processes(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, WORLD_SIZE="2", **{**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"})
    answer = call(*words)
    assert answer.code == 1 and f"fst {words[0]} is for one process" in answer.err


def test_a_dry_run_counts_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(tmp_path)
    launched(monkeypatch, WORLD_SIZE="3", **{**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"})
    answer = call("run", config, "--dry-run")
    assert answer.code == 1 and answer.out == ""
    assert "loop.problems_per_step = 4 cannot be split over 3 processes" in answer.err
    launched(monkeypatch, WORLD_SIZE="2")
    answer = call("run", config, "--dry-run", "--set", "slow.micro_batch=4")
    assert answer.code == 0, answer.err
    launched(monkeypatch, RANK="1", LOCAL_RANK="1")
    silent = call("run", config, "--dry-run")
    assert (silent.code, silent.out, silent.err) == (0, "", "")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("policy.device=meta", "torch has this device without a use here"),
        ("policy.device=toaster", "torch knows no such device"),
        ("policy.device=cuda:99", "GPU"),
        ('policy.vllm={"mode":"server","url":"garbage","weights_folder":"w"}', "policy.vllm.url"),
    ],
)
def test_a_dry_run_refuses_what_cannot_be_there(setting: str, said: str, tmp_path: Path) -> None:
    words = ["--set", "policy.engine=vllm"] if "vllm" in setting else []
    answer = call("run", write_config(tmp_path), "--dry-run", *words, "--set", setting)
    assert answer.code == 1 and said in answer.err and len(answer.err.splitlines()) == 1


def test_an_error_that_all_processes_find_is_told_once_a_host(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "3", "-m", "fst_core.cli", "run", missing]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert done.stderr.count(f"error: {missing}") == 1, done.stderr
    assert "fst_core" not in done.stderr.partition("Traceback")[2].partition("torch/distributed")[0]


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, WORLD_SIZE="4", **TORCHRUN)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = tiny_config(policy={"type": "tiny", "device": "cuda"})
    with (
        pytest.raises(ConfigError, match="LOCAL_RANK = 1, but this host has 1 GPUs"),
        joined(config),
    ):
        pass


ARMS = {"base": ("none", "none"), "gepa": ("gepa", "none"), "rl": ("none", "cispo")}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("size", "cores"), [(1000, 2), (1000, 128), (5, 1), (9, 8)])
def test_more_processes_than_cores_are_refused_whatever_learns(
    arm: str, size: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = ({"type": name} for name in ARMS[arm])
    config = tiny_config(fast=fast, slow=slow, loop={"problems_per_step": size})
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    with pytest.raises(ConfigError, match=f"{size} processes on this host, which has {cores} core"):
        refuse_processes(config, size)


def test_as_many_processes_as_a_host_bears_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(fast={"type": "gepa"}, slow={"type": "none"})
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    refuse_processes(config, 8)
    launched(monkeypatch, LOCAL_WORLD_SIZE="8")  # of 16 on two hosts
    refuse_processes(config, 16)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    launched(monkeypatch, LOCAL_WORLD_SIZE="4")
    refuse_processes(config, 4)
