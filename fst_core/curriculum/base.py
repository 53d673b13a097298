"""The seam of the problem stream: a Curriculum says which problem stands at which slot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fst_core.config import RunConfig
    from fst_core.environments.layout import Layout


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one group of rollouts showed of a train problem."""

    position: int
    """Of the problem in the training stream."""
    task: str
    """Name of its environment."""
    step: int
    """Slow step (from 1) that trained on it."""
    reward: float
    """Mean over the group, in [0, 1]."""
    advantage: float
    """Mean absolute deviation of the group's rewards from their mean, in [0, 0.5]."""


@dataclass(frozen=True, slots=True)
class StreamTools:
    """What a curriculum may know of the run: never anything held out."""

    run: "RunConfig"
    layout: "Layout"
    """Which problem of which task stands at each position."""
    is_first: Callable[[int], bool]
    """Whether a position is the first of its problem: false where a finite split begins again."""


class Curriculum(Protocol):
    """Fills slots with positions of the training stream. Slot i belongs to slow step i // B + 1.

    Called once a cycle, in order, for all slots of the cycle; what it knows by then are the
    outcomes of the cycles before. Its state is plain JSON, so that a resumed run goes on alike.
    In a sequence a slot holds a position of its own stage.
    """

    def choose(self, slots: range) -> list[int]:
        """A position of `fst_core.environments.tasks.Tasks.train` for each slot."""
        ...

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """What one slow step showed, one outcome per problem of the step."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Everything that later choices depend on."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of an earlier process."""
        ...


def spread(count: int, size: int) -> list[bool]:
    """Mark `count` of `size` places, as evenly apart as whole places allow."""
    return [(i + 1) * count // size > i * count // size for i in range(size)]
