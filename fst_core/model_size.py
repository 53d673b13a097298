"""How large a policy is, from its files where they are here, without loading it."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fst_core.config import HubPolicy, PolicyConfig, Smollm2Policy
from fst_core.config.model import NotHere
from fst_core.policy.locate import cache_folder, cached_config, locate
from fst_core.sizing import KNOWN, Shape, shape_in


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters and shape of a model, as far as they are known here."""

    parameters: int | None
    source: str
    """Where the number comes from; empty for the weights themselves."""
    shape: Shape | None

    @property
    def told(self) -> str:
        """The number for people, and where it comes from."""
        if self.parameters is None:
            return "unknown: not on this machine yet; policy.parameters can tell the cost of it"
        return f"{self.parameters:,}{f' ({self.source})' if self.source else ''}"


def size_of(policy: PolicyConfig) -> ModelSize:
    """Parameters by the headers of the weights, else the model's config.json, else what the TOML
    says (`policy.parameters`), else the published shape of a known model."""
    folder = _folder(policy)
    file = folder / "config.json" if folder else cached_config(policy)
    shape = shape_in(file) if file and file.is_file() else None
    counted = _count(folder) if folder else None
    given = policy.parameters if isinstance(policy, HubPolicy) else None
    known = KNOWN.get(policy.model) if isinstance(policy, HubPolicy) else None
    if counted:
        return ModelSize(counted, "", shape or known)
    if shape:
        return ModelSize(shape.parameters, "by its config.json", shape)
    if given:
        return ModelSize(given, "as policy.parameters says, for this cost alone", known)
    if known:
        return ModelSize(known.parameters, "by its published shape", known)
    return ModelSize(None, "", None)


def _folder(policy: PolicyConfig) -> Path | None:
    """The local folder of a policy's weights; None where it is on the hub, or absent."""
    if isinstance(policy, Smollm2Policy):
        return cache_folder() / "smollm2-135m"  # locate() would convert it now
    try:
        folder, _ = locate(policy)
    except NotHere:
        return None
    return folder if isinstance(folder, Path) else None


def _count(folder: Path) -> int | None:
    counts = [count for file in folder.glob("*.safetensors") for count in _tensor_sizes(file)]
    return sum(counts) or None


def _tensor_sizes(file: Path) -> Iterator[int]:
    """Elements of each tensor of a safetensors file, whose header is 8 bytes of length and JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    for name, tensor in header.items():
        if name != "__metadata__":
            yield math.prod(tensor["shape"])
