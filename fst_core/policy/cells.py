"""A static key-value cache for decode steps whose shapes never change."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

Turn = tuple[torch.Tensor, torch.Tensor] | None
"""Cosines and sines of N tokens' rotary embeddings (arXiv 2104.09864), (N, head size) each; None
for a layer without."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The queries of a layer's attention."""

    queries: int
    """How many heads ask; each key head serves as many of them, in order."""
    scale: float
    """What their products with keys are multiplied by."""
    q_norm: torch.Tensor | None = None
    """Weights of the RMSNorm of each query (Qwen3), (head size,); None if there is none."""
    k_norm: torch.Tensor | None = None
    """The same for each key."""
    eps: float = 0.0
    """Of both norms."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Which R rows begin with which of U prompts, each padded on the right to T tokens."""

    rows_R: torch.Tensor
    """Rows of the cells."""
    source_R: torch.Tensor
    """The prompt of each."""


class Cells:
    """Keys and values of B rows of width W, for every layer: (B, heads, W, head size) each.

    Prompts are right-padded, so that a token's cell is its position; cells behind a row's newest
    position hold garbage that attention never looks at.

    Attributes:
        width_there: W on the device, so that a captured decode step serves every width.
    """

    def __init__(self, model: PreTrainedModel):
        config: Any = model.config
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_key_value_heads)
        head = getattr(config, "head_dim", None)
        self.size = int(head or config.hidden_size // config.num_attention_heads)
        self.like = next(model.parameters())
        self.storage = self.like.new_empty(self.layers, 2, 0)
        self.rows = self.width = 0
        self.width_there = torch.zeros((), dtype=torch.long, device=self.like.device)

    def reserve(self, rows: int, width: int) -> bool:
        """Make room for (rows, width) and shape the cells so; whether the memory has moved."""
        needed = rows * self.heads * width * self.size
        moved = needed > self.storage.shape[2]
        if moved:
            self.storage = self.storage.new_empty(self.layers, 2, 0)  # free the old one first
            # Zeros: a cell that attention weighs with 0 must still hold a number.
            self.storage = self.like.new_zeros(self.layers, 2, needed)
        self.shape(rows, width)
        return moved

    def shape(self, rows: int, width: int) -> None:
        """See the same memory as (rows, width); fewer rows are the first ones."""
        self.rows, self.width = rows, width
        self.width_there.fill_(width)

    def of(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each (B, heads, W, head size)."""
        shape = (self.rows, self.heads, self.width, self.size)
        count = self.rows * self.heads * self.width * self.size
        keys, values = self.storage[layer, :, :count]
        return keys.view(shape), values.view(shape)

    def keep(self, rows_B: torch.Tensor) -> None:
        """Move these rows to the front and forget the others."""
        for layer in range(self.layers):
            for cells in self.of(layer):
                cells[: len(rows_B)] = cells.index_select(0, rows_B)
        self.shape(len(rows_B), self.width)
