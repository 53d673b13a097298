"""How weights are updated: the slow weights."""

from typing import Annotated, Literal

from pydantic import Field

from fst_core.config.model import ConfigModel


class NoSlow(ConfigModel):
    """Weights stay as they are."""

    type: Literal["none"] = "none"


class CispoConfig(ConfigModel):
    """CISPO (FST, Eq. 4): clipped importance weight, under stop-gradient, times the advantage."""

    type: Literal["cispo"] = "cispo"
    tau: float = Field(4.0, gt=0)
    """Absolute upper bound on the token importance weight; there is no lower clip."""
    learning_rate: float = Field(1e-6, gt=0)
    """Peak AdamW learning rate, constant after the warm-up."""
    warmup_steps: int = Field(10, ge=0)
    """Linear warm-up (steps)."""
    beta: float = Field(0.001, ge=0)
    """KL coefficient towards the base model, under each rollout's own context; 0 loads no base."""
    scale_by_std: bool = True
    """Divide a group's advantages by its standard deviation."""
    zero_variance: Literal["drop", "keep"] = "drop"
    """Groups whose rewards are all equal: dropped from the batch, or kept in the token count."""
    micro_batch: int = Field(64, ge=1)
    """Sequences per forward and backward pass on one device; divides the batch of rollouts."""
    token_budget: int | None = Field(None, ge=1)
    """Padded tokens per forward and backward pass on one device: a step's rows, sorted by length,
    are cut by it, and `micro_batch` is not looked at. A longer row gets a pass of its own."""
    mismatch: Literal["measure", "correct"] = "measure"
    """The engine's log-probabilities against the trainer's: measured only, or also the denominator
    of the importance weight, so that its cap `tau` truncates what the engine got wrong."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradient clipping threshold (L2 norm)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""


SlowConfig = Annotated[NoSlow | CispoConfig, Field(discriminator="type")]
