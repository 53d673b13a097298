"""Problems that others published: data sets by file or hub, and environments of verifiers."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fst_core.config.model import ConfigModel, FolderName


class ImportedBase(ConfigModel):
    """Where a published data set is, how it is split, and how an answer is read."""

    path: str | None = None
    """File in the published layout: .json, .jsonl or .parquet."""
    hub: str | None = None
    """Data set id on the Hugging Face hub, read through `datasets` where there is no file at
    `path`; absent: nothing is ever fetched."""
    hub_subset: str | None = None
    """Configuration name on the hub, for data sets that have several."""
    hub_split: str = "train"
    """Split on the hub; `validation` and `test` below cut it again."""
    revision: str | None = None
    """Hub revision (commit hash) for a reproducible run."""
    validation: float = Field(0.1, gt=0, lt=0.5)
    """Share of problems held out for validation."""
    test: float = Field(0.1, gt=0, lt=0.5)
    """Share of problems held out for the test."""
    answer: Literal["anywhere", "tag"] = "anywhere"
    """How the answer is read: the last fitting piece of the text, or what stands in answer tags."""
    tag: str = "answer"
    """Tag name used when `answer = "tag"`."""
    told: bool = True
    """Say in the question that the tag is wanted; false leaves it to the feedback."""

    @model_validator(mode="after")
    def check_source(self) -> Self:
        if not self.path and not self.hub:
            raise ValueError(
                "neither path nor hub says where the problems are; set path to the published file, "
                "or hub to a data set id"
            )
        return self


class HoverConfig(ImportedBase):
    """Claims of HoVer (arXiv 2011.03088): which Wikipedia articles bear on each, or is it so."""

    type: Literal["hover"] = "hover"
    name: FolderName = "hover"
    """Name in tables, pools and problem ids."""
    task: Literal["articles", "label"] = "articles"
    """What is asked: the titles of all supporting articles, or whether the claim is supported."""
    num_hops: tuple[Annotated[int, Field(ge=2, le=4)], ...] = ()
    """Keep claims of these numbers of hops; empty keeps all. [3, 4] is the hard part."""
    labels: tuple[Literal["SUPPORTED", "NOT_SUPPORTED"], ...] = ()
    """Keep claims with these labels; empty keeps both."""
    most_titles: int = Field(21, ge=4)
    """Titles that an answer may name; one that names more earns nothing."""
    partial_credit: bool = False
    """Reward the share of supporting articles named; false gives 1 for all of them, else 0."""
    answer: Literal["tag"] = "tag"
    """Titles and labels are read from answer tags only."""


class PolarisConfig(ImportedBase):
    """Mathematics of Polaris-Dataset-53K: rows of problem, answer and difficulty."""

    type: Literal["polaris"] = "polaris"
    name: FolderName = "polaris"
    """Name in tables, pools and problem ids."""
    passed_least: float = Field(0.0, ge=0, le=1)
    """Keep problems whose published pass rate (`difficulty`, as in "5/8") is at least this."""
    passed_most: float = Field(1.0, ge=0, le=1)
    """Keep problems whose published pass rate is at most this; 0.5 leaves the harder ones."""

    @model_validator(mode="after")
    def check_range(self) -> Self:
        if self.passed_least > self.passed_most:
            raise ValueError(
                f"passed_least = {self.passed_least} is above passed_most = {self.passed_most}, "
                "which leaves no problem; swap them"
            )
        return self


class ChoicesConfig(ImportedBase):
    """Multiple choice, as SciKnowEval, MMLU, MMLU-Pro and SuperGPQA publish it."""

    type: Literal["choices"] = "choices"
    name: FolderName = "choices"
    """Name in tables, pools and problem ids."""
    question: str = "question"
    """Column of the question; a dotted name looks inside an object."""
    choices: str = "choices"
    """Column of the choices: a list of texts, or an object with lists `text` and `label`."""
    key: str = "answerKey"
    """Column of the right choice: its letter, or its number from 0."""
    keep: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Keep rows whose columns hold these values, as in { domain = "Physics" }; the columns may be
    dotted names, and a list allows several values."""


class VerifiersConfig(ConfigModel):
    """A single-turn environment of the package verifiers, by its id."""

    type: Literal["verifiers"] = "verifiers"
    id: str
    """Id of an installed environment (verifiers before 0.4) or taskset (from 0.4 on)."""
    name: FolderName = "verifiers"
    """Name in tables, pools and problem ids."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `load_environment`, or settings of the taskset."""
    most_problems: int = Field(10_000, ge=1)
    """Most rows read: a taskset may be endless."""
    validation: float = Field(0.1, gt=0, lt=0.5)
    """Share of problems held out for validation."""
    test: float = Field(0.1, gt=0, lt=0.5)
    """Share of problems held out for the test."""


Imported = HoverConfig | PolarisConfig | ChoicesConfig | VerifiersConfig
