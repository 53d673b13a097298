"""The training stream in order."""

from collections.abc import Mapping, Sequence
from typing import Any

from fst_core.config.curriculum import Stream
from fst_core.curriculum.base import Outcome, StreamTools


class InOrder:
    """Slot i holds problem i (see `curriculum.base.Curriculum`)."""

    def __init__(self, settings: Stream, tools: StreamTools):
        self.settings = settings

    def choose(self, slots: range) -> list[int]:
        """The slots themselves."""
        return list(slots)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing is learned."""

    def state(self) -> Mapping[str, Any]:
        """Nothing is kept."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing was kept."""
