"""Whole runs with DAPO's dynamic sampling."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fst_core.config import RunConfig
from fst_core.interleave import interleave
from fst_core.journal import Event, comparable, read_events
from fst_core.session import Session
from tests.runs import run, tiny_config

COUNTS = ("slow/replaced_groups", "slow/replaced_rollouts")


def config_of(cycle: int = 4, **slow: Any) -> RunConfig:
    return tiny_config(
        fast={"type": "gepa", "metric_calls": 24},
        environment={"type": "directives", "task": "echo", "required": []},
        loop={"steps": 4, "cycle_steps": cycle},
        slow={"type": "dapo", "learning_rate": 1e-3, "warmup_steps": 1, "micro_batch": 8, **slow},
    )


def whole(config: RunConfig, folder: Path) -> tuple[list[Event], dict[str, torch.Tensor], Session]:
    """The journal, the weights at the end and the session of a run."""
    with Session(config, folder) as session:
        interleave(session)
        weights = {n: v.detach().clone() for n, v in session.policy.model.state_dict().items()}
    return read_events(folder / "journal.jsonl"), weights, session


def slow_metrics(events: list[Event]) -> list[dict[str, float]]:
    return [event["metrics"] for event in events if event["kind"] == "slow"]


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_no_resampling_is_the_run_without_the_setting(tmp_path: Path) -> None:
    plain, plain_weights, _ = whole(config_of(), tmp_path / "plain")
    none, none_weights, _ = whole(config_of(max_resamples=0), tmp_path / "none")
    assert comparable(none) == comparable(plain)
    assert same(none_weights, plain_weights)


def test_where_nothing_can_be_drawn_it_is_the_run_without_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So rollouts that are drawn before TRL asks for them are those that it asks for."""
    plain, plain_weights, _ = whole(config_of(), tmp_path / "plain")
    monkeypatch.setattr("fst_core.curriculum.problems.Problems.further", lambda *_: {})
    none, none_weights, _ = whole(config_of(max_resamples=2), tmp_path / "none")
    for ours, theirs in zip(slow_metrics(none), slow_metrics(plain), strict=True):
        assert [ours.pop(name) for name in COUNTS] == [0, 0]
        assert ours == theirs
    assert same(none_weights, plain_weights)
    assert none[-1]["ledger"] == plain[-1]["ledger"]


class Stop(Exception):
    pass


def stop_at_step_3(event: Event) -> None:
    if event["kind"] == "slow" and event["step"] == 3:
        raise Stop


def test_batches_are_full_as_far_as_problems_go_and_every_draw_is_counted(tmp_path: Path) -> None:
    config = config_of(cycle=2, max_resamples=3)
    events, _, session = whole(config, tmp_path / "whole")
    steps = slow_metrics(events)
    replaced = [metrics["slow/replaced_groups"] for metrics in steps]
    assert max(replaced) > 0
    # A cycle of two steps has 4 other problems for each; a batch with equal groups has met all.
    assert all(m["slow/zero_variance_frac"] == 0 or m[COUNTS[0]] == 4 for m in steps)
    assert any(m["slow/zero_variance_frac"] == 0 and m[COUNTS[0]] > 0 for m in steps)
    assert all(m["slow/replaced_rollouts"] == 4 * m["slow/replaced_groups"] for m in steps)

    ledger, engines = session.ledger, (session.policy.engine, session.policy.frozen.engine)
    assert ledger.slow_rollouts == 4 * 16 + 4 * sum(replaced)
    assert sum(engine.rollouts for engine in engines) == (
        ledger.slow_rollouts + ledger.fast_rollouts + ledger.evaluation_rollouts
    )
    assert sum(engine.calls for engine in engines) == ledger.generate_calls

    with pytest.raises(Stop):
        run(config, tmp_path / "pieces", stop_at_step_3)
    assert comparable(run(config, tmp_path / "pieces")) == comparable(events)
