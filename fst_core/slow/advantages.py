"""From a step's rewards to its advantages: which rollouts share a baseline, and what they share."""

import torch
from trl.trainer.utils import nanstd

from fst_core.config.slow import PolicyGradient

EPSILON = 1e-4
"""Added to a standard deviation before it divides (TRL's)."""


def blocks(values_N: torch.Tensor, baseline: str, group: int, contexts: int) -> torch.Tensor:
    """Values of a step's N rollouts (problem by problem, slot by slot) in rows with one baseline.

    Args:
        group: G, rollouts of a problem; `contexts`: K, slots of equal size in it.
    Returns: shape (blocks, rollouts of a block).
    """
    width = {"context": group // contexts, "batch": len(values_N)}.get(baseline, group)
    return values_N.view(-1, width)


def advantages(
    rewards_N: torch.Tensor, settings: PolicyGradient, group: int, contexts: int
) -> torch.Tensor:
    """Rewards minus their baseline, over a standard deviation (Bessel's) or as they are.

    "leave_one_out" is r_i - mean over j != i of r_j, which is G / (G - 1) times r_i - mean. For
    "problem" the arithmetic is TRL's to the last bit.
    """
    rewards_BW = blocks(rewards_N, settings.baseline, group, contexts)
    found_BW = rewards_BW - torch.nanmean(rewards_BW, dim=1, keepdim=True)
    if settings.baseline == "leave_one_out":
        found_BW = found_BW * (group / (group - 1))
    if settings.scale_by_std and settings.std_over == "batch":
        found_BW = found_BW / (nanstd(found_BW) + EPSILON)
    elif settings.scale_by_std:
        found_BW = found_BW / (nanstd(rewards_BW, dim=1, keepdim=True) + EPSILON)
    return found_BW.flatten()


def mixed(
    rewards_N: torch.Tensor, settings: PolicyGradient, group: int, contexts: int
) -> torch.Tensor:
    """Which rollouts (N,) share their baseline with one of another reward."""
    rewards_BW = blocks(rewards_N, settings.baseline, group, contexts)
    mixed_B = rewards_BW.amax(1) > rewards_BW.amin(1)
    return mixed_B.repeat_interleave(rewards_BW.shape[1])


def unequal(
    rewards_N: torch.Tensor, settings: PolicyGradient, group: int, contexts: int
) -> torch.Tensor:
    """Which problems (P,) have unequal rewards: in their group, or under one of its contexts where
    that is the baseline."""
    width = group // contexts if settings.baseline == "context" else group
    rewards_PBW = rewards_N.view(-1, group // width, width)
    return (rewards_PBW.amax(2) > rewards_PBW.amin(2)).any(1)
