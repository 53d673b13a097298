"""The seam of the fast loop: a FastPart turns a population into a better one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fst_core.records import Context, Population, Problem, Rollout

if TYPE_CHECKING:
    from fst_core.rollouts import RollOut

Messages = list[dict[str, str]]
Chat = Callable[[Sequence[Messages], Sequence[int]], Sequence[str | None]]
"""(chats, one seed per chat) -> replies in order; None for a reply that was no text at all."""


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
    """Proposals refused before evaluation, by reason: empty, too_long, unparsable, repeated; and
    malformed edits of methods whose reflection writes edits."""
    reused: int = 0
    """Rollouts of the slow phase that reflection could read."""
    reflection_usage: Mapping[str, float] = field(default_factory=dict)
    """prompt_tokens, completion_tokens, usd of outside reflection models."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further figures of this method, named `fast/...`."""


@dataclass(frozen=True, slots=True)
class FastTools:
    """What a fast part is made from, besides its settings."""

    roll_out: "RollOut"
    """Generates and judges a batch of (context, problem) pairs in one engine call."""
    solve: Callable[[Problem], str | None]
    """The environment's solution of a train problem, for settings that show solutions only."""
    chat: Chat | None
    """The policy's chat, needed by `policy` reflection only."""
    run_seed: int
    size: int
    """K, the slots of a population."""
    max_tokens: int
    """Longest context, by `count_tokens`."""
    count_tokens: Callable[[str], int]
    """Tokens of a text under the policy's tokenizer."""

    def fits(self, text: str) -> bool:
        """Whether a text may be a context."""
        return self.count_tokens(text) <= self.max_tokens


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

        `recent` are slow rollouts, paid for already, as far back as the settings' `reads` says.
        """
        ...
