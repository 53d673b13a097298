"""The engine with static cells and captured decode steps, run uncaptured: equal to the plain one.

What only a GPU can show is checked by `fst bench --only generation` (capture, agreement with the
trainer) and `tests/bench/draw.py` (the drawing kernel).
"""

import pytest
import torch

from fst_core.config import TinyPolicy
from fst_core.config.model import ConfigError
from fst_core.policy import graph_engine, noise
from fst_core.policy.base import ContextTooLong, Sampling
from fst_core.policy.engines import make_engine
from fst_core.policy.graph_engine import GraphEngine, bucket, why_not
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.memory import MemoryFull
from fst_core.policy.transformers_engine import TransformersEngine


@pytest.fixture(scope="module")
def policy() -> LanguageModelPolicy:
    torch.set_num_threads(1)
    return LanguageModelPolicy(TinyPolicy())


def engine_of(policy: LanguageModelPolicy, batch_size: int = 256) -> GraphEngine:
    engine = GraphEngine(policy.model, policy.tokenizer, policy.stop_ids, batch_size, torch.float32)
    engine.sync(0)
    return engine


@pytest.fixture(scope="module")
def engine(policy: LanguageModelPolicy) -> GraphEngine:
    return engine_of(policy)


def prompts(policy: LanguageModelPolicy, *repeats: int) -> list[list[int]]:
    return [
        policy.prompt_ids(
            [{"role": "system", "content": "Be brief. " * n}, {"role": "user", "content": "Say b."}]
        )
        for n in repeats
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("limit", [1, 2, 5, 24])
def test_equal_to_the_plain_engine(
    policy: LanguageModelPolicy, engine: GraphEngine, limit: int, temperature: float
) -> None:
    rows = prompts(policy, *[1, 7, 2, 2, 30, 1] * 11)
    sampling = Sampling(temperature, limit)
    plain = policy.engine.generate(rows, range(66), sampling)
    ours = engine.generate(rows, range(66), sampling)
    for a, b in zip(plain, ours, strict=True):
        assert (a.token_ids, a.text, a.stop_reason, a.prompt_tokens) == (
            b.token_ids,
            b.text,
            b.stop_reason,
            b.prompt_tokens,
        )
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_rows_that_go_on_move_together(
    policy: LanguageModelPolicy, engine: GraphEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda s: (sizes.append(s), step(s)))
    engine.generate(prompts(policy, *range(1, 65)), range(64), Sampling(1.0, 40))
    assert sizes[0] == 64 and sizes[-1] < 64 and sizes == sorted(sizes, reverse=True)


def test_small_batches_change_nothing(policy: LanguageModelPolicy, engine: GraphEngine) -> None:
    rows = prompts(policy, *[1, 3, 2, 5, 4] * 4)
    few = engine_of(policy, batch_size=3).generate(rows, range(20), Sampling(1.0, 20))
    whole = engine.generate(rows, range(20), Sampling(1.0, 20))
    assert [c.token_ids for c in few] == [c.token_ids for c in whole]


def test_calls_of_other_shapes_in_between_change_nothing(
    policy: LanguageModelPolicy, engine: GraphEngine
) -> None:
    rows = prompts(policy, 1, 2, 3)
    before = engine.generate(rows, range(3), Sampling(1.0, 12))
    engine.generate(prompts(policy, *[40] * 70), range(70), Sampling(1.5, 50))
    assert engine.generate(rows, range(3), Sampling(1.0, 12)) == before


def test_equal_prompts_are_read_once(
    policy: LanguageModelPolicy, engine: GraphEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, ...]] = []
    body = engine.decoder.read
    monkeypatch.setattr(
        engine.decoder, "read", lambda i, p: (read.append(tuple(i.shape)), body(i, p))[1]
    )
    rows = prompts(policy, 1, 2) * 8
    engine.generate(rows, range(16), Sampling(1.0, 1))
    assert read == [(2, len(rows[1]))]


def test_weights_are_copied_once_per_version(policy: LanguageModelPolicy) -> None:
    engine = engine_of(policy)
    rows = prompts(policy, *[1] * 16)
    before = engine.generate(rows, range(16), Sampling(1.0, 8))
    weight = policy.model.get_output_embeddings().weight
    old = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(0.5)
        engine.sync(0)
        assert engine.generate(rows, range(16), Sampling(1.0, 8)) == before
        engine.sync(1)
        fresh = engine.generate(rows, range(16), Sampling(1.0, 8))
        assert fresh != before
        plain = policy.engine.generate(rows, range(16), Sampling(1.0, 8))
        assert [c.token_ids for c in fresh] == [c.token_ids for c in plain]
        engine.sync(1)
        assert engine.syncs == 2
    finally:
        with torch.no_grad():
            weight.copy_(old)


def test_training_tensors_are_left_alone(policy: LanguageModelPolicy, engine: GraphEngine) -> None:
    assert not {p.data_ptr() for p in engine.twin.parameters()} & {
        p.data_ptr() for p in policy.model.parameters()
    }
    assert all(p.requires_grad for p in policy.model.parameters())
    assert policy.model.config._attn_implementation == "sdpa"


def test_a_prompt_past_the_window_is_refused(
    policy: LanguageModelPolicy, engine: GraphEngine
) -> None:
    with pytest.raises(ContextTooLong, match="passes the model's window of"):
        engine.generate([[1] * policy.window], [0], Sampling(1.0, 1))


def test_out_of_memory_halves_the_batch_once(
    policy: LanguageModelPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(policy)
    rows = prompts(policy, *range(1, 17))
    whole = engine.generate(rows, range(16), Sampling(1.0, 6))
    batch = engine._draw_batch

    def short_of_memory(texts: list[list[int]], *rest: object) -> object:
        if len(texts) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch(texts, *rest)  # type: ignore[arg-type]

    engine.batch_size = 16
    monkeypatch.setattr(engine, "_draw_batch", short_of_memory)
    halved = engine.generate(rows, range(16), Sampling(1.0, 6))
    assert [c.token_ids for c in halved] == [c.token_ids for c in whole]
    engine.batch_size = 64
    with pytest.raises(MemoryFull, match=r"policy\.batch_size"):
        engine.generate(rows, range(16), Sampling(1.0, 6))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gemma2"}, "gemma2 is not among"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"hidden_act": "gelu"}, "its activation is gelu"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of each head"),
    ],
)
def test_models_it_cannot_serve_are_refused(
    policy: LanguageModelPolicy,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object],
    reason: str,
) -> None:
    assert why_not(policy.model) is None
    for key, value in change.items():
        monkeypatch.setattr(policy.model.config, key, value, raising=False)
    config = TinyPolicy(engine="graph")
    with pytest.raises(ConfigError, match=reason):
        make_engine(config, policy.model, policy.tokenizer, policy.stop_ids)


def test_auto_on_a_cpu_is_the_plain_engine(policy: LanguageModelPolicy) -> None:
    for engine, kind in (("auto", TransformersEngine), ("graph", GraphEngine)):
        config = TinyPolicy.model_validate({"engine": engine, "device": "cpu"})
        made = make_engine(config, policy.model, policy.tokenizer, policy.stop_ids)
        assert isinstance(made, kind)


def test_buckets() -> None:
    assert [bucket(n) for n in (1, 8, 9, 64, 65, 300)] == [8, 8, 16, 64, 128, 512]


def test_noise_takes_its_position_as_a_tensor() -> None:
    seeds = noise.seed_tensor([5, 1 << 40], torch.device("cpu"))
    assert torch.equal(noise.gumbel(seeds, 9, 100), noise.gumbel(seeds, torch.tensor(9), 100))


def test_prompts_are_read_in_passes_of_bounded_size(
    policy: LanguageModelPolicy, engine: GraphEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = prompts(policy, *range(1, 21))
    whole = engine.generate(rows, range(20), Sampling(1.0, 6))
    monkeypatch.setattr(graph_engine, "PREFILL_TOKENS", 100)
    parts = engine.generate(rows, range(20), Sampling(1.0, 6))
    assert [c.token_ids for c in parts] == [c.token_ids for c in whole]


class TriesOut(GraphEngine):
    """The engine with a capture's trial steps, which only a GPU takes otherwise."""

    def _step(self, size: int) -> None:
        before = [tensor.clone() for tensor in self.rows.changing()]
        for _ in range(2):
            self._decode(size)
        for tensor, old in zip(self.rows.changing(), before, strict=True):
            tensor.copy_(old)
        self._decode(size)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
def test_a_step_can_be_tried_out_wherever_it_is_first_taken(
    policy: LanguageModelPolicy, limit: int
) -> None:
    engine = TriesOut(policy.model, policy.tokenizer, policy.stop_ids, 256, torch.float32)
    engine.sync(0)
    rows, sampling = prompts(policy, 1, 7, 2), Sampling(1.0, limit)
    plain = policy.engine.generate(rows, range(3), sampling)
    tried = engine.generate(rows, range(3), sampling)
    assert [done.token_ids for done in tried] == [done.token_ids for done in plain]
