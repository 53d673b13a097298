"""Slow rollouts that reflection reads again: only fresh ones, never a score, never paid for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fst_core.checkpoint import State, list_checkpoints, read_state, write_checkpoint
from fst_core.config.fast import GepaConfig
from fst_core.fast.gepa import GepaFast
from fst_core.fast.reflection import Job, Proposal
from fst_core.interleave import interleave
from fst_core.journal import comparable, read_events
from fst_core.records import Completion, Context, Rollout, StopReason, Verdict, seeded
from fst_core.rollouts import readable
from fst_core.session import Session
from tests.runs import run, tiny_config
from tests.unit.simulated import Simulated, count_words, random_words

SEED = "You are a helpful assistant."
CYCLES: dict[str, Any] = {"loop": {"steps": 6, "cycle_steps": 3}, "evaluation": {"every": 0}}


class Kept:
    """A reflection that proposes nothing new and keeps the jobs."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.usage: dict[str, float] = {}

    def propose(self, jobs: Sequence[Job]) -> list[Proposal]:
        self.jobs += jobs
        return [Proposal(None, "none") for _ in jobs]


def slow_rollout(number: int, context: str, reward: float, version: int = 0) -> Rollout:
    done = Completion((1, 2), (-0.5, -0.1), f"slow {number}", StopReason.STOP, 3)
    verdict = Verdict(reward, () if reward else ("Bow first.",))
    return Rollout(f"p{number}", Context(context).id, done, verdict, version, f"Q{number}?")


def test_reflection_reads_recent_rollouts_which_cost_and_score_nothing() -> None:
    recent = [
        *(slow_rollout(n, SEED, 0.0) for n in range(8)),
        *(slow_rollout(n, "Another context.", 0.0) for n in range(8, 16)),
        *(slow_rollout(n, SEED, 1.0) for n in range(16, 20)),
    ]
    found = {}
    for label, rollouts in (("without", []), ("with", recent)):
        policy, reflection = Simulated(tuple(random_words(1, 2))), Kept()
        part = GepaFast(GepaConfig(metric_calls=100), policy, reflection, 3, 1, 200, count_words)
        found[label] = (
            part.evolve(seeded(SEED, 1), policy.problems(20), 0, rollouts),
            reflection.jobs,
            policy.rollouts,
        )
    (plain, jobs_without, cost), (reusing, jobs, same_cost) = found["without"], found["with"]
    assert cost == same_cost == reusing.metric_calls
    assert reusing.candidates == plain.candidates
    assert (plain.reused, reusing.reused) == (0, 20)
    for job, before in zip(jobs, jobs_without, strict=True):
        added = job.examples[len(before.examples) :]
        assert job.examples[: len(before.examples)] == before.examples
        assert {e.problem for e in added} <= {f"Q{n}?" for n in range(8)} and len(added) == 4
        assert all(e.reward == 0 and e.feedback == ("Bow first.",) for e in added)
        extra = {e.response for e in job.rewarded} - {e.response for e in before.rewarded}
        assert extra == {f"slow {n}" for n in range(16, 20)}
    assert len({job.examples for job in jobs}) > 1, "every job draws its own"


def test_only_rollouts_that_are_fresh_enough_are_kept_and_without_tokens() -> None:
    rollouts = [slow_rollout(v, SEED, 1.0, version=v) for v in range(5)]
    assert readable(rollouts, 5, 0) == ()
    kept = readable(rollouts, 5, 2)
    assert [r.policy_version for r in kept] == [3, 4]
    assert all(r.completion.token_ids == () == r.completion.logprobs for r in kept)
    assert [r.completion.text for r in kept] == ["slow 3", "slow 4"]


@pytest.mark.parametrize(("reuse", "steps"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_a_run_counts_what_the_second_fast_phase_could_read(
    tmp_path: Path, reuse: int, steps: int
) -> None:
    config = tiny_config(fast={"reuse": reuse}, **CYCLES)
    events = run(config, tmp_path / "run")
    fast = [event["evolution"] for event in events if event["kind"] == "fast"]
    assert [evolution["reused"] for evolution in fast] == [0, steps * 16]
    ledger = events[-1]["ledger"]
    assert ledger["slow_rollouts"] == 6 * 16
    assert ledger["fast_rollouts"] == sum(evolution["metric_calls"] for evolution in fast)


def test_a_resumed_run_reads_the_same_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies in the second fast phase, goes on in another session, ends as if undisturbed."""
    config = tiny_config(fast={"reuse": 2}, **CYCLES)
    run(config, tmp_path / "straight")
    evolve = GepaFast.evolve

    def dying(self: GepaFast, population: Any, problems: Any, cycle: int, recent: Any = ()) -> Any:
        if cycle == 1:
            raise KeyboardInterrupt
        return evolve(self, population, problems, cycle, recent)

    with monkeypatch.context() as patched:
        patched.setattr(GepaFast, "evolve", dying)
        with (
            pytest.raises(KeyboardInterrupt),
            Session(config, tmp_path / "resumed") as session,
        ):
            interleave(session)
    run(config, tmp_path / "resumed")
    ours, theirs = (
        comparable(read_events(tmp_path / name / "journal.jsonl"))
        for name in ("resumed", "straight")
    )
    assert ours == theirs
    states = [
        read_state(list_checkpoints(tmp_path / name / "checkpoints")[-1])
        for name in ("resumed", "straight")
    ]
    assert states[0].population == states[1].population
    assert states[0].recent == states[1].recent and len(states[0].recent) == 32


def test_a_checkpoint_keeps_them(tmp_path: Path) -> None:
    recent = tuple(slow_rollout(n, SEED, n % 2, version=n) for n in range(3))
    state = State(3, 2, 9, seeded(SEED, 2), {"slow_rollouts": 3}, "hash", recent)
    path = write_checkpoint(tmp_path, state, None, keep=1)
    assert read_state(path) == state
    assert read_state(write_checkpoint(tmp_path, replace(state, recent=()), None, 1)).recent == ()
