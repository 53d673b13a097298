"""How the two loops interleave, and which of their states survive."""

from typing import Self

from pydantic import Field, model_validator

from fst_core.config.model import ConfigModel

MOST_ROWS = 1_000_000_000
"""Problems that all slow steps of a run may take together."""


class LoopConfig(ConfigModel):
    """How the two loops interleave."""

    steps: int = Field(40, ge=0, le=10_000_000)
    """Slow steps in the whole run; a run without a slow part counts them for its cycles only."""
    cycle_steps: int = Field(6, ge=1)
    """T: slow steps between two fast phases."""
    problems_per_step: int = Field(32, ge=1, le=65_536)
    """B: problems in one slow step."""
    group_size: int = Field(8, ge=2, le=65_536)
    """G: rollouts per problem in one slow step."""

    @model_validator(mode="after")
    def check_rows(self) -> Self:
        rows = self.steps * self.problems_per_step
        if rows > MOST_ROWS:
            raise ValueError(
                f"loop.steps = {self.steps} times loop.problems_per_step = "
                f"{self.problems_per_step} are {rows} rows, and all rows of a run are listed; "
                f"lower one of them, to {MOST_ROWS} rows at most"
            )
        return self


class CheckpointConfig(ConfigModel):
    """What survives a dead machine."""

    every_cycles: int = Field(default=1, ge=1)
    """A checkpoint is written after each phase of every n-th cycle, and at the end of the run; a
    resume repeats what came after the last one."""
    after_fast: bool = True
    """Also after every fast phase, so that no reflection is paid twice; false writes fewer."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept; older ones are removed."""
