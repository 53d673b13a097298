"""A small random Llama that vLLM can serve on a CPU: the tiny policy's heads are none of its sizes.

Collected only where vLLM is installed; `make test-vllm` makes such an environment.
"""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from fst_core.config import HubPolicy
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.locate import TINY
from fst_core.records import Completion

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

ON_GPU = torch.cuda.is_available()
DTYPE = "bfloat16" if ON_GPU else "float32"
"""vLLM's attention on a GPU may know 16-bit types alone."""
GAP = 0.5 if ON_GPU else 1e-3
"""Two computations of one log-probability differ by less (nats); other weights by ten and more."""


def save_llama(folder: Path, tied: bool) -> Path:
    """A random Llama of peaked distributions, with the tiny policy's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def policy_of(folder: Path, **vllm: Any) -> LanguageModelPolicy:
    return LanguageModelPolicy(HubPolicy.model_validate(settings_of(folder, **vllm)))


def settings_of(folder: Path, **vllm: Any) -> dict[str, Any]:
    """The table `policy` of a run with vLLM."""
    small = {"enforce_eager": True, "gpu_memory_utilization": 0.1, **vllm}
    policy = {"type": "hub", "model": str(folder), "dtype": DTYPE, "max_new_tokens": 12}
    return {**policy, "engine": "vllm", "vllm": small}


def chats(policy: LanguageModelPolicy, contexts: Sequence[str]) -> list[list[int]]:
    """Token ids of one question under every context."""
    question = {"role": "user", "content": "Say bab."}
    return [policy.prompt_ids([{"role": "system", "content": c}, question]) for c in contexts]


@torch.no_grad()
def gap(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    done: Sequence[Completion],
    temperature: float = 1.0,
) -> float:
    """Largest difference (nats) of reported log-probabilities from a plain forward pass."""
    gaps = []
    for prompt, completion in zip(prompts, done, strict=True):
        ids = torch.tensor([[*prompt, *completion.token_ids]], device=model.device)
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        chosen = logits.log_softmax(-1)[range(len(completion.token_ids)), completion.token_ids]
        gaps.append((chosen.cpu() - torch.tensor(completion.logprobs)).abs().max().item())
    return max(gaps)


@torch.no_grad()
def perturb(model: PreTrainedModel) -> None:
    """Move every weight, as a slow step does, by enough to be seen."""
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.add_((torch.randn(weight.shape, generator=generator) * 0.05).to(weight))


@pytest.fixture(scope="session")
def tied_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="session")
def untied_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("untied"), tied=False)
