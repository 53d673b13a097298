"""A static key-value cache that an attention function of transformers writes and reads.

The function is registered under a name of its own, and the model is called without a cache of
transformers: `cells` travels as a keyword argument down to every attention layer. All shapes are
fixed by (rows, width), so that a decode step can be captured as one CUDA graph.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

ATTENTION = "fst_cells"
"""The name of the attention function in a model's config."""


class Cells:
    """Keys and values of B rows of width W, for every layer: (B, heads, W, head size) each.

    Prompts are right-padded, so that a token's cell is its position; cells behind a row's newest
    position hold garbage that attention never looks at.
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


class Prefill:
    """Writes the keys and values of U right-padded prompts into the rows that begin with them.

    Args:
        rows_N: rows of the cells, (N,).
        source_N: which of the U prompts each of these rows begins with.
    """

    def __init__(self, cells: Cells, rows_N: torch.Tensor, source_N: torch.Tensor):
        self.cells, self.rows_N, self.source_N = cells, rows_N, source_N

    def attend(
        self,
        layer: int,
        q_UHTD: torch.Tensor,
        k_UhTD: torch.Tensor,
        v_UhTD: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Causal attention among the prompts' own tokens, (U, H, T, D)."""
        width = k_UhTD.shape[2]
        for cells, new in zip(self.cells.of(layer), (k_UhTD, v_UhTD), strict=True):
            cells[self.rows_N, :, :width] = new[self.source_N]
        return scaled_dot_product_attention(
            q_UHTD, k_UhTD, v_UhTD, is_causal=True, scale=scale, enable_gqa=True
        )


class Decode:
    """One new token a row, at its own position; `mask` is built once and serves every layer."""

    def __init__(self, cells: Cells, position_B: torch.Tensor):
        self.cells, self.position_B = cells, position_B
        self.row_B = torch.arange(cells.rows, device=position_B.device)
        unseen_BW = torch.arange(cells.width, device=position_B.device) > position_B[:, None]
        bias_BW = torch.zeros(unseen_BW.shape, dtype=cells.like.dtype, device=position_B.device)
        self.bias = bias_BW.masked_fill(unseen_BW, float("-inf"))[:, None, None]

    def attend(
        self,
        layer: int,
        q_BHTD: torch.Tensor,
        k_BhTD: torch.Tensor,
        v_BhTD: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attention to everything up to the row's position, (B, H, 1, D).

        The query heads that share a key head stand where queries of several tokens would: nothing
        is repeated in memory.
        """
        keys, values = self.cells.of(layer)
        keys[self.row_B, :, self.position_B] = k_BhTD[:, :, 0]
        values[self.row_B, :, self.position_B] = v_BhTD[:, :, 0]
        batch, heads, _, size = q_BHTD.shape
        grouped = q_BHTD.reshape(batch, self.cells.heads, heads // self.cells.heads, size)
        bias = self.bias.expand(-1, *grouped.shape[1:3], -1)
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=bias, scale=scale)
        return out.reshape(batch, heads, 1, size)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    cells: Prefill | Decode,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of transformers: (B, H, T, D) tensors in, (B, T, H, D) out."""
    out = cells.attend(module.layer_idx, query, key, value, scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attend)
