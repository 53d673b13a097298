"""LoRA (arXiv 2106.09685) by peft: low-rank matrices beside frozen weights, alone trained.

An adapted layer computes W x + alpha / rank B A x, with B = 0 at first. W is never written. What
needs whole weights (an engine's copy, a run that goes on with all of them) gets
W + alpha / rank B A, made in float32 from W each time, so that nothing drifts however often it is
asked for. The frozen base of a policy is a second set of modules over the same tensors.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fst_core.checkpoint import ADAPTERS, ADAPTERS_CONFIG
from fst_core.config import HubPolicy, PolicyConfig
from fst_core.config.model import ConfigError

NAME = "default"
"""What peft calls the one set of adapters of a model."""


def hold_adapters(folder: Path) -> bool:
    """Whether a folder of weights holds adapters alone."""
    return (folder / ADAPTERS_CONFIG).is_file()


def base_name(config: PolicyConfig) -> tuple[str, str | None]:
    """Which base model adapters belong to, wherever it lies, and its revision."""
    if isinstance(config, HubPolicy):
        return config.model, config.revision
    return config.type, None


def add_adapters(model: PreTrainedModel, config: PolicyConfig, start: Path | None) -> Any:
    """Put `policy.lora`'s adapters into a model's layers and freeze everything else.

    Args:
        start: folder of adapters to begin with; None begins at zero.
    Returns:
        The peft model around the same layers, which a trainer takes.
    Raises:
        ConfigError: if the rank is beyond the model, the targets are no linear layers of it, or
            `start` holds other adapters.
    """
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  # optional, and heavy

    lora = config.lora
    assert lora is not None
    _refuse_rank(model, lora.rank)
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # any number
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.all_linear else list(lora.targets),
    )
    try:
        adapted: Any = get_peft_model(model, settings)
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"policy.lora.targets = {list(lora.targets)}: {reason}") from error
    _refuse_targets(model, adapted.base_model.targeted_module_names, lora.targets)
    settings.base_model_name_or_path, settings.revision = base_name(config)
    if start is not None:
        _refuse_other(start, settings)
        _read(adapted, start)
    return adapted


def _refuse_rank(model: PreTrainedModel, rank: int) -> None:
    """Refuse a rank that no product of the model's layers could have, before it takes memory."""
    head = model.get_output_embeddings()
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
    most = max((min(layer.weight.shape) for layer in layers), default=rank)
    if rank > most:
        raise ConfigError(
            f"policy.lora.rank = {rank}: no layer of the model has a higher rank than {most}; "
            "lower it to that or less"
        )


def _refuse_targets(model: PreTrainedModel, found: list[str], targets: tuple[str, ...]) -> None:
    for target in () if targets == ("all-linear",) else targets:
        if not any(name == target or name.endswith(f".{target}") for name in found):
            raise ConfigError(
                f"policy.lora.targets: the model has no layer {target!r}; leave it out"
            )
    head = model.get_output_embeddings()
    for name in found:
        layer: Any = model.get_submodule(name)
        if layer is head or not isinstance(layer.get_base_layer(), nn.Linear | Conv1D):
            raise ConfigError(
                f"policy.lora.targets: {name} is the output layer or no linear one, and gets no "
                'adapter; leave it out, or set "all-linear"'
            )


def _refuse_other(folder: Path, ours: Any) -> None:
    """Refuse adapters of another shape or another base model.

    Raises:
        ConfigError: naming the setting that differs.
    """
    theirs = _config_in(folder)
    pairs: dict[str, tuple[Any, Any]] = {
        "policy": (_base_of(theirs), _base_of(ours)),
        "policy.lora.rank": (theirs.r, ours.r),
        "policy.lora.alpha": (theirs.lora_alpha, ours.lora_alpha),
        "policy.lora.targets": (sorted(theirs.target_modules), sorted(ours.target_modules)),
    }
    for setting, (there, here) in pairs.items():
        if there != here:
            raise ConfigError(
                f"start_from: the adapters in {folder} have {setting} {there!r} and this run has "
                f"{here!r}; set the one to the other, or leave policy.lora out to merge them"
            )


def _base_of(settings: Any) -> str:
    revision = f" at {settings.revision}" if settings.revision else ""
    return f"{settings.base_model_name_or_path}{revision}"


def _config_in(folder: Path) -> Any:
    from peft import PeftConfig  # noqa: PLC0415

    try:
        return PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _unusable(folder, error) from error


def _read(adapted: Any, folder: Path) -> None:
    from peft import load_peft_weights, set_peft_model_state_dict  # noqa: PLC0415

    try:
        tensors = load_peft_weights(str(folder), device="cpu")
        found: Any = set_peft_model_state_dict(adapted, tensors, adapter_name=NAME)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _unusable(folder, error) from error
    lacking = [name for name in found.missing_keys if ".lora_" in name]
    if lacking or found.unexpected_keys:
        raise _unusable(folder, f"{[*lacking, *found.unexpected_keys][0]} is missing or unknown")


def save_adapters(adapted: Any, folder: Path) -> None:
    """Write a peft model's adapters into a folder, as peft and TRL read them."""
    from peft import get_peft_model_state_dict  # noqa: PLC0415

    tensors = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / ADAPTERS)
    adapted.peft_config[NAME].save_pretrained(folder)


def _unusable(folder: Path, reason: object) -> ConfigError:
    said = str(reason).strip().splitlines()
    return ConfigError(
        f"start_from: the adapters in {folder} cannot be used ({said[0] if said else reason!r}); "
        "run the run that made them again"
    )


def with_merged(model: PreTrainedModel, config: PolicyConfig, folder: Path) -> PreTrainedModel:
    """A base model with a run's adapters added to its own weights, all trainable.

    Raises:
        ConfigError: if they belong to another base model, or are damaged.
    """
    from peft import get_peft_model  # noqa: PLC0415

    settings = _config_in(folder)
    name, revision = base_name(config)
    if (settings.base_model_name_or_path, settings.revision) != (name, revision):
        raise ConfigError(
            f"start_from: the adapters in {folder} belong to the base model {_base_of(settings)}, "
            f"and this run's policy is {name}; take a run of the same policy"
        )
    settings.base_model_name_or_path = None  # peft would warn that it lies elsewhere
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as error:
        raise _unusable(folder, error) from error
    _read(adapted, folder)
    whole = plain(model)
    with torch.no_grad():
        for own, (_, value) in zip(whole.parameters(), whole_weights(model), strict=True):
            own.copy_(value)
    return whole.requires_grad_(True)


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers of a model that have adapters, by name."""
    found = model.named_modules()
    return {name: layer for name, layer in found if hasattr(layer, "get_delta_weight")}


@torch.no_grad()
def whole_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters under the names they have without adapters, merged where there are some.

    One at a time, tied ones once; a merged one is float32, any other the parameter itself.
    """
    layers = {f"{name}.base_layer.weight": layer for name, layer in adapted_layers(model).items()}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        value = parameter.detach()
        if name in layers:
            value = _merged(layers[name], value)
        yield name.replace(".base_layer.", "."), value


def _merged(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    with torch.autocast(weight.device.type, enabled=False):
        merged: torch.Tensor = weight.float() + layer.get_delta_weight(NAME).float()
    return merged


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model whose frozen parameters are the model's own tensors."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})


def plain(model: PreTrainedModel) -> PreTrainedModel:
    """A model without its adapters, over the same tensors; the model itself if it has none."""
    if not adapted_layers(model):
        return model
    whole = shared_copy(model)
    for name, layer in adapted_layers(whole).items():
        parent, _, own = name.rpartition(".")
        setattr(whole.get_submodule(parent), own, layer.get_base_layer())
    return whole
