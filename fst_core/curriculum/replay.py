"""Problems of earlier stages of a sequence, shown again among the new ones."""

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from fst_core.config.method import RetentionSettings
from fst_core.curriculum.base import Curriculum, Outcome, StreamTools, spread
from fst_core.records import seed_of

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class ReplaySettings(RetentionSettings):
    """What all kinds of replay have in common."""

    place: ClassVar[Literal["loss", "stream"]] = "stream"
    fraction: float = Field(0.25, gt=0, lt=1)
    """Share of every step's problems that are replayed, from the second stage on."""
    capacity: int = Field(256, ge=1)
    """Most problems in the reservoir."""

    def count(self, run: "RunConfig") -> int:
        """Problems of a step that may be replayed."""
        return round(self.fraction * run.loop.problems_per_step)

    def refuse(self, run: "RunConfig") -> None:
        """Refuse a run without stages, and steps too small for the share.

        Raises:
            ValueError: naming both settings.
        """
        if run.environment.type != "sequence":
            raise ValueError(
                f'retention.type = "{self.type}" shows problems of earlier stages, and '
                f"environment.type = {run.environment.type!r} has no stages; set it to "
                '"sequence", or remove the entry from retention'
            )
        if not 0 < self.count(run) < run.loop.problems_per_step:
            raise ValueError(
                f"retention.fraction = {self.fraction} of loop.problems_per_step = "
                f"{run.loop.problems_per_step} is {self.count(run)} whole problems; a step needs "
                "both replayed and new ones, so change one of the two"
            )


class Replay(ReplaySettings):
    """Experience replay for continual learning (Rolnick et al. 2019, arXiv 1811.11682).

    A share of every step's problems, spread evenly over it, comes from earlier stages: drawn
    without replacement from a reservoir, a uniform sample of all problems those stages showed. They
    take the place of the curriculum's own, so a step costs what it did. Questions are replayed, not
    completions: the policy answers them anew, under the population's contexts, and is judged by the
    problem's own task; the fast phase, too, meets them among the problems of its cycle.
    Cost: none; new problems are fewer by that share.
    """

    type: Literal["replay"] = "replay"


class Replayed:
    """Another curriculum with some of its slots given to the reservoir.

    The reservoir holds those `capacity` positions whose hashes are smallest (bottom-k sampling), a
    uniform sample that neither order nor repetition of what is shown can change.
    """

    def __init__(self, settings: ReplaySettings, tools: StreamTools, inner: Curriculum):
        self.settings, self.tools, self.inner = settings, tools, inner
        self.stage = 0
        """First position of the stage under way."""
        self.reservoir: list[int] = []
        """Positions of earlier stages, by hash."""
        self.shown: list[int] = []
        """The same of the stage under way."""

    def choose(self, slots: range) -> list[int]:
        """The inner choice, with replayed positions in their places of each step."""
        chosen, batch = self.inner.choose(slots), self.tools.run.loop.problems_per_step
        for stage, part in self.tools.layout.stages(slots):
            self._enter(stage)
            for step in range(part.start // batch, part.stop // batch):
                at = step * batch - slots.start
                self._replay(step, chosen, range(at, at + batch))
        return chosen

    def _enter(self, stage: range) -> None:
        if stage.start != self.stage:
            self.reservoir = self._sample(self.reservoir + self.shown)
            self.stage, self.shown = stage.start, []

    def _replay(self, step: int, chosen: list[int], places: range) -> None:
        """Replace some of a step's positions, and take note of the others."""
        old = self._drawn(random.Random(seed_of(self.tools.run.seed, "replay", step)))
        marks = zip(places, spread(len(old), len(places)), strict=True)
        replaced = [place for place, mark in marks if mark]
        for place, position in zip(replaced, old, strict=True):
            chosen[place] = position
        own = [chosen[place] for place in places if place not in replaced]
        self.shown = self._sample(self.shown + own)

    def _drawn(self, rng: random.Random) -> list[int]:
        """Positions of the reservoir for one step."""
        count = self.settings.count(self.tools.run)
        return rng.sample(self.reservoir, min(count, len(self.reservoir)))

    def _sample(self, positions: Sequence[int]) -> list[int]:
        seed = self.tools.run.seed
        ordered = sorted(set(positions), key=lambda p: seed_of(seed, "reservoir", p))
        return ordered[: self.settings.capacity]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Hand on."""
        self.inner.observe(outcomes)

    def state(self) -> Mapping[str, Any]:
        """Both samples, and the inner state."""
        own = {"stage": self.stage, "reservoir": self.reservoir, "shown": self.shown}
        return {**own, "inner": dict(self.inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Both samples, and the inner state."""
        self.stage, self.reservoir = state["stage"], list(state["reservoir"])
        self.shown = list(state["shown"])
        self.inner.restore(state["inner"])
