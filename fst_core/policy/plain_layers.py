"""The steps of a decoder layer between its matrix products, in torch operations.

`fst_core.policy.triton_layers` has `attend`, `add_norm` and `gated` as one kernel each, for CUDA.
"""

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from fst_core.policy.cells import Cells, Heads, Prompts, Turn


def attend(
    qkv_BX: torch.Tensor,
    heads: Heads,
    cells: Cells,
    layer: int,
    position_B: torch.Tensor,
    turn: Turn,
) -> torch.Tensor:
    """Attention of one new token a row to itself and what its row holds, (B, H * head size).

    Writes the token's key and value into the cells at its position.

    Args:
        qkv_BX: queries of H heads, keys and values of h heads each, side by side.
        turn: of the B tokens.
    """
    batch, size = len(qkv_BX), cells.size
    q_BHD, k_BhD, v_BhD = _parted(qkv_BX, heads, cells, turn)
    keys, values = cells.of(layer)
    row_B = torch.arange(batch, device=qkv_BX.device)
    keys[row_B, :, position_B], values[row_B, :, position_B] = k_BhD, v_BhD
    grouped = q_BHD.reshape(batch, cells.heads, heads.queries // cells.heads, size)
    seen_BW = torch.arange(cells.width, device=qkv_BX.device) <= position_B[:, None]
    out = scaled_dot_product_attention(
        grouped, keys, values, attn_mask=seen_BW[:, None, None], scale=heads.scale
    )
    return out.reshape(batch, -1)


def attend_prompts(
    qkv_NX: torch.Tensor,
    heads: Heads,
    cells: Cells,
    layer: int,
    width: int,
    prompts: Prompts,
    turn: Turn,
) -> torch.Tensor:
    """Causal attention within each of U prompts of T = `width` tokens, (N = U T, H * head size).

    Writes keys and values into the cells of all rows that begin with a prompt.
    """
    q_UHTD, k_UhTD, v_UhTD = (
        x_NHD.view(-1, width, x_NHD.shape[1], cells.size).transpose(1, 2)
        for x_NHD in _parted(qkv_NX, heads, cells, turn)
    )
    for held, new in zip(cells.of(layer), (k_UhTD, v_UhTD), strict=True):
        held[prompts.rows_R, :, :width] = new[prompts.source_R]
    out = scaled_dot_product_attention(
        q_UHTD, k_UhTD, v_UhTD, is_causal=True, scale=heads.scale, enable_gqa=True
    )
    return out.transpose(1, 2).reshape(len(qkv_NX), -1)


def _parted(
    qkv_NX: torch.Tensor,
    heads: Heads,
    cells: Cells,
    turn: Turn,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries (N, H, head size), keys and values of N tokens, normalised and turned."""
    size = cells.size
    q_NHD, k_NhD, v_NhD = qkv_NX.view(len(qkv_NX), -1, size).split(
        [heads.queries, cells.heads, cells.heads], 1
    )
    if heads.q_norm is not None:
        q_NHD = rms_norm(q_NHD, (size,), heads.q_norm, heads.eps)
        k_NhD = rms_norm(k_NhD, (size,), heads.k_norm, heads.eps)
    if turn is not None:
        q_NHD, k_NhD = (_turned(x_NHD, *turn) for x_NHD in (q_NHD, k_NhD))
    return q_NHD, k_NhD, v_NhD


def _turned(x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> torch.Tensor:
    low, high = x_NHD.chunk(2, -1)
    return x_NHD * cos_ND[:, None] + torch.cat((-high, low), -1) * sin_ND[:, None]


def add_norm(
    x_BD: torch.Tensor, delta_BD: torch.Tensor, weight_D: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add `delta_BD` to `x_BD` in place; the RMSNorm of the sum."""
    x_BD += delta_BD
    return rms_norm(x_BD, weight_D.shape, weight_D, eps)


def gated(gate_up_BF: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half of the columns times the second half."""
    gate, up = gate_up_BF.chunk(2, -1)
    return silu(gate) * up
