"""What is measured on held-out problems, and when."""

from typing import Annotated, Literal

from pydantic import Field

from fst_core.config.environment import TaskConfig
from fst_core.config.model import ConfigModel, FolderName


class SuiteConfig(ConfigModel):
    """Test problems of an environment, measured before and after training: what a run forgets."""

    name: FolderName
    """Name in tables and pools; replaces the environment's own."""
    axis: Literal["in distribution", "cross domain", "easy to hard"]
    """How the environment differs from what the run trains on."""
    contexts: tuple[Literal["none", "seed", "best"], ...] = Field(("none",), min_length=1)
    """Contexts it is measured under; "none" is no system message at all."""
    problems: int = Field(64, ge=1)
    """Test problems (the first of the split)."""
    samples: int = Field(4, ge=1)
    """Rollouts per problem and context."""
    environment: TaskConfig


class EvaluationConfig(ConfigModel):
    """Measurements on held-out problems."""

    every: int = Field(10, ge=0)
    """Slow steps between evaluations; 0 evaluates at the start and the end only."""
    after_switch: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2, 4)
    """Slow steps after a switch of task at which to evaluate as well (sequences only)."""
    problems: int = Field(64, ge=1)
    """Validation problems of each task (the first of the split)."""
    samples: int = Field(4, ge=1)
    """Rollouts per problem and context."""
    kl: bool = True
    """Also measure KL to the base model, and the entropy, on these completions."""
    ends: bool = True
    """At the first and last evaluation, also measure without any context; at the last, also the
    base weights under the same contexts."""
    suites: tuple[SuiteConfig, ...] = ()
    """Batteries measured at the first and the last evaluation."""
