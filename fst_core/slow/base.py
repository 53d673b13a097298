"""The seam of the slow loop: a SlowPart advances the weights one optimizer step at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fst_core.records import Population, Rollout


class TrainingDiverged(RuntimeError):
    """The loss is no longer finite, or too many steps in a row had no finite gradient."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one slow step did: `slow/...` metrics and the rollouts it learned from."""

    step: int
    metrics: Mapping[str, float]
    rollouts: tuple[Rollout, ...]


class SlowPart(Protocol):
    """A gradient learner, kept warm from the first step to the last."""

    def open(self, checkpoint: Path | None) -> None:
        """Load everything and wait in front of the next step (the first, or a checkpoint's)."""
        ...

    def step(self, population: Population) -> StepReport:
        """One optimizer step, its rollouts spread over the population's contexts.

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
