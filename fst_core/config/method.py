"""What the settings of a method offer the lab, whatever the method; each kind has one base."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import Field

from fst_core.config.model import ConfigModel
from fst_core.methods import settings_of

if TYPE_CHECKING:
    from fst_core.config.fast import ReflectionConfig
    from fst_core.config.run import RunConfig


@dataclass(frozen=True, slots=True)
class Search:
    """Upper bounds of one fast phase."""

    rollouts: int = 0
    calls: int = 0
    """Engine calls."""
    reflections: int = 0
    """Texts written by the reflection."""


class MethodSettings(ConfigModel):
    """Settings of one method, chosen by its `type`."""

    type: str
    """Name of the method; see `fst methods`."""

    def refuse(self, run: "RunConfig") -> None:
        """Refuse combinations that cannot work, when the config is read.

        Raises:
            ValueError: one sentence with the keys, the reason and the remedy.
        """


class FastSettings(MethodSettings):
    """Settings of a fast part."""

    joint: ClassVar[bool] = False
    """Whether it evolves contexts that are made of several components."""

    @property
    def reads(self) -> int | None:
        """The fast part is shown slow rollouts of at most this many slow steps ago.

        0 shows it none; None all those since the fast phase before.
        """
        return 0

    @property
    def writer(self) -> "ReflectionConfig | None":
        """What writes its contexts, if anything does."""
        return None

    def bounds(self, problems: int, run: "RunConfig") -> Search:
        """The most that a fast phase in front of so many problems can use."""
        return Search()


class SlowSettings(MethodSettings):
    """Settings of a slow part."""

    @property
    def refills(self) -> int:
        """How often at most one slow step draws other problems in the place of some of its own."""
        return 0

    def rollouts(self, run: "RunConfig") -> int:
        """Policy rollouts of one slow step; where it `refills`, at most."""
        return (1 + self.refills) * run.loop.problems_per_step * run.loop.group_size

    def refuse_rows(self, rows: int, whose: str) -> None:
        """Refuse a number of rollouts that one process cannot train on at once.

        Raises:
            ValueError: naming the setting; `whose` says which rollouts they are.
        """


class CurriculumSettings(MethodSettings):
    """Settings of a curriculum."""


class RetentionSettings(MethodSettings):
    """Settings of something that holds on to what was learned before."""

    place: ClassVar[Literal["loss", "stream"]]
    """Whether it adds to the slow part's loss or changes the stream of problems."""


def one_of(methods: Mapping[str, Any], base: type[MethodSettings]) -> Any:
    """The type of a config field that holds the settings of any registered method of a kind."""
    known = settings_of(methods)
    if len(known) < 2:
        return known[0] if known else base
    return Annotated[Union[known], Field(discriminator="type")]  # noqa: UP007 - made at run time
