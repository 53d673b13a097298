"""The whole of a run."""

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from fst_core.config.contexts import ContextsConfig
from fst_core.config.curriculum import Stream
from fst_core.config.environment import (
    EnvironmentConfig,
    SequenceConfig,
    environment_name,
    tasks_of,
)
from fst_core.config.evaluation import EvaluationConfig
from fst_core.config.fast import NoFast
from fst_core.config.loop import CheckpointConfig, LoopConfig
from fst_core.config.method import (
    CurriculumSettings,
    FastSettings,
    MethodSettings,
    RetentionSettings,
    SlowSettings,
    one_of,
)
from fst_core.config.model import ConfigModel, FolderName, RunSeed, first_twin
from fst_core.config.policy import PolicyConfig, TinyPolicy
from fst_core.config.slow import NoSlow
from fst_core.methods import CURRICULUM, FAST, RETENTION, SLOW

if TYPE_CHECKING:
    FastConfig = FastSettings
    SlowConfig = SlowSettings
    CurriculumConfig = CurriculumSettings
    RetentionConfig = RetentionSettings
else:  # every registered method
    FastConfig = one_of(FAST, FastSettings)
    SlowConfig = one_of(SLOW, SlowSettings)
    CurriculumConfig = one_of(CURRICULUM, CurriculumSettings)
    RetentionConfig = one_of(RETENTION, RetentionSettings)


class RunConfig(ConfigModel):
    """One run, fully resolved."""

    name: FolderName = "run"
    """Name of the experiment: folder under runs/ and MLflow experiment."""
    arm: FolderName = "fst"
    """Arm this run belongs to."""
    seed: RunSeed = 0
    """Seed of everything drawn in this run."""
    why: str = ""
    """Why this task was selected; printed in the report."""
    data: str | None = None
    """Folder of versioned problem pools; absent: problems come from the generator itself."""
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads of torch."""
    start_from: str | None = None
    """Run whose final weights this one begins with, as NAME/ARM-sSEED below the folder of runs (or
    a path); {seed} stands for the run's own seed. The optimizer starts afresh, and KL is still
    taken to the base model."""
    environment: EnvironmentConfig
    policy: PolicyConfig = TinyPolicy()
    contexts: ContextsConfig = ContextsConfig()
    loop: LoopConfig = LoopConfig()
    fast: FastConfig = NoFast()
    slow: SlowConfig = NoSlow()
    curriculum: CurriculumConfig = Stream()
    """Which problems come when."""
    retention: tuple[RetentionConfig, ...] = ()
    """What holds on to what was learned before; several work together."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def population_size(self) -> int:
        """K, or 1 where a run has the seed context alone."""
        return self.contexts.size if self.has_contexts else 1

    @property
    def has_contexts(self) -> bool:
        """Whether the population may hold more than the seed context."""
        return not isinstance(self.fast, NoFast) or self.contexts.start_from is not None

    @property
    def learns(self) -> bool:
        """Whether a fast or a slow part is at work."""
        return not (isinstance(self.fast, NoFast) and isinstance(self.slow, NoSlow))

    @property
    def id(self) -> str:
        """Folder name of the run: arm and seed."""
        return f"{self.arm}-s{self.seed}"

    @model_validator(mode="after")
    def check_starts(self) -> Self:
        own = PurePosixPath(self.name, self.id)
        starts = {"start_from": self.start_from, "contexts.start_from": self.contexts.start_from}
        for key, start in starts.items():
            if start is not None and not start.strip():
                raise ValueError(f"{key} is empty; name a run as NAME/ARM-sSEED, or leave it out")
            if start is not None and PurePosixPath(start) == own:
                raise ValueError(
                    f"{key} = {start!r} is this run, and a run cannot start from itself; name "
                    "another run, or set it in the arms that start from this one"
                )
        return self

    @model_validator(mode="after")
    def check_methods(self) -> Self:
        loop = self.loop
        if loop.group_size % self.population_size:
            raise ValueError(
                f"contexts.size = {self.population_size} does not divide loop.group_size = "
                f"{loop.group_size}: every context needs the same share of a group; "
                "choose K among the divisors of G"
            )
        if self.contexts.components and not self.fast.joint:
            raise ValueError(
                f"fast.type = {self.fast.type!r} evolves a context as one text, and "
                "contexts.components names its parts; set fast.type = 'gepa', or write contexts."
                "seed instead"
            )
        methods: list[MethodSettings] = [self.fast, self.slow, self.curriculum, *self.retention]
        for method in methods:
            method.refuse(self)
        return self

    @model_validator(mode="after")
    def check_sequence(self) -> Self:
        sequence, loop = self.environment, self.loop
        if not isinstance(sequence, SequenceConfig):
            return self
        steps = len(sequence.tasks) * sequence.task_steps
        if loop.steps != steps:
            raise ValueError(
                f"loop.steps = {loop.steps}, but {len(sequence.tasks)} tasks of environment."
                f"task_steps = {sequence.task_steps} make {steps}; set one to fit the other"
            )
        if sequence.told and sequence.task_steps % loop.cycle_steps:
            raise ValueError(
                f"loop.cycle_steps = {loop.cycle_steps} does not divide environment.task_steps = "
                f"{sequence.task_steps}, so a cycle would span the switch it is told of"
            )
        return self

    @model_validator(mode="after")
    def check_suites(self) -> Self:
        names = [environment_name(task) for task in tasks_of(self.environment)]
        names += [suite.name for suite in self.evaluation.suites]
        twin = first_twin(names)
        if twin is not None:
            raise ValueError(f"evaluation.suites: {twin!r} names two sets of problems; rename one")
        return self

    def task_at(self, step: int) -> str:
        """Name of the task that slow step number `step` (from 1) trains on."""
        tasks = tasks_of(self.environment)
        if not isinstance(self.environment, SequenceConfig):
            return environment_name(tasks[0])
        return environment_name(tasks[(step - 1) // self.environment.task_steps])
