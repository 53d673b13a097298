"""How far the trainer's log-probabilities are from those the engine sampled with.

An engine with kernels, types or weights of its own gives a sampled token another probability than
the trainer does, so that rollouts are a little off-policy even before the first update.
"""

import torch
from accelerate import Accelerator


class Mismatch:
    """Token statistics of one step, added up over its micro-batches and processes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything added."""
        self._sums: torch.Tensor | None = None
        self._largest: torch.Tensor | None = None

    @torch.no_grad()
    def add(self, trainer_BT: torch.Tensor, engine_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        """Count the tokens where the mask is 1; log-probabilities in nats, NaN where unknown."""
        mask_BT = mask_BT.bool() & ~engine_BT.isnan()
        gap_BT = torch.where(mask_BT, trainer_BT - engine_BT, 0.0)
        k3_BT = gap_BT.expm1() - gap_BT
        sums = torch.stack([gap_BT.abs().sum(), k3_BT.sum(), mask_BT.sum().to(gap_BT.dtype)])
        largest = gap_BT.abs().max()
        self._sums = sums if self._sums is None else self._sums + sums
        self._largest = largest if self._largest is None else self._largest.maximum(largest)

    def take(self, accelerator: Accelerator) -> dict[str, float]:
        """The step's metrics over all processes; starts the next step afresh.

        `slow/mismatch_mean` and `slow/mismatch_max`: |trainer - engine| of a sampled token (nats).
        `slow/mismatch_kl`: the k3 estimate of KL(engine || trainer), the mean of r - 1 - log r
        with r = trainer / engine over tokens drawn by the engine (nats a token, never negative).
        """
        if self._sums is None or self._largest is None:
            return {}
        absolute, k3, tokens = accelerator.reduce(self._sums, "sum").tolist()
        largest = accelerator.gather(self._largest).max().item()
        self.reset()
        tokens = max(tokens, 1.0)
        return {
            "slow/mismatch_mean": absolute / tokens,
            "slow/mismatch_max": largest,
            "slow/mismatch_kl": k3 / tokens,
        }
