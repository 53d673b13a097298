"""A run on two processes is the run of one, beyond rounding; one rank's error stops all.

Each launch is the real command line under torchrun, on the CPU with gloo. FSDP shards there as it
does on GPUs (`tests.bench.cards.shard_on_cpu`).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fst_core.config.model import ConfigError
from fst_core.journal import comparable, read_events
from fst_core.launch import refuse_processes
from fst_core.ranks import Ranks
from tests.bench.cards import SLOW_ONLY, difference, launch, losses
from tests.runs import tiny_config

SMOKE = "configs/tiny/smoke.toml"
TEN_STEPS = [
    *SLOW_ONLY,
    "loop.steps=10",
    "loop.problems_per_step=8",
    "slow.micro_batch=8",
    "slow.learning_rate=1e-3",
    "environment.required=[]",
]
Events = list[dict[str, Any]]


def words(runs: Path, arm: str, settings: Sequence[str] = ()) -> list[str]:
    chosen = [word for setting in settings for word in ("--set", setting)]
    return ["--", "run", SMOKE, "--arm", arm, "--runs", str(runs), "--no-track", *chosen]


def launched(folder: Path, *options: str, **how: Any) -> None:
    done = launch(options, **how, seconds=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert folder.is_dir()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Events:
    """The journal of a whole run in one process."""
    runs = tmp_path_factory.mktemp("one")
    launched(runs, *words(runs, "fst"))
    return comparable(read_events(runs / "smoke" / "fst-s0" / "journal.jsonl"))


def test_recorded_rollouts_give_the_losses_of_one_process(tmp_path: Path) -> None:
    """Some groups are dropped, unevenly over the ranks, and each rank has two micro-batches.

    Under DDP rank 0's engine serves both ranks, as a vLLM server's does.
    """
    recorded, notes = str(tmp_path / "recorded"), tmp_path / "notes"
    launched(tmp_path, "--record", recorded, *words(tmp_path / "1", "rl", TEN_STEPS))
    again = ["--replay", recorded, "--notes", str(notes)]
    ddp = words(tmp_path / "ddp", "rl", TEN_STEPS)
    launched(tmp_path, *again, "--one-engine", *ddp, processes=2)
    fsdp = words(tmp_path / "fsdp", "rl", TEN_STEPS)
    launched(tmp_path, *again, *fsdp, processes=2, fsdp=True)
    assert all(note["sharded"] for note in json.loads(notes.read_text()))
    found = {n: losses(tmp_path / n / "smoke" / "rl-s0") for n in ("1", "ddp", "fsdp")}
    assert len(found["1"]) == 10
    assert difference(found["ddp"], found["1"]) < 1e-5
    assert difference(found["fsdp"], found["1"]) < 1e-5


@pytest.mark.parametrize(
    ("before", "fsdp"), [(True, False), (False, True)], ids=["fsdp-ddp", "ddp-fsdp"]
)
def test_failed_and_resumed_on_two_ranks_equals_one_process(
    tmp_path: Path, one: Events, before: bool, fsdp: bool
) -> None:
    """Rank 1 raises inside step 4, while rank 0 waits for it; then the same command goes on.

    It begins with FSDP and goes on with DDP, or the other way round.
    """
    command = words(tmp_path, "fst")
    failed = launch(["--fail", "3", *command], processes=2, fsdp=before, seconds=120)
    assert failed.returncode != 0
    assert "error: rank 1: a judge failed on purpose" in failed.stderr
    journal = tmp_path / "smoke" / "fst-s0" / "journal.jsonl"
    assert read_events(journal)[-1]["kind"] != "end"

    notes = tmp_path / "notes"
    launched(tmp_path, "--notes", str(notes), *command, processes=2, fsdp=fsdp)
    two = comparable(read_events(journal))
    assert [shape(event) for event in two] == [shape(event) for event in one]
    for ours, theirs in zip(two, one, strict=True):
        rounding = {n: v for n, v in theirs.get("metrics", {}).items() if "mismatch" not in n}
        assert {n: ours["metrics"][n] for n in rounding} == pytest.approx(rounding, 1e-3, 1e-5)
    for note in json.loads(notes.read_text()):
        assert note["sharded"] is fsdp
        first, second = note["populations"]
        assert first == second


def shape(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what rounding may change: its metrics."""
    left = {key: value for key, value in event.items() if key != "metrics"}
    return {**left, "metrics": sorted(event.get("metrics", {}))}


@pytest.mark.parametrize(
    ("tables", "size", "named"),
    [
        ({}, 3, "loop.problems_per_step = 4"),
        ({"slow": {"micro_batch": 1}}, 8, "loop.problems_per_step = 4"),
        ({"loop": {"group_size": 6}, "slow": {"micro_batch": 8}}, 2, "slow.micro_batch = 8"),
        ({"policy": {"device": "cuda:0"}}, 2, "policy.device = 'cuda:0'"),
    ],
)
def test_a_batch_that_cannot_be_split_is_refused(
    tables: dict[str, Any], size: int, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        refuse_processes(tiny_config(**tables), size)


def test_a_batch_that_can_be_split_is_not_refused() -> None:
    refuse_processes(tiny_config(), 2)
    refuse_processes(tiny_config(slow={"micro_batch": 16}), 4)  # one micro-batch a process


def test_shares_are_disjoint_and_whole() -> None:
    rows = list(range(7))
    shares = [rows[Ranks(rank, 3).share()] for rank in range(3)]
    assert sorted(row for share in shares for row in share) == rows
