"""Checkpoints of a model whose weights FSDP2 shards: the same files as without, gathered whole.

So a run may go on with another number of processes, with FSDP or without. Every function here is
collective: all ranks call it, rank 0 writes.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

ONE_FILE = "1000000GB"
"""Weights are written into one file, whatever their size: checkpoints name it."""
GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)


def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """L2 norm over all gradients, over all shards where they are sharded."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def save_sharded(trainer: Any, whole: PreTrainedModel, folder: Path) -> None:
    """Weights, optimizer and schedule of a sharded trainer.

    Args:
        whole: an unsharded model of the same architecture, for its config and names.
    """
    model, optimizer = trainer.model, trainer.optimizer.optimizer
    weights = get_model_state_dict(model, options=GATHERED)
    state = get_optimizer_state_dict(model, optimizer, options=GATHERED)
    if trainer.args.should_save:
        whole.save_pretrained(folder, state_dict=weights, max_shard_size=ONE_FILE)
        torch.save(state, folder / "optimizer.pt")
        torch.save(trainer.lr_scheduler.state_dict(), folder / "scheduler.pt")


class ShardedResume:
    """A Trainer that resumes from `save_sharded`'s files where FSDP is on, else as it always did.

    Overrides two methods of transformers' Trainer, by name.
    """

    is_fsdp_enabled: bool
    model: Any
    optimizer: Any
    lr_scheduler: Any

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        weights: dict[str, Any] = load_file(Path(resume_from_checkpoint) / "model.safetensors")
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if name not in weights:  # tied, so written once
                weights[name] = weights[_written_name(self.model, parameter, weights)]
        set_model_state_dict(self.model, weights, options=StateDictOptions(full_state_dict=True))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.is_fsdp_enabled or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
            return
        state = torch.load(
            Path(checkpoint) / "optimizer.pt", map_location="cpu", mmap=True, weights_only=True
        )
        set_optimizer_state_dict(
            self.model,
            self.optimizer.optimizer,
            by_name(state, self.model, self.optimizer.optimizer),
            options=StateDictOptions(full_state_dict=True),
        )
        schedule = torch.load(
            Path(checkpoint) / "scheduler.pt", map_location="cpu", weights_only=True
        )
        self.lr_scheduler.load_state_dict(schedule)


def by_name(state: dict[str, Any], model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state under parameter names; without FSDP it is saved under numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]

    def name(key: int | str) -> str:
        return order[key] if isinstance(key, int) else key

    return {
        "state": {name(key): value for key, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [name(key) for key in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def _written_name(model: Any, parameter: Any, weights: dict[str, Any]) -> str:
    names = model.named_parameters(remove_duplicate=False)
    return next(name for name, other in names if other is parameter and name in weights)
