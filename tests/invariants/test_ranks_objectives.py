"""Objectives on two processes are those of one: unequal pieces, dropped groups, given answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from fst_core.journal import read_events
from tests.bench.cards import SLOW_ONLY, launch

RUN = ["--", "run", "configs/tiny/smoke.toml", "--arm", "rl", "--no-track"]
FEW_STEPS = [
    *SLOW_ONLY,
    "loop.steps=4",
    "loop.problems_per_step=8",
    "environment.required=[]",
    "policy.max_new_tokens=20",
]

SAME = ("slow/loss", "slow/grad_norm", "slow/reward", "slow/zero_variance_frac")


def steps(runs: Path, processes: int, slow: dict[str, Any]) -> list[dict[str, float]]:
    """The metrics of every slow step."""
    shared = {"learning_rate": 1e-3, "warmup_steps": 1, "micro_batch": 8}
    settings = [*FEW_STEPS, f"slow={json.dumps({**shared, **slow})}"]
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = launch([*RUN, "--runs", str(runs), *chosen], processes=processes, seconds=200)
    assert done.returncode == 0, done.stderr[-3000:]
    events = read_events(runs / "smoke" / "rl-s0" / "journal.jsonl")
    return [event["metrics"] for event in events if event["kind"] == "slow"]


@pytest.mark.parametrize(
    "slow",
    [
        {"type": "grpo", "zero_variance": "drop", "token_budget": 150, "beta": 0.0},
        {"type": "hpt"},
        {"type": "dapo", "max_resamples": 3},
    ],
    ids=lambda slow: str(slow["type"]),
)
def test_two_processes_take_the_steps_of_one(tmp_path: Path, slow: dict[str, Any]) -> None:
    one, two = steps(tmp_path / "1", 1, slow), steps(tmp_path / "2", 2, slow)
    assert len(one) == 4 and max(m["slow/grad_norm"] for m in one) > 0.05
    for ours, theirs in zip(one, two, strict=True):
        assert theirs.keys() == ours.keys()
        for name in {*SAME, "slow/replaced_groups"} & ours.keys():
            assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-5)
    drawn_anew = max(m.get("slow/replaced_groups", 0) for m in one)
    assert bool(drawn_anew) == (slow["type"] == "dapo")
