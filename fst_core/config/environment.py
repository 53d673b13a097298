"""Where problems come from and how an answer is judged."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fst_core.config.imported import Imported
from fst_core.config.model import ConfigModel, FolderName, first_twin
from fst_core.counting import counted


class DirectivesConfig(ConfigModel):
    """The tiny policy's own world: plain questions whose answer format only the judge knows."""

    type: Literal["directives"] = "directives"
    name: FolderName = "directives"
    """Name in tables, pools and problem ids."""
    task: Literal["echo", "first", "sum", "mixed"] = "echo"
    """Which kind of question is asked."""
    required: tuple[str, ...] = ("answer-tag", "dashes")
    """Names of the directives an answer must obey."""
    told: bool = False
    """Put into each problem's own system message, in words never trained on, what is required."""
    seed: int = 0
    """Seed of the problem stream."""


class ReasoningGymConfig(ConfigModel):
    """Any generator of the reasoning-gym package."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: FolderName
    """Generator name, for example "basic_arithmetic", "codeio" or "path_star"."""
    name: FolderName | None = None
    """Name in tables, pools and problem ids; the generator's name when absent."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Generator settings, passed on as they are (difficulty, ranges); see reasoning-gym."""
    answer: Literal["anywhere", "tag"] = "tag"
    """How the answer is read: the last number or line of the text, or what answer tags hold."""
    tag: str = "answer"
    """Tag name used when `answer = "tag"`: <answer>...</answer>."""
    question_note: str = ""
    """Text added after every question; empty keeps the format unknown to the policy."""
    seed: int = 0
    """Seed of the problem stream."""
    partial_credit: bool = True
    """Keep the generator's own partial rewards; false gives 1 for full marks and 0 for the rest."""
    held_out_problems: int = Field(256, ge=1)
    """Most problems in the validation and in the test split; small problem spaces hold fewer."""


class JsonlConfig(ConfigModel):
    """Your own problems: one JSON object a line with `question` and `answer`."""

    type: Literal["jsonl"] = "jsonl"
    path: str
    """File of all problems, split by content hash; or a folder with {split}.jsonl files."""
    name: FolderName = "jsonl"
    """Name in tables, pools and problem ids."""
    grader: Literal["exact", "numeric", "choice", "json"] = "exact"
    """How an answer is compared with the reference."""
    answer: Literal["anywhere", "tag"] = "anywhere"
    """How the answer is read: the last fitting piece of the text, or what stands in answer tags."""
    tag: str = "answer"
    """Tag name used when `answer = "tag"`."""
    validation: float = Field(0.1, gt=0, lt=0.5)
    """Share of problems held out for validation when `path` is one file."""
    test: float = Field(0.1, gt=0, lt=0.5)
    """Share of problems held out for the test when `path` is one file."""


TaskConfig = Annotated[
    DirectivesConfig | ReasoningGymConfig | JsonlConfig | Imported, Field(discriminator="type")
]


class SequenceConfig(ConfigModel):
    """Tasks one after the other in one uninterrupted run: continual learning (FST, section 5)."""

    type: Literal["sequence"] = "sequence"
    name: FolderName = "sequence"
    """Name of the sequence; its tasks have names of their own."""
    tasks: tuple[TaskConfig, ...] = Field(min_length=2)
    """The tasks in the order of training, each once."""
    task_steps: int = Field(ge=1)
    """Slow steps on each task; `loop.steps` is this times the number of tasks."""
    told: bool = False
    """At a switch, start again from the seed context; else the run is not told of the switch."""

    @model_validator(mode="after")
    def check_names(self) -> Self:
        refuse_twins(self.tasks)
        return self


class MixtureConfig(ConfigModel):
    """Several tasks at once, their problems in turn; each is evaluated on its own."""

    type: Literal["mixture"] = "mixture"
    name: FolderName = "mixture"
    """Name of the mixture; its tasks have names of their own."""
    tasks: tuple[TaskConfig, ...] = Field(min_length=2)
    """The tasks, each once; a curriculum may go through them in this order."""
    weights: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = ()
    """Problems of each task in one round of the stream; empty gives one each. [2, 1] makes two of
    three problems the first task's."""

    @model_validator(mode="after")
    def check_tasks(self) -> Self:
        refuse_twins(self.tasks)
        if self.weights and len(self.weights) != len(self.tasks):
            raise ValueError(
                f"weights has {counted(len(self.weights), 'entry', 'entries')} for "
                f"{len(self.tasks)} tasks; give one whole number a task, or none"
            )
        return self


EnvironmentConfig = Annotated[
    DirectivesConfig | ReasoningGymConfig | JsonlConfig | Imported | SequenceConfig | MixtureConfig,
    Field(discriminator="type"),
]


def refuse_twins(tasks: Sequence[TaskConfig]) -> None:
    """Refuse tasks that share a name, which tables and pools would mix up (see `first_twin`).

    Raises:
        ValueError: naming the first.
    """
    twin = first_twin(environment_name(task) for task in tasks)
    if twin is not None:
        raise ValueError(f"two tasks are named {twin!r}; give each a name of its own")


def environment_name(config: TaskConfig) -> str:
    """The name of an environment in tables, pools and problem ids."""
    if isinstance(config, ReasoningGymConfig):
        return config.name or config.dataset
    return config.name


def tasks_of(config: EnvironmentConfig) -> tuple[TaskConfig, ...]:
    """The tasks a run trains on, in order; one for all but sequences and mixtures."""
    if isinstance(config, SequenceConfig | MixtureConfig):
        return config.tasks
    return (config,)
