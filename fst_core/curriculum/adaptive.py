"""Problems of middling difficulty again, by what their last group of rollouts showed."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fst_core.config.method import CurriculumSettings
from fst_core.curriculum.base import Outcome, StreamTools, spread
from fst_core.records import seed_of

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class Adaptive(CurriculumSettings):
    """Online difficulty filtering (Bae et al. 2025, arXiv 2504.03380), without extra rollouts.

    A problem seen before returns if the mean reward p of its last group had low < p < high, and
    else with probability decay^m, m its groups in a row outside: solved and hopeless problems come
    back ever more rarely. Those that return fill at most `again` of a cycle; the next new problems
    of the stream fill the rest. Where none is left (a train split gone through once), the others
    come back too, those longest unseen first. The paper rolls out more problems and drops those
    outside the band; here no group is generated to be dropped, so p is that of older weights.
    A generator's problems never end, so there "again" means positions of the stream shown before;
    in a sequence, those of the stage under way. Without a slow part it is the stream.
    Cost: none.
    """

    type: Literal["adaptive"] = "adaptive"
    low: float = Field(0.0, ge=0, lt=1)
    """Mean reward of a group up to which its problem counts as hopeless."""
    high: float = Field(1.0, gt=0, le=1)
    """Mean reward of a group from which its problem counts as solved."""
    decay: float = Field(0.5, ge=0, lt=1)
    """Probability that a problem returns in the cycle after one group outside the band."""
    again: float = Field(0.5, gt=0, le=1)
    """Largest share of a cycle that problems seen before fill; 1 repeats a fixed set of them."""
    prefer: Literal["random", "informative"] = "random"
    """Which of those that return come first: drawn at random, or those whose last group had the
    largest mean |advantage| (filtering by rollouts)."""
    memory: int = Field(4096, ge=1)
    """Problems remembered (the latest seen)."""

    def refuse(self, run: "RunConfig") -> None:
        """Refuse an empty band.

        Raises:
            ValueError: naming both ends.
        """
        if self.low >= self.high:
            raise ValueError(
                f"curriculum.low = {self.low} is not below curriculum.high = {self.high}, so no "
                "problem lies between them; lower the one or raise the other"
            )


@dataclass(frozen=True, slots=True)
class Seen:
    """What is remembered of a problem."""

    step: int
    """Slow step that saw it last."""
    outside: int
    """Groups in a row whose mean reward was outside the band."""
    advantage: float
    """Mean |advantage| of the last group."""


class ByDifficulty:
    """Slots hold problems that return and new ones (see `curriculum.base.Curriculum`)."""

    def __init__(self, settings: Adaptive, tools: StreamTools):
        self.settings, self.tools = settings, tools
        self.seen: dict[int, Seen] = {}
        """By position, in the order they were last seen."""
        self.next = 0
        """First position of the stream that was not new yet."""

    def choose(self, slots: range) -> list[int]:
        """For each stage the cycle meets: those that return, spread evenly among new ones."""
        chosen: list[int] = []
        for stage, part in self.tools.layout.stages(slots):
            rng = random.Random(seed_of(self.tools.run.seed, "adaptive", part.start))
            old, new = self._pick(stage, len(part), rng)
            new += part[len(old) + len(new) :]
            chosen += [(old if mark else new).pop(0) for mark in spread(len(old), len(part))]
        return chosen

    def _pick(self, stage: range, size: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """(problems seen before, new ones), at most `size` in all."""
        known = [position for position in self.seen if position in stage]
        old = self._returning(known, rng)[: round(self.settings.again * size)]
        rng.shuffle(old)
        new = self._new(stage, size - len(old))
        left = [position for position in known if position not in set(old)]
        return old + left[: size - len(old) - len(new)], new

    def _returning(self, known: Iterable[int], rng: random.Random) -> list[int]:
        """Which problems return, the preferred ones first."""
        back = [p for p in known if rng.random() < self.settings.decay ** self.seen[p].outside]
        rng.shuffle(back)
        if self.settings.prefer == "informative":
            back.sort(key=lambda position: -self.seen[position].advantage)
        return back

    def _new(self, stage: range, count: int) -> list[int]:
        """The next problems of the stream that have not come before."""
        found: list[int] = []
        self.next = max(self.next, stage.start)
        while len(found) < count and self.next < stage.stop:
            if self.tools.is_first(self.next):
                found.append(self.next)
            self.next += 1
        return found

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Remember each problem's last group."""
        for outcome in outcomes:
            if not self.tools.is_first(outcome.position):
                continue  # the stream's own filling, of problems known by their first position
            before = self.seen.pop(outcome.position, None)
            inside = self.settings.low < outcome.reward < self.settings.high
            outside = 0 if inside else 1 + (before.outside if before else 0)
            self.seen[outcome.position] = Seen(outcome.step, outside, outcome.advantage)
        for position in list(self.seen)[: -self.settings.memory]:
            del self.seen[position]

    def state(self) -> Mapping[str, Any]:
        """What is remembered, in order, and how far the stream has come."""
        seen = [[position, *astuple(seen)] for position, seen in self.seen.items()]
        return {"next": self.next, "seen": seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """What was remembered, and how far the stream had come."""
        self.next = state["next"]
        self.seen = {row[0]: Seen(*row[1:]) for row in state["seen"]}
