"""The three steps of a decoder layer between its matrix products, one kernel each, for CUDA.

The same functions as in `fst_core.policy.plain_layers`. Everything in between is float32; what
leaves a kernel has the model's type.
"""

import torch
import triton
import triton.language as tl

from fst_core.policy.cells import Cells, Heads, Turn

CELLS = 32
"""Cells that a program of the attention kernel looks at together."""
LEAST = 16
"""Smallest side of a tile that the matrix units multiply."""


@triton.jit
def _attend(  # type: ignore[no-untyped-def]  # Triton reads annotations
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    keys_ptr,
    values_ptr,
    position_ptr,
    width_ptr,
    out_ptr,
    scale,
    eps,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    HALF_TILE: tl.constexpr,
    SIZE_TILE: tl.constexpr,
    CELLS: tl.constexpr,
    TURN: tl.constexpr,
    NORM: tl.constexpr,
):
    SIZE: tl.constexpr = 2 * HALF
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(position_ptr + row)
    group = tl.arange(0, GROUP_TILE)
    half = tl.arange(0, HALF_TILE)
    whole = tl.arange(0, SIZE_TILE)
    in_half, in_whole = half < HALF, whole < SIZE
    in_group = (group < GROUP)[:, None]
    kind = qkv_ptr.dtype.element_ty

    new_ptr = qkv_ptr + row * (GROUP + 2) * HEADS * SIZE
    q_at = new_ptr + (head * GROUP + group[:, None]) * SIZE + half[None, :]
    q_low = tl.load(q_at, mask=in_group & in_half[None, :], other=0.0).to(tl.float32)
    q_high = tl.load(q_at + HALF, mask=in_group & in_half[None, :], other=0.0).to(tl.float32)
    k_at = new_ptr + (GROUP * HEADS + head) * SIZE + half
    k_low = tl.load(k_at, mask=in_half, other=0.0).to(tl.float32)
    k_high = tl.load(k_at + HALF, mask=in_half, other=0.0).to(tl.float32)
    value = tl.load(new_ptr + ((GROUP + 1) * HEADS + head) * SIZE + whole, mask=in_whole, other=0.0)
    if NORM:
        q_mean = (tl.sum(q_low * q_low, 1) + tl.sum(q_high * q_high, 1)) / SIZE
        k_mean = (tl.sum(k_low * k_low, 0) + tl.sum(k_high * k_high, 0)) / SIZE
        q_fit = 1.0 / tl.sqrt(q_mean + eps)[:, None]
        k_fit = 1.0 / tl.sqrt(k_mean + eps)
        q_low *= q_fit * tl.load(q_norm_ptr + half, mask=in_half, other=0.0)[None, :]
        q_high *= q_fit * tl.load(q_norm_ptr + HALF + half, mask=in_half, other=0.0)[None, :]
        k_low *= k_fit * tl.load(k_norm_ptr + half, mask=in_half, other=0.0)
        k_high *= k_fit * tl.load(k_norm_ptr + HALF + half, mask=in_half, other=0.0)
    if TURN:
        cos = tl.load(cos_ptr + row * SIZE + half, mask=in_half, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + row * SIZE + half, mask=in_half, other=0.0).to(tl.float32)
        q_old = q_low
        q_low = q_low * cos[None, :] - q_high * sin[None, :]
        q_high = q_high * cos[None, :] + q_old * sin[None, :]
        k_old = k_low
        k_low = k_low * cos - k_high * sin
        k_high = k_high * cos + k_old * sin

    first = (row * HEADS + head) * tl.load(width_ptr) * SIZE
    keys_ptr += first
    values_ptr += first
    tl.store(keys_ptr + position * SIZE + half, k_low.to(kind), mask=in_half)
    tl.store(keys_ptr + position * SIZE + HALF + half, k_high.to(kind), mask=in_half)
    tl.store(values_ptr + position * SIZE + whole, value, mask=in_whole)

    # The new token attends to itself first; what the row held before it follows, tile by tile.
    peak = (tl.sum(q_low * k_low[None, :], 1) + tl.sum(q_high * k_high[None, :], 1)) * scale
    total = tl.full((GROUP_TILE,), 1.0, tl.float32)
    mixed = tl.zeros((GROUP_TILE, SIZE_TILE), tl.float32) + value.to(tl.float32)[None, :]
    q_low, q_high = q_low.to(kind), q_high.to(kind)
    for start in range(0, position, CELLS):
        cell = start + tl.arange(0, CELLS)
        seen = cell < position
        at = keys_ptr + cell[None, :] * SIZE + half[:, None]
        there = seen[None, :] & in_half[:, None]
        low = tl.load(at, mask=there, other=0.0)
        high = tl.load(at + HALF, mask=there, other=0.0)
        scores = tl.dot(q_low, low, input_precision="ieee")
        scores = tl.dot(q_high, high, scores, input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, -float("inf"))
        top = tl.maximum(peak, tl.max(scores, 1))
        fade = tl.exp(peak - top)
        weight = tl.exp(scores - top[:, None])
        total = total * fade + tl.sum(weight, 1)
        at = values_ptr + cell[:, None] * SIZE + whole[None, :]
        held = tl.load(at, mask=seen[:, None] & in_whole[None, :], other=0.0)
        mixed = tl.dot(weight.to(kind), held, mixed * fade[:, None], input_precision="ieee")
        peak = top
    mixed = mixed / total[:, None]
    at = out_ptr + ((row * HEADS + head) * GROUP + group[:, None]) * SIZE + whole[None, :]
    tl.store(at, mixed.to(kind), mask=in_group & in_whole[None, :])


def attend(
    qkv_BX: torch.Tensor,
    heads: Heads,
    cells: Cells,
    layer: int,
    position_B: torch.Tensor,
    turn: Turn,
) -> torch.Tensor:
    """See `plain_layers.attend`; a program serves the query heads of one key head of one row."""
    batch, group = len(qkv_BX), heads.queries // cells.heads
    out_BX = qkv_BX.new_empty(batch, heads.queries * cells.size)
    keys, values = cells.storage[layer]
    cos, sin = turn if turn is not None else (qkv_BX, qkv_BX)
    q_norm, k_norm = (qkv_BX if norm is None else norm for norm in (heads.q_norm, heads.k_norm))
    _attend[(batch, cells.heads)](
        qkv_BX,
        cos,
        sin,
        q_norm,
        k_norm,
        keys,
        values,
        position_B,
        cells.width_there,
        out_BX,
        heads.scale,
        heads.eps,
        HEADS=cells.heads,
        GROUP=group,
        HALF=cells.size // 2,
        GROUP_TILE=max(LEAST, triton.next_power_of_2(group)),
        HALF_TILE=max(LEAST, triton.next_power_of_2(cells.size // 2)),
        SIZE_TILE=max(LEAST, triton.next_power_of_2(cells.size)),
        CELLS=CELLS,
        TURN=turn is not None,
        NORM=heads.q_norm is not None,
        num_warps=1,
    )
    return out_BX


@triton.jit
def _add_norm(  # type: ignore[no-untyped-def]
    x_ptr, delta_ptr, weight_ptr, out_ptr, size, eps, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILE)
    inside = at < size
    x = tl.load(x_ptr + row * size + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(delta_ptr + row * size + at, mask=inside, other=0.0).to(tl.float32)
    x = x.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + row * size + at, x, mask=inside)
    x = x.to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    normed = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / size + eps)) * weight
    tl.store(out_ptr + row * size + at, normed.to(x_ptr.dtype.element_ty), mask=inside)


def add_norm(
    x_BD: torch.Tensor, delta_BD: torch.Tensor, weight_D: torch.Tensor, eps: float
) -> torch.Tensor:
    """See `plain_layers.add_norm`; a program serves a row."""
    batch, size = x_BD.shape
    out_BD = torch.empty_like(x_BD)
    tile = triton.next_power_of_2(size)
    _add_norm[(batch,)](x_BD, delta_BD, weight_D, out_BD, size, eps, TILE=tile, num_warps=4)
    return out_BD


@triton.jit
def _gated(gate_up_ptr, out_ptr, size, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = at < size
    gate = tl.load(gate_up_ptr + 2 * row * size + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + (2 * row + 1) * size + at, mask=inside, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * size + at, out.to(gate_up_ptr.dtype.element_ty), mask=inside)


def gated(gate_up_BF: torch.Tensor) -> torch.Tensor:
    """See `plain_layers.gated`; a program serves a tile of a row."""
    batch, size = gate_up_BF.shape[0], gate_up_BF.shape[1] // 2
    out_BF = gate_up_BF.new_empty(batch, size)
    _gated[(batch, triton.cdiv(size, 1024))](gate_up_BF, out_BF, size, TILE=1024, num_warps=4)
    return out_BF
