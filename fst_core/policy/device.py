"""Where a policy computes, and what that is called: other kinds of device round otherwise."""

import platform
from pathlib import Path

import torch

from fst_core.config.model import ConfigError

CPU_INFO = Path("/proc/cpuinfo")


def pick_device(name: str) -> torch.device:
    """The torch device of a config; "auto" takes cuda where present.

    Raises:
        ConfigError: if torch knows no such device or none is present.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f'policy.device = {name!r}: torch knows no such device; set "auto", "cuda" or "cpu"'
        ) from error
    if device.type == "cuda":
        _refuse_missing_gpu(device, name)
        return device
    try:
        torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(
            f"policy.device = {name!r}: torch has this device without a use here; set "
            '"auto", "cuda" or "cpu"'
        ) from error
    return device


def _refuse_missing_gpu(device: torch.device, name: str) -> None:
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not present:
        raise ConfigError(f'policy.device = {name!r}: no GPU is present; set "auto" or "cpu"')
    if (device.index or 0) >= present:
        raise ConfigError(
            f'policy.device = {name!r}: {present} GPUs are present, from "cuda:0"; set "cuda" or '
            "one of them"
        )


def device_name(device: torch.device) -> str:
    """What computes there: a GPU's name, or a CPU's, its family and model and the code for it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return f"{_cpu()}, {torch.backends.cpu.get_cpu_capability()}"


def _cpu() -> str:
    """As Linux tells it; elsewhere, and where that names none, the architecture."""
    try:
        first = CPU_INFO.read_text().split("\n\n")[0]
    except OSError:
        first = ""
    parts = [line.partition(":") for line in first.splitlines()]
    told = {key.strip(): value.strip() for key, _, value in parts}
    if "model name" not in told:
        return platform.machine()
    number = f"family {told.get('cpu family', '?')}, model {told.get('model', '?')}"
    return f"{told['model name']} ({number})"
