"""vLLM in this process: honest log-probabilities, weights handed over, contexts kept apart."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fst_core.policy import vllm_engine
from fst_core.policy.base import ContextTooLong, EngineError, Sampling
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.vllm_engine import Loaded, VllmEngine
from fst_core.records import StopReason
from tests.runs import run, tiny_config
from tests.vllm.conftest import GAP, ON_GPU, chats, gap, perturb, policy_of, settings_of

ONLY_ON_GPU: list[dict[str, Any]] = [
    {"enforce_eager": False},  # CUDA graphs keep their addresses
    {"sleep": "level1"},
    {"sleep": "level2"},
]
WAYS = [{"enforce_eager": True}, *(ONLY_ON_GPU if ON_GPU else [])]
CONTEXTS = ["Be brief.", "Use capital letters. Be brief.", "Use capital letters. " * 5, ""]


@pytest.fixture
def policy(tied_llama: Path) -> LanguageModelPolicy:
    """Fresh weights; vLLM itself is loaded once for all tests."""
    return policy_of(tied_llama)


def engine_of(policy: LanguageModelPolicy) -> VllmEngine:
    assert isinstance(policy.engine, VllmEngine)
    return policy.engine


def test_completions_have_the_shape_of_the_protocol(policy: LanguageModelPolicy) -> None:
    rows = chats(policy, CONTEXTS) * 16
    done = policy.generate(rows, range(64), Sampling(1.0, 40))
    stopped = [c for c in done if c.stop_reason is StopReason.STOP]
    assert stopped and all(c.token_ids[-1] in policy.stop_ids for c in stopped)
    assert all(not policy.stop_ids & set(c.token_ids[:-1]) for c in done)
    assert {len(c.token_ids) for c in done if c.stop_reason is StopReason.LENGTH} == {40}
    assert all(len(c.token_ids) == len(c.logprobs) for c in done)
    assert [c.prompt_tokens for c in done] == [len(r) for r in rows]
    engine = engine_of(policy)
    assert (engine.calls, engine.rollouts) == (1, 64)
    assert engine.tokens == sum(len(c.token_ids) for c in done)
    assert policy.generate([], []) == []


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_log_probabilities_are_those_at_the_temperature(
    policy: LanguageModelPolicy, temperature: float
) -> None:
    rows = chats(policy, CONTEXTS)
    done = policy.generate(rows, range(4), Sampling(temperature, 12))
    assert gap(policy.model, rows, done, temperature) < GAP
    assert gap(policy.model, rows, done, temperature * 2) > GAP


def test_draws_are_the_same_where_no_log_probability_is_asked_for(
    policy: LanguageModelPolicy,
) -> None:
    rows = chats(policy, CONTEXTS) * 4
    silent = policy.generate(rows, range(16), Sampling(1.0, 12, logprobs=False))
    asked = policy.generate(rows, range(16), Sampling(1.0, 12))
    assert [c.token_ids for c in silent] == [c.token_ids for c in asked]
    assert {c.logprobs for c in silent} == {()}


def test_draws_depend_on_their_own_seed_alone(policy: LanguageModelPolicy) -> None:
    rows = chats(policy, CONTEXTS)
    alone = policy.generate([rows[0]], [7])[0]
    crowd = policy.generate([*rows, rows[0], rows[0]], [1, 2, 3, 4, 7, 1 << 62])
    assert alone.token_ids == crowd[4].token_ids
    assert len({c.token_ids for c in crowd}) == 6


def test_every_row_of_a_group_has_its_own_context(policy: LanguageModelPolicy) -> None:
    rows = [row for row in chats(policy, CONTEXTS) for _ in range(2)]
    done = policy.generate(rows, range(8))
    assert gap(policy.model, rows, done) < GAP
    assert gap(policy.model, [rows[0]] * 8, done) > GAP


def test_a_new_version_is_handed_over_once(policy: LanguageModelPolicy) -> None:
    rows, engine = chats(policy, CONTEXTS), engine_of(policy)
    old = policy_of(policy.path).model
    assert gap(old, rows, policy.generate(rows, range(4))) < GAP
    perturb(policy.model)
    assert gap(old, rows, policy.generate(rows, range(4))) < GAP
    assert engine.syncs == 1
    policy.version = 1
    for seeds in (range(4), range(4, 8)):
        done = policy.generate(rows, seeds)
        assert gap(policy.model, rows, done) < GAP
        assert gap(old, rows, done) > GAP
    assert engine.syncs == 2 and engine.sync_seconds > 0


@pytest.mark.parametrize("settings", WAYS)
def test_every_way_to_set_vllm_up_takes_new_weights(
    tied_llama: Path, settings: dict[str, Any]
) -> None:
    policy = policy_of(tied_llama, **settings)
    rows = chats(policy, CONTEXTS)
    for policy.version in range(3):
        for seeds in (range(4), range(4, 8)):
            assert gap(policy.model, rows, policy.generate(rows, seeds)) < GAP
        perturb(policy.model)


def test_prefixes_cached_under_older_weights_are_forgotten(
    policy: LanguageModelPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = chats(policy, ["Use capital letters. " * 60])  # more than a block of the cache
    policy.generate(rows, [1])
    perturb(policy.model)
    policy.version = 1
    assert gap(policy.model, rows, policy.generate(rows, [1])) < GAP
    monkeypatch.setattr(engine_of(policy).loaded.llm, "reset_prefix_cache", lambda: True)
    perturb(policy.model)
    policy.version = 2
    assert gap(policy.model, rows, policy.generate(rows, [1])) > GAP


def test_weights_are_not_used_beside_prefixes_that_stay(
    policy: LanguageModelPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_of(policy).loaded.llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(EngineError, match="did not forget"):
        policy.generate(chats(policy, CONTEXTS), range(4))
    monkeypatch.undo()
    rows = chats(policy, CONTEXTS)
    assert gap(policy.model, rows, policy.generate(rows, range(4))) < GAP


def test_the_policy_and_its_frozen_base_take_turns(policy: LanguageModelPolicy) -> None:
    rows = chats(policy, CONTEXTS)
    perturb(policy.model)
    for _ in range(2):
        assert gap(policy.model, rows, policy.generate(rows, range(4))) < GAP
        assert gap(policy.base, rows, policy.frozen.generate(rows, range(4))) < GAP


def test_too_long_a_prompt_is_refused_by_the_key_it_passes(policy: LanguageModelPolicy) -> None:
    rows = chats(policy, ["Be brief."])
    with pytest.raises(ContextTooLong, match=r"lower contexts\.max_tokens"):
        policy.generate(rows, [1], Sampling(1.0, 512))
    engine = engine_of(policy)
    engine.window, engine.limit = len(rows[0]) + 11, "policy.vllm.max_model_len"
    with pytest.raises(ContextTooLong, match=r"policy\.vllm\.max_model_len = \d+; raise it"):
        policy.generate(rows, [1])
    with pytest.raises(ValueError, match="1 prompts but 2 seeds"):
        policy.generate(rows, [1, 2])


def test_what_vllm_cannot_serve_is_told_in_a_sentence(tied_llama: Path) -> None:
    with pytest.raises(EngineError, match=r"vLLM cannot serve .*; see policy\.vllm"):
        policy_of(tied_llama, max_model_len=100_000)


class Recorded:
    """Stands for vLLM where a CPU cannot: a CPU does not sleep."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self) -> None:
        self.calls.append("wake up")

    def collective_rpc(self, method: str, kwargs: dict[str, object]) -> None:
        self.calls.append(method)

    def apply_model(self, function: object) -> None: ...

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True

    def generate(self, rows: list, settings: list, use_tqdm: bool) -> list:
        self.calls.append("generate")
        told = None if settings[0].logprobs is None else SimpleNamespace(logprobs=[-1.0])
        drawn = SimpleNamespace(token_ids=[5], logprobs=told)
        return [SimpleNamespace(outputs=[drawn]) for _ in rows]


TAKE_OVER = ["reload_weights", "reset"]


@pytest.mark.parametrize(
    ("sleep", "second", "third"),
    [
        ("off", ["generate"], [*TAKE_OVER, "generate"]),
        (
            "level1",
            ["wake up", "generate", "sleep 1"],
            ["wake up", *TAKE_OVER, "generate", "sleep 1"],
        ),
        (
            "level2",
            ["wake up", *TAKE_OVER, "generate", "sleep 2"],
            ["wake up", *TAKE_OVER, "generate", "sleep 2"],
        ),
    ],
)
def test_vllm_wakes_before_a_call_and_lost_weights_are_handed_over_again(
    tied_llama: Path,
    sleep: str,
    second: list[str],
    third: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = Recorded()
    monkeypatch.setattr(vllm_engine, "load", lambda *_: Loaded(llm))
    policy = policy_of(tied_llama, sleep=sleep)
    rows = chats(policy, ["Be brief."])
    policy.generate(rows, [1])
    for version, expected in ((0, second), (1, third)):
        policy.version = version
        llm.calls.clear()
        policy.generate(rows, [1])
        assert llm.calls == expected


def test_a_run_generates_with_vllm_alone(tied_llama: Path, tmp_path: Path) -> None:
    events = run(tiny_config(policy=settings_of(tied_llama)), tmp_path)
    assert events[-1]["kind"] == "end"
    assert sum(e["kind"] == "slow" for e in events) == 4
