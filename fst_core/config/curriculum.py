"""Which problems come when."""

from typing import TYPE_CHECKING, Literal

from fst_core.config.method import CurriculumSettings

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class Stream(CurriculumSettings):
    """The training stream as it is: every problem once, in order (FST, section 3).

    Cost: none.
    """

    type: Literal["stream"] = "stream"


class MixtureCurriculum(CurriculumSettings):
    """Settings of a curriculum that decides how much of each of a mixture's tasks comes when."""

    def refuse(self, run: "RunConfig") -> None:
        """Refuse any environment but a mixture: nothing else has tasks to choose among.

        Raises:
            ValueError: naming the curriculum and the environment.
        """
        if run.environment.type != "mixture":
            raise ValueError(
                f"curriculum.type = {self.type!r} chooses among the tasks of a mixture, and "
                f'environment.type is {run.environment.type!r}; set it to "mixture" with the '
                'tasks, or take another curriculum, such as "stream"'
            )
