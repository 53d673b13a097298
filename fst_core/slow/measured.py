"""Numbers a pass adds to those TRL measures in it."""

from typing import Any

import torch


def log_token_mean(trainer: Any, name: str, value_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
    """Append the mean over the tokens of a pass, of all processes, to the trainer's metrics."""
    sums = torch.stack([(value_BT.detach() * mask_BT).sum(), mask_BT.sum().to(value_BT.dtype)])
    total, tokens = trainer.accelerator.reduce(sums, "sum").tolist()
    trainer._metrics["train"][name].append(total / max(tokens, 1.0))
