"""What holds of every registered method, by its registry line alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fst_core.config import RunConfig
from fst_core.interleave import SlowPhase, interleave, remaining, run_phase
from fst_core.journal import comparable, effective, read_events
from fst_core.methods import CURRICULUM, FAST, RETENTION, SLOW, load
from fst_core.policy.base import Engine, Sampling
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import Completion
from fst_core.session import Session
from tests.runs import TINY, run, tiny_config

GRADIENT = {"learning_rate": 1e-3, "warmup_steps": 1, "micro_batch": 16}
TASK = TINY["environment"]
OTHER = {**TASK, "name": "other", "required": ["brackets"]}
TWO = {"tasks": [{**TASK, "name": "one"}, OTHER]}

FAST_NAMES = sorted(set(FAST) - {"none"})
SLOW_NAMES = sorted(set(SLOW) - {"none"})
IN_STREAM = sorted(name for name in RETENTION if load(RETENTION[name].settings).place == "stream")
LOSSES = sorted(set(RETENTION) - set(IN_STREAM))


def with_fast(name: str, **tables: Any) -> RunConfig:
    fast = {} if name == "gepa" else {"fast": {"type": name}}
    return tiny_config(**{**fast, **tables})


def with_slow(name: str, **tables: Any) -> RunConfig:
    return tiny_config(slow={"type": name, **GRADIENT}, **tables)


def with_curriculum(name: str) -> RunConfig:
    mixture = (
        {"environment": {"type": "mixture", **TWO}} if name in ("dump", "easy_to_hard") else {}
    )
    return tiny_config(curriculum={"type": name}, **mixture)


def with_retention(name: str) -> RunConfig:
    sequence = {"type": "sequence", "task_steps": 2, **TWO}
    return tiny_config(retention=[{"type": name}], environment=sequence)


CONFIGS = {
    **{f"fast {name}": with_fast(name) for name in FAST_NAMES},
    **{f"slow {name}": with_slow(name) for name in SLOW_NAMES},
    **{f"curriculum {name}": with_curriculum(name) for name in CURRICULUM},
    **{f"retention {name}": with_retention(name) for name in RETENTION},
}
each = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def weights(session: Session) -> dict[str, torch.Tensor]:
    assert isinstance(session.policy, LanguageModelPolicy)
    return {name: t.clone() for name, t in session.policy.model.state_dict().items()}


@each
def test_the_engine_counts_what_the_ledger_counts(config: RunConfig, tmp_path: Path) -> None:
    with Session(config, tmp_path) as session:
        interleave(session)
        ledger, policy = session.ledger, session.policy
        assert isinstance(policy, LanguageModelPolicy)
        engines = (policy.engine, policy.frozen.engine)
    counted = ledger.slow_rollouts + ledger.fast_rollouts + ledger.evaluation_rollouts
    assert sum(engine.rollouts for engine in engines) == counted
    assert sum(engine.calls for engine in engines) == ledger.generate_calls
    assert ledger.slow_rollouts == config.loop.steps * config.slow.rollouts(config)
    events = read_events(tmp_path / "journal.jsonl")
    searched = [e["evolution"]["metric_calls"] for e in events if e["kind"] == "fast"]
    assert sum(searched) == ledger.fast_rollouts
    batch = config.loop.cycle_steps * config.loop.problems_per_step
    assert all(calls <= config.fast.bounds(batch, config).rollouts for calls in searched)


def sparing(engine: Engine) -> None:
    """Have an engine leave out the log-probabilities that nobody asked for, as vLLM does."""
    draw = engine.generate

    def generate(prompts: Any, seeds: Any, sampling: Sampling) -> list[Completion]:
        done = draw(prompts, seeds, sampling)
        return done if sampling.logprobs else [replace(c, logprobs=()) for c in done]

    engine.generate = generate  # type: ignore[method-assign]


@each
def test_a_run_in_two_processes_is_the_run_in_one(config: RunConfig, tmp_path: Path) -> None:
    """The same seed, the same result; and a run that stopped half-way goes on as if it had not.

    Its engine gives fewer log-probabilities: nobody reads what was not asked for.
    """
    config = config.model_copy(
        update={"checkpoint": config.checkpoint.model_copy(update={"every_cycles": 1})}
    )
    with Session(config, tmp_path / "once") as session:
        interleave(session)
        whole = weights(session)
    for _ in range(2):
        with Session(config, tmp_path / "twice") as session:
            assert isinstance(session.policy, LanguageModelPolicy)
            sparing(session.policy.engine)
            for number, phase in enumerate(remaining(session)):
                run_phase(session, phase)
                if number == 3:
                    break
    with Session(config, tmp_path / "twice") as session:
        interleave(session)
        pieces = weights(session)
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)
    once, twice = (
        comparable(effective(read_events(tmp_path / name / "journal.jsonl")))
        for name in ("once", "twice")
    )
    kinds = ("fast", "slow", "evaluation")
    assert [e for e in twice if e["kind"] in kinds] == [e for e in once if e["kind"] in kinds]


@pytest.mark.parametrize("name", sorted(set(FAST_NAMES) - {"espl"}))
def test_a_fast_part_alone_leaves_the_weights(name: str, tmp_path: Path) -> None:
    with Session(with_fast(name, slow={"type": "none"}), tmp_path) as session:
        before = weights(session)
        interleave(session)
        after = weights(session)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_fast_part_that_lives_on_slow_rollouts_touches_no_weights(tmp_path: Path) -> None:
    moved = set()
    with Session(with_fast("espl", environment={"required": []}), tmp_path) as session:
        for phase in remaining(session):
            before = weights(session)
            run_phase(session, phase)
            if any(not torch.equal(before[k], w) for k, w in weights(session).items()):
                moved.add(type(phase))
    assert moved == {SlowPhase}


@pytest.mark.parametrize("name", sorted(set(SLOW_NAMES) - {"distill"}))
def test_a_slow_part_needs_no_fast_one(name: str, tmp_path: Path) -> None:
    events = run(with_slow(name, fast={"type": "none"}), tmp_path)
    assert [e["step"] for e in events if e["kind"] == "slow"] == [1, 2, 3, 4]
