"""Whole runs whose contexts are made of several components."""

from pathlib import Path
from typing import Any

import pytest

from fst_core.checkpoint import list_checkpoints, read_state
from fst_core.config import RunConfig
from fst_core.interleave import interleave
from fst_core.journal import comparable, read_events
from fst_core.session import Session
from tests.runs import run, tiny_config

PARTS = {"role": "You are a helpful assistant.", "format": "Answer the question."}


def config() -> RunConfig:
    return tiny_config(
        environment={"type": "directives", "task": "echo", "required": ["answer-tag", "dashes"]},
        policy={"type": "tiny", "max_new_tokens": 14},
        contexts={"components": PARTS, "size": 2},
        loop={"problems_per_step": 8},
        fast={"metric_calls": 300, "anchors": 8, "merge": True},
    )


class Stop(Exception):
    pass


def stop_at_step_3(event: dict[str, Any]) -> None:
    if event["kind"] == "slow" and event["step"] == 3:
        raise Stop


def test_in_two_pieces_it_is_the_same_run_and_the_engine_counts_what_the_ledger_counts(
    tmp_path: Path,
) -> None:
    with Session(config(), tmp_path / "whole") as session:
        interleave(session)
        ledger, engines = session.ledger, (session.policy.engine, session.policy.frozen.engine)
    whole = read_events(tmp_path / "whole" / "journal.jsonl")
    assert sum(engine.rollouts for engine in engines) == (
        ledger.slow_rollouts + ledger.fast_rollouts + ledger.evaluation_rollouts
    )
    assert sum(engine.calls for engine in engines) == ledger.generate_calls
    phases = [event["evolution"] for event in whole if event["kind"] == "fast"]
    assert ledger.fast_rollouts == sum(phase["metric_calls"] for phase in phases)
    tried = sum(phase["metrics"]["fast/merges_tried"] for phase in phases)
    assert tried > sum(phase["rejected"].get("repeated", 0) for phase in phases), "all were free"

    with pytest.raises(Stop):
        run(config(), tmp_path / "pieces", stop_at_step_3)
    first = read_state(list_checkpoints(tmp_path / "pieces" / "checkpoints")[-1]).population
    assert all(tuple(dict(c.parts)) == tuple(PARTS) for c in first.contexts)
    pieces = run(config(), tmp_path / "pieces")
    assert comparable(pieces) == comparable(whole)
