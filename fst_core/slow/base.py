"""The seam of the slow loop: a SlowPart advances the weights one optimizer step at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fst_core.config import RunConfig
from fst_core.environments.base import Judge
from fst_core.records import Population, Problem, Rollout

if TYPE_CHECKING:
    from fst_core.policy.language_model import LanguageModelPolicy


class TrainingDiverged(RuntimeError):
    """The loss is no longer finite, or too many steps in a row had no finite gradient."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one slow step did: `slow/...` metrics and the rollouts it learned from."""

    step: int
    metrics: Mapping[str, float]
    rollouts: tuple[Rollout, ...]
    replaced: tuple[tuple[Rollout, ...], ...] = ()
    """Rollouts that as many others took the place of, by the engine call that drew the others."""


@dataclass(frozen=True, slots=True)
class SlowTools:
    """What a slow part is made from, besides its settings."""

    run: RunConfig
    policy: "LanguageModelPolicy"
    environment: Judge
    """Judges, and knows solutions, for settings that train on given answers."""


class SlowPart(Protocol):
    """A gradient learner, kept warm from the first step to the last."""

    def open(self, checkpoint: Path | None) -> None:
        """Load everything and wait in front of the next step (the first, or a checkpoint's)."""
        ...

    def step(self, population: Population, problems: Sequence[Problem]) -> StepReport:
        """One optimizer step on B problems, its rollouts spread over the population's contexts.

        Problems after the first B are given only where the settings' `refills` is not 0.

        Raises:
            TrainingDiverged: if the loss is not finite.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, schedule and step count into an existing folder."""
        ...

    def close(self) -> None:
        """End training and free what it holds; safe to call twice."""
        ...
