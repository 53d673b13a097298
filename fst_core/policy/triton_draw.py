"""One kernel that draws a token and its log-probability from logits, for CUDA.

The same function as `fst_core.policy.noise.draw`, in one pass over the logits: the torch
operations move each (B, V) tensor some thirty times.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK = 4096


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]  # Triton reads annotations
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits_ptr,
    seeds_ptr,
    index_ptr,
    temperature_ptr,
    token_ptr,
    logp_ptr,
    stride,
    vocabulary,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    temperature = tl.load(temperature_ptr)
    low = tl.load(seeds_ptr + 2 * row).to(tl.uint32)
    high = tl.load(seeds_ptr + 2 * row + 1).to(tl.uint32)
    index = tl.load(index_ptr).to(tl.uint32)
    key = _mix(low ^ _mix(high + index * 0x9E3779B9))
    peak = -float("inf")  # running maximum of the scaled logits, and their exponentials' sum
    total = 0.0
    best = -float("inf")  # running maximum of logit plus Gumbel noise, its token and its logit
    token = 0
    chosen = 0.0
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < vocabulary
        logits = tl.load(logits_ptr + row * stride + at, mask=inside, other=-float("inf"))
        logits = logits.to(tl.float32) / temperature
        top = tl.maximum(peak, tl.max(logits, 0))
        total = total * tl.exp(peak - top) + tl.sum(tl.exp(logits - top), 0)
        peak = top
        bits = _mix(key + at.to(tl.uint32) * 0x85EBCA6B)
        uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
        noisy = logits - tl.log(-libdevice.log1p(-uniform))
        noisy = tl.where(inside, noisy, -float("inf"))
        here, where = tl.max(noisy, 0, return_indices=True)
        better = here > best
        picked = tl.sum(tl.where(at == start + where, logits, 0.0), 0)
        token = tl.where(better, start + where, token)
        chosen = tl.where(better, picked, chosen)
        best = tl.maximum(best, here)
    tl.store(token_ptr + row, token)
    tl.store(logp_ptr + row, chosen - peak - tl.log(total))


def draw(
    logits_BV: torch.Tensor,
    seeds_B2: torch.Tensor,
    index: torch.Tensor,
    temperature: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B,) int64 and their log-probabilities (B,) float32.

    Args:
        seeds_B2: see `noise.seed_tensor`.
        index: 0-dimensional int64 tensor: which token of its rollout this is.
        temperature: 0-dimensional float32 tensor.
    """
    rows, vocabulary = logits_BV.shape
    token_B = torch.empty(rows, dtype=torch.long, device=logits_BV.device)
    logp_B = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    _draw[(rows,)](
        logits_BV,
        seeds_B2.contiguous(),
        index,
        temperature,
        token_B,
        logp_B,
        logits_BV.stride(0),
        vocabulary,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return token_B, logp_B
