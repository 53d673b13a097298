"""Problems drawn at random."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fst_core.config.method import CurriculumSettings
from fst_core.curriculum.base import Outcome, StreamTools
from fst_core.records import seed_of


class Uniform(CurriculumSettings):
    """Uniform sampling: problems drawn at random, without replacement within a cycle only.

    The pool is the problems that the stream would show in the run (in a sequence: in the stage),
    each once: the train split where it is smaller than that. Every cycle draws anew from the whole
    pool, so some problems return before others have come, where the stream shows each once first.
    Cost: none.
    """

    type: Literal["uniform"] = "uniform"
    pool: int | None = Field(None, ge=1)
    """Most problems in the pool (the first of the stream, or stage); absent: no limit."""


class AtRandom:
    """Each slot holds a random position of the pool (see `curriculum.base.Curriculum`)."""

    def __init__(self, settings: Uniform, tools: StreamTools):
        self.settings, self.tools = settings, tools
        self.pools: dict[range, list[int]] = {}

    def choose(self, slots: range) -> list[int]:
        """Shuffles of the pool, one after the other where a cycle is longer than the pool."""
        chosen: list[int] = []
        for stage, part in self.tools.layout.stages(slots):
            pool = self._pool(stage)
            rng = random.Random(seed_of(self.tools.run.seed, "uniform", part.start))
            drawn: list[int] = []
            while len(drawn) < len(part):
                drawn += rng.sample(pool, min(len(pool), len(part) - len(drawn)))
            chosen += drawn
        return chosen

    def _pool(self, stage: range) -> list[int]:
        if stage not in self.pools:
            first = [position for position in stage if self.tools.is_first(position)]
            self.pools[stage] = first[: self.settings.pool]
        return self.pools[stage]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing is learned."""

    def state(self) -> Mapping[str, Any]:
        """Nothing is kept."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing was kept."""
