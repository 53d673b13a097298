"""Decode steps of the graph engine against transformers' own forward pass, by architecture."""

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from fst_core.policy.cells import Cells, Prompts
from fst_core.policy.decoder import Decoder
from fst_core.policy.graph_engine import MODELS, sampling_copy, why_not

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "layer_types": None,
}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"head_dim": 24, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    ("mistral", {"sliding_window": None, "head_dim": 16}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 32}),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 0]}),
]


def random_model(kind: str, change: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(0)
    given = {k: v for k, v in (SHAPE | change).items() if v is not None or k == "sliding_window"}
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**given))
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too: ones and zeros hide faults
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def gap_to_transformers(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> float:
    """Largest difference of hidden states: prompts of 5, 70 and 1, and three decode steps."""
    assert why_not(model) is None
    there = model.device
    twin = sampling_copy(model, dtype)
    cells = Cells(twin)
    cells.reserve(3, 128)
    decoder = Decoder(twin, cells)
    prompts = [torch.randint(1, 97, (n,), device=there) for n in (5, 70, 1)]
    rows = torch.arange(3, device=there)
    ids = torch.zeros(3, 70, dtype=torch.long, device=there)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    position = torch.tensor([5, 70, 1], device=there)
    worst = 0.0

    def gap(found_TD: torch.Tensor, ids_T: torch.Tensor) -> float:
        whole = model.get_decoder()(input_ids=ids_T[None], use_cache=False).last_hidden_state[0]
        return float((found_TD.float() - whole[-len(found_TD) :]).abs().max())

    with torch.inference_mode():
        read = decoder.read(ids, Prompts(rows, rows))
        for row, prompt in enumerate(prompts):
            worst = max(worst, gap(read[row, : len(prompt)], prompt))
        for _ in range(3):
            token = torch.randint(1, 97, (3,), device=there)
            found = decoder.step(token, position)
            for row in range(3):
                prompts[row] = torch.cat([prompts[row], token[row : row + 1]])
                worst = max(worst, gap(found[row : row + 1], prompts[row]))
            position = position + 1
    return worst


@pytest.mark.parametrize(("kind", "change"), KINDS)
def test_equal_to_transformers(kind: str, change: dict[str, Any]) -> None:
    assert gap_to_transformers(random_model(kind, change)) < 2e-5


def test_every_architecture_is_compared() -> None:
    assert {kind for kind, _ in KINDS} == MODELS
