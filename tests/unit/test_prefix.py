"""Prefixes read once: what is shared, and that nothing but the work changes."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from fst_core.config import TinyPolicy
from fst_core.policy.base import Sampling
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.locate import TINY
from fst_core.policy.prefix import (
    behind_prefixes,
    common_prefixes,
    outlasts_launches,
    positions,
    shares,
)
from fst_core.policy.transformers_engine import TransformersEngine, left_pad

A, B = list(range(10, 40)), list(range(50, 75))
"""Two contexts."""


def prefixes_of(rows: Sequence[Sequence[int]], more: int = 0) -> list[tuple[int, ...]] | None:
    """What is read in front of every row, by hand's reach."""
    found = common_prefixes(*left_pad(rows, 0, torch.device("cpu")), more)
    if found is None:
        return None
    return [tuple(found.ids_PT[p][found.mask_PT[p] == 1].tolist()) for p in found.of_B.tolist()]


def test_each_context_is_read_once() -> None:
    rows = [[*A, 1, 2], [*B, 3], [*A, 4], [*B, 5, 6, 7], [*A, 1, 2]]
    assert prefixes_of(rows) == [tuple(A), tuple(B), tuple(A), tuple(B), tuple(A)]


def test_equal_rows_leave_a_token_to_be_read() -> None:
    assert prefixes_of([A, A, A]) == [tuple(A[:-1])] * 3


def test_what_contexts_begin_with_in_common_is_not_read_alone() -> None:
    """One prefix in front of all would leave more to read than the two contexts."""
    rows = [[9, 9, *A, 1], [9, 9, *A, 2], [9, 9, *B, 1], [9, 9, *B, 2]] * 4
    assert prefixes_of(rows) == [(9, 9, *A), (9, 9, *A), (9, 9, *B), (9, 9, *B)] * 4


@pytest.mark.parametrize(
    "rows",
    [[A], [A, B], [[1, *A], [2, *A], [3, *A]], [[7], [7, 8]]],
    ids=["one row", "one row each", "nothing in common", "too short to be cut"],
)
def test_nothing_is_shared_where_it_does_not_pay(rows: list[list[int]]) -> None:
    assert prefixes_of(rows) is None


def test_long_completions_outweigh_a_short_prefix() -> None:
    rows = [[*A, 1], [*A, 2], [*A, 3]]
    assert prefixes_of(rows) is not None
    assert prefixes_of(rows, more=400) is None


ROWS = st.lists(
    st.tuples(st.sampled_from([A, B, A[:20], [9]]), st.lists(st.integers(1, 9), max_size=5)),
    min_size=2,
    max_size=12,
).map(lambda rows: [[*context, *tail, 8] for context, tail in rows])


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_a_shared_prefix_is_each_rows_own_beginning_and_saves_tokens(rows: list[list[int]]) -> None:
    found = common_prefixes(*left_pad(rows, 0, torch.device("cpu")), 3)
    if found is None:
        return
    read = prefixes_of(rows, 3)
    assert read is not None
    for row, prefix, length in zip(rows, read, found.length_B.tolist(), strict=True):
        assert tuple(row[: len(prefix)]) == prefix
        assert 1 <= len(prefix) == length < len(row) <= length + found.rest
    width = max(map(len, rows))
    tokens = found.ids_PT.numel() + len(rows) * (found.rest + 3)
    assert found.saved == len(rows) * (width + 3) - tokens
    assert tokens <= 0.75 * len(rows) * (width + 3)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(TINY)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float64, attn_implementation="sdpa")


@settings(max_examples=25, deadline=None)
@given(ROWS, st.integers(1, 4), st.data())
def test_log_probabilities_and_gradients_are_those_of_whole_rows(
    model: PreTrainedModel, rows: list[list[int]], width: int, data: st.DataObject
) -> None:
    ids_BT, mask_BT = left_pad(rows, 0, torch.device("cpu"))
    prompt = ids_BT.shape[1]
    lengths = [data.draw(st.integers(1, width)) for _ in rows]
    tail_BT = torch.randint(1, 100, (len(rows), width))
    tail_mask_BT = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids_BT, mask_BT = torch.cat([ids_BT, tail_BT], 1), torch.cat([mask_BT, tail_mask_BT], 1)
    plain = {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": positions(mask_BT)}
    behind = behind_prefixes(model, ids_BT, mask_BT, prompt)
    if behind is None:
        return
    found = []
    for inputs in (plain, behind):
        model.zero_grad()
        logits = model(**inputs).logits[:, -width - 1 : -1]
        logp_BT = logits.log_softmax(-1).gather(2, tail_BT[:, :, None])[:, :, 0] * tail_mask_BT
        (logp_BT * torch.linspace(-1, 2, width)).sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append((logp_BT.detach(), gradients))
    (logp, gradients), (other, others) = found
    # In float64 but for norms and rotations, which Llama computes in float32.
    torch.testing.assert_close(logp, other, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients, others, rtol=0, atol=1e-5)


def test_the_engine_draws_the_same_completions(model: PreTrainedModel) -> None:
    policy = LanguageModelPolicy(TinyPolicy())
    rows = [[*context, i % 7, 8] for i in range(12) for context in (A, B, [9])]
    done = [
        TransformersEngine(
            model, policy.tokenizer, policy.stop_ids, 64, share_prefixes=share
        ).generate(rows, range(len(rows)), Sampling(1.0, 8))
        for share in (False, True)
    ]
    assert [c.token_ids for c in done[0]] == [c.token_ids for c in done[1]]
    logps = [torch.tensor([x for c in one for x in c.logprobs]) for one in done]
    torch.testing.assert_close(*logps, rtol=0, atol=1e-6)


def test_models_that_look_back_only_so_far_share_nothing(model: PreTrainedModel) -> None:
    assert shares(model)
    sliding = AutoConfig.for_model(
        "mistral",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=16,
    )
    assert not shares(AutoModelForCausalLM.from_config(sliding))


def test_a_gpu_shares_where_reading_outlasts_launching(model: PreTrainedModel) -> None:
    # Three layers of 4 x 96 x 96 + 3 x 96 x 256 + 2 x 96 weights, and a norm of 96 behind them.
    layer = 4 * 96 * 96 + 3 * 96 * 256 + 2 * 96 + 96 / 3
    enough = int(150e9 / layer) + 1
    assert outlasts_launches(model, enough)
    assert not outlasts_launches(model, enough - 1)
