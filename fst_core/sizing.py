"""What a decoder needs: memory a card by part, and GPU time, from its shape. Loads no torch.

Time is an estimate from the card's data sheet and from the shares of it that are assumed below;
memory is counted. Attention's own operations are left out of the first, fragmentation and buffers
of communication out of the second.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with grouped-query attention, gated MLP and q/k norms."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False

    @property
    def embedding(self) -> int:
        """Parameters of one embedding table."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        norms = 2 * self.hidden + 2 * self.head_dim
        return attention + 3 * self.hidden * self.intermediate + norms

    @property
    def parameters(self) -> int:
        """All parameters."""
        tables = 1 if self.tied else 2
        return self.layers * self.layer + tables * self.embedding + self.hidden

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values a token, in bfloat16."""
        return 2 * self.layers * 2 * self.kv_heads * self.head_dim

    @property
    def layer_activations(self) -> int:
        """Numbers a token that one layer keeps for its backward pass (flash attention)."""
        attention = self.head_dim * 2 * (self.heads + self.kv_heads)
        return 4 * self.hidden + attention + 3 * self.intermediate


QWEN3_8B = Shape(36, 4096, 32, 8, 128, 12288, 151936)
KNOWN: Mapping[str, Shape] = {"Qwen/Qwen3-8B": QWEN3_8B}
"""Published shapes of models whose config.json may not be on this machine."""


def shape_in(file: Path) -> Shape | None:
    """The shape in a model's config.json; None for what is no dense decoder of this kind."""
    try:
        read: Any = json.loads(file.read_text())
        if "num_experts" in read or "num_local_experts" in read:
            return None
        heads = read["num_attention_heads"]
        return Shape(
            read["num_hidden_layers"],
            read["hidden_size"],
            heads,
            read.get("num_key_value_heads") or heads,
            read.get("head_dim") or read["hidden_size"] // heads,
            read["intermediate_size"],
            read["vocab_size"],
            bool(read.get("tie_word_embeddings", False)),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Load:
    """What one card holds and works on; the defaults are the paper's step on a large card."""

    rollouts: int = 256
    """Of one slow step, over all cards."""
    sequence_tokens: int = 4096
    """Prompt and completion."""
    concurrent: int = 64
    """Most rollouts generated at once on a card (policy.batch_size)."""
    pass_tokens: int = 8192
    """Tokens of one forward and backward pass on a card (slow.token_budget)."""
    weight_bytes: int = 4
    """A trained parameter, its gradient, and each of Adam's moments."""
    trained: bool = True
    reference: bool = True
    """A base model for the KL term of the loss (slow.beta)."""
    own_copy: bool = True
    """The engine samples from a copy of its own, in bfloat16."""
    generates: bool = True
    """False where a server elsewhere generates."""
    base: bool = True
    """A base model for evaluation (evaluation.kl, evaluation.ends)."""
    checkpointed: bool = True
    """Activations are computed again in the backward pass."""


def memory(
    parameters: int, shape: Shape | None, load: Load, cards: int = 1, fsdp: bool = False
) -> dict[str, float | None]:
    """GiB a card, by part; None for what only the shape could tell."""
    sharded = fsdp and cards > 1
    shards = cards if sharded else 1
    size = load.weight_bytes * parameters / shards
    kind = "fp32" if load.weight_bytes == 4 else "bf16"
    whole = 2 * parameters
    parts: dict[str, float | None] = {
        f"master weights ({kind})": size,
        f"gradients ({kind})": size * load.trained,
        f"Adam (2 x {kind})": 2 * size * load.trained,
        "gathered layers (bf16)": _gathered(shape) if sharded else 0,
        f"reference for KL ({kind})": size * (load.trained and load.reference),
        "engine's copy (bf16)": whole * (load.generates and (load.own_copy or sharded)),
        "base for evaluation": (whole if sharded else load.weight_bytes * parameters) * load.base,
        "KV cache": _cache(shape, load, cards) if load.generates else 0,
        "activations, checkpointed" if load.checkpointed else "activations": (
            _activations(shape, load) if load.trained else 0
        ),
        "logits and their gradient": _logits(shape, load) if load.trained else 0,
    }
    return {name: None if size is None else size / GIB for name, size in parts.items()}


def _gathered(shape: Shape | None) -> float | None:
    """FSDP gathers this layer, the next, and the two embedding tables, in bfloat16."""
    return None if shape is None else 2 * (2 * shape.layer + 2 * shape.embedding)


def _cache(shape: Shape | None, load: Load, cards: int) -> float | None:
    rows = min(load.concurrent, -(-load.rollouts // cards))
    return None if shape is None else rows * load.sequence_tokens * shape.cache_bytes


def _activations(shape: Shape | None, load: Load) -> float | None:
    if shape is None:
        return None
    kept = shape.layers * shape.hidden + shape.layer_activations
    if not load.checkpointed:
        kept = shape.layers * shape.layer_activations
    return 2 * load.pass_tokens * kept


def _logits(shape: Shape | None, load: Load) -> float | None:
    return None if shape is None else 2 * 4 * load.pass_tokens * shape.vocabulary


@dataclass(frozen=True, slots=True)
class Card:
    """A card's data sheet, and the shares of it that work of each kind is assumed to reach."""

    name: str = "H100 SXM"
    flops: float = 989e12
    """Dense bfloat16 operations a second."""
    bandwidth: float = 3.35e12
    """Bytes of its memory a second."""
    train_share: float = 0.35
    forward_share: float = 0.5
    """Scoring and reading prompts."""
    decode_share: float = 0.6
    """Of the bandwidth."""

    def forward_seconds(self, parameters: int, tokens: float) -> float:
        """A pass over tokens: 2 operations a parameter and token."""
        return 2 * parameters * tokens / (self.flops * self.forward_share)

    def train_seconds(self, parameters: int, tokens: float, checkpointed: bool) -> float:
        """Forward and backward: 6 operations a parameter and token, 8 with a second forward."""
        operations = 8 if checkpointed else 6
        return operations * parameters * tokens / (self.flops * self.train_share)

    def generate_seconds(
        self,
        parameters: int,
        cache_bytes: int,
        rollouts: float,
        lengths: tuple[float, float],
        concurrent: float,
    ) -> float:
        """Prompts read at once, then token by token: weights and cache are read at every step.

        Args:
            cache_bytes: of keys and values a token.
            lengths: tokens of a prompt and of a completion.
            concurrent: rollouts that are generated at once.
        """
        prompt, completion = lengths
        cache = concurrent * (prompt + completion / 2) * cache_bytes
        reading = (2 * parameters + cache) / (self.bandwidth * self.decode_share)
        step = max(reading, self.forward_seconds(parameters, concurrent))
        steps = rollouts * completion / concurrent
        return self.forward_seconds(parameters, rollouts * prompt) + steps * step
