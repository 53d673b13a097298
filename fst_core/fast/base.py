"""The seam of the fast loop: a FastPart turns a population into a better one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fst_core.records import Context, Population, Problem, Rollout


@dataclass(frozen=True, slots=True)
class Candidate:
    """A context the search accepted, with its score on each anchor."""

    context: Context
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evolution:
    """What one fast phase did: the next population, every candidate, and what it cost."""

    population: Population
    candidates: tuple[Candidate, ...] = ()
    metric_calls: int = 0
    generate_calls: int = 0
    reflection_calls: int = 0
    proposals: int = 0
    accepted: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Proposals refused before evaluation, by reason: empty, too_long, unparsable, repeated."""
    reused: int = 0
    """Rollouts of the slow phase that reflection could read."""
    reflection_usage: Mapping[str, float] = field(default_factory=dict)
    """prompt_tokens, completion_tokens, usd of outside reflection models."""


class FastPart(Protocol):
    """A context optimiser; its state lives in the population and the cycle number alone."""

    def evolve(
        self,
        population: Population,
        problems: Sequence[Problem],
        cycle: int,
        recent: Sequence[Rollout] = (),
    ) -> Evolution:
        """Evolve contexts on the coming cycle's train problems against the current weights.

        `recent` are slow rollouts that reflection may read; they are paid for and no scores.
        """
        ...
