"""Sampling noise that belongs to a rollout: Gumbel-max driven by a counter-based hash.

A token is drawn as argmax_v(log p_v + g_v) with g_v standard Gumbel, where g_v is a pure function
of (rollout seed, position, v). So a rollout's draws do not depend on which other rollouts share
its batch, on any global generator, or on the device.
"""

from collections.abc import Sequence

import torch

_MASK = 0xFFFFFFFF


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit avalanche hash on int64 tensors holding values in [0, 2^32)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def seed_tensor(seeds: Sequence[int], device: torch.device) -> torch.Tensor:
    """Rollout seeds as an int64 tensor of shape (B, 2): low and high 32 bits."""
    return torch.tensor([(s & _MASK, (s >> 32) & _MASK) for s in seeds], device=device).view(-1, 2)


def gumbel(seeds_B2: torch.Tensor, position: int | torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Standard Gumbel noise of shape (B, V), float32, for one position of each rollout."""
    row_B = _mix(seeds_B2[:, 0] ^ _mix((seeds_B2[:, 1] + position * 0x9E3779B9) & _MASK))
    token_V = torch.arange(vocabulary, device=seeds_B2.device) * 0x85EBCA6B & _MASK
    bits_BV = _mix((row_B[:, None] + token_V[None, :]) & _MASK)
    # Exponential race in float32: u near 0 keeps its precision, so large Gumbel values are exact.
    uniform_BV = (bits_BV.to(torch.float32) + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform_BV))


def draw(
    logits_BV: torch.Tensor,
    seeds_B2: torch.Tensor,
    position: int | torch.Tensor,
    temperature: float | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B,) and their log-probabilities (B,) at a temperature."""
    logp_BV = torch.log_softmax(logits_BV.float() / temperature, dim=-1)
    token_B = (logp_BV + gumbel(seeds_B2, position, logp_BV.shape[-1])).argmax(-1)
    return token_B, logp_BV.gather(1, token_B[:, None]).squeeze(1)
