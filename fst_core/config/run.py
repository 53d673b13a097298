"""The whole of a run and of a study, and how they are read from TOML with overrides."""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from fst_core.config.curriculum import Stream
from fst_core.config.environment import (
    EnvironmentConfig,
    SequenceConfig,
    TaskConfig,
    environment_name,
    tasks_of,
)
from fst_core.config.explain import explain
from fst_core.config.fast import NoFast
from fst_core.config.method import (
    CurriculumSettings,
    FastSettings,
    MethodSettings,
    RetentionSettings,
    SlowSettings,
    one_of,
)
from fst_core.config.model import ConfigError, ConfigModel, FolderName, first_twin
from fst_core.config.policy import PolicyConfig, TinyPolicy
from fst_core.config.slow import NoSlow
from fst_core.config.sweeps import SweepConfig, swept_arms
from fst_core.config.tables import merge
from fst_core.methods import CURRICULUM, FAST, RETENTION, SLOW
from fst_core.records import Parts, joined

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

ARMS: dict[str, dict[str, Any]] = {
    "base": {"fast": {"type": "none"}, "slow": {"type": "none"}},
    "rl": {"fast": {"type": "none"}},
    "gepa": {"slow": {"type": "none"}},
    "fst": {},
}
"""Built-in arms: what each changes in the config of the full method."""


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


ComponentName = Annotated[str, Field(pattern=r"^\w[\w-]*$")]


class ContextsConfig(ConfigModel):
    """The population of contexts."""

    seed: str = "You are a helpful assistant."
    """The context every run starts from; says nothing of the task."""
    components: dict[ComponentName, str] | None = Field(
        None, min_length=1, exclude_if=lambda components: components is None
    )
    """The context every run starts from as named components that GEPA evolves jointly, instead of
    `seed`. The policy reads them in this order, each from a line of its own, without their names;
    empty ones are left out."""
    size: int = Field(4, ge=1)
    """K: contexts in the population; a run without a fast part holds one, unless it starts from the
    population of another run."""
    start_from: str | None = None
    """Run whose final population this one begins with, named as in the run's own `start_from`."""
    max_tokens: int = Field(512, ge=1)
    """Longest context (tokens of the policy's tokenizer); longer proposals are rejected."""

    @model_validator(mode="before")
    @classmethod
    def join_components(cls, data: Any) -> Any:
        components = data.get("components") if isinstance(data, Mapping) else None
        if not isinstance(components, Mapping):
            return data
        if not all(isinstance(text, str) for text in components.values()):
            return data  # refused by its type
        if "type" in components:
            raise ValueError("components cannot hold one called type; give it another name")
        seed = joined(components.values())
        if data.get("seed", seed) != seed:
            raise ValueError(
                "both seed and components say what the context is at the start; leave one out"
            )
        return {**data, "seed": seed}

    @property
    def parts(self) -> Parts:
        """The components, in order; none where the context is one text."""
        return tuple((self.components or {}).items())


class SuiteConfig(ConfigModel):
    """Test problems of an environment, measured before and after training: what a run forgets."""

    name: FolderName
    """Name in tables and pools; replaces the environment's own."""
    axis: Literal["in distribution", "cross domain", "easy to hard"]
    """How the environment differs from what the run trains on."""
    contexts: tuple[Literal["none", "seed", "best"], ...] = Field(("none",), min_length=1)
    """Contexts it is measured under; "none" is no system message at all."""
    problems: int = Field(64, ge=1)
    """Test problems (the first of the split)."""
    samples: int = Field(4, ge=1)
    """Rollouts per problem and context."""
    environment: TaskConfig


class EvaluationConfig(ConfigModel):
    """Measurements on held-out problems."""

    every: int = Field(10, ge=0)
    """Slow steps between evaluations; 0 evaluates at the start and the end only."""
    after_switch: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2, 4)
    """Slow steps after a switch of task at which to evaluate as well (sequences only)."""
    problems: int = Field(64, ge=1)
    """Validation problems of each task (the first of the split)."""
    samples: int = Field(4, ge=1)
    """Rollouts per problem and context."""
    kl: bool = True
    """Also measure KL to the base model, and the entropy, on these completions."""
    ends: bool = True
    """At the first and last evaluation, also measure without any context; at the last, also the
    base weights under the same contexts."""
    suites: tuple[SuiteConfig, ...] = ()
    """Batteries measured at the first and the last evaluation."""


class CheckpointConfig(ConfigModel):
    """What survives a dead machine."""

    every_cycles: int = Field(default=1, ge=1)
    """Cycles between checkpoints; the end of the run always has one."""
    after_fast: bool = True
    """Also after every fast phase, so that no reflection is paid twice; false writes fewer."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept; older ones are removed."""


class StudyConfig(ConfigModel):
    """Arms and seeds to compare."""

    arms: tuple[str, ...] = ("rl", "fst")
    """Names from [arms] or the built-in ones: base, rl, gepa, fst. Those of the sweeps, and their
    base, are added."""
    base: str = "fst"
    """Arm in which the sweeps change a setting."""
    sweeps: tuple[SweepConfig, ...] = ()
    """Ablations: one arm for each value that the base arm does not have already."""
    seeds: tuple[int, ...] = (0, 1)
    """Run seeds; every arm runs with each."""
    jobs: int = Field(1, ge=1)
    """Runs at once, each in a process of its own."""


class RunConfig(ConfigModel):
    """One run, fully resolved."""

    name: FolderName = "run"
    """Name of the experiment: folder under runs/ and MLflow experiment."""
    arm: FolderName = "fst"
    """Arm this run belongs to."""
    seed: int = 0
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


def _override(data: dict[str, Any], assignment: str) -> dict[str, Any]:
    key, separator, value = assignment.partition("=")
    if not separator or not key:
        raise ConfigError(f"override {assignment!r} is not of the form key.path=value")
    try:
        parsed: Any = json.loads(value)
    except json.JSONDecodeError:
        parsed = value
    try:
        json.dumps([key, parsed], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"override {assignment!r} holds a lone surrogate, which no text may; write it in UTF-8"
        ) from error
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return merge(data, parsed)


def _resolve(data: dict[str, Any], arm: Mapping[str, Any], overrides: list[str]) -> dict[str, Any]:
    """File, then overrides, then the arm; overrides of tables whose type the arm kept win again.

    So `--set fast.metric_calls=64` speaks to every arm with that fast part, and leaves alone the
    arms that have none.
    """
    for assignment in overrides:
        if assignment.partition("=")[0].strip() == "arm":
            raise ConfigError("an arm is chosen with --arm, not with --set arm=...")
        data = _override(data, assignment)
    resolved = merge(data, arm)
    for assignment in overrides:
        table = assignment.partition("=")[0].strip().split(".")[0]
        if _type_of(resolved.get(table)) == _type_of(data.get(table)):
            resolved = _override(resolved, assignment)
    own_seed = str(resolved.get("seed", 0))
    for holder in (resolved, resolved.get("contexts")):
        start = holder.get("start_from") if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(start, str):
            holder["start_from"] = start.replace("{seed}", own_seed)
    return resolved


def _own_arms(path: str | Path, arms: Any) -> dict[str, dict[str, Any]]:
    """The file's [arms.NAME] tables, which may change anything but who a run is."""
    if not isinstance(arms, dict) or not all(isinstance(a, dict) for a in arms.values()):
        raise ConfigError(f"{path}: [arms.NAME] must be tables of settings")
    for name, changes in arms.items():
        taken = sorted({"arm", "seed", "name", "study"} & changes.keys())
        if taken:
            raise ConfigError(f"{path}: [arms.{name}] cannot set {', '.join(taken)}")
    return arms


def _type_of(table: Any) -> Any:
    return table.get("type") if isinstance(table, Mapping) else None


def load_config(
    path: str | Path, arm: str | None = None, overrides: Iterable[str] = ()
) -> tuple[RunConfig, StudyConfig]:
    """Read a TOML file, apply an arm and `key.path=value` overrides.

    Returns:
        The resolved run and the study the file describes, its sweeps' arms among its arms.

    Raises:
        ConfigError: with one sentence naming the file, the key and the reason.
    """
    try:
        data = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from error
    arms = {**ARMS, **_own_arms(path, data.pop("arms", {}))}
    changes = list(overrides)
    study = _study(path, _resolve(data, {}, changes).get("study", {}))
    try:
        swept = swept_arms(study.sweeps, arms)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    chosen = arm or data.get("arm", "fst")
    if not isinstance(chosen, str) or chosen not in {*arms, *swept}:
        names = ", ".join(sorted({*arms, *swept}))
        raise ConfigError(f"{path}: no arm {chosen!r}; known arms: {names}")
    unknown = [name for name in study.arms if name not in {*arms, *swept}]
    if unknown:
        raise ConfigError(f"{path}: study.arms names unknown arms: {', '.join(unknown)}")
    if study.base not in arms:
        raise ConfigError(f"{path}: study.base names an unknown arm: {study.base}")

    def run_of(name: str) -> RunConfig:
        kept = arms[study.base if name in swept else name]
        resolved = _resolve({**data, "arm": name}, kept, changes)
        resolved.pop("study", None)
        source = f"{path}: arm {name}" if name in swept else str(path)
        return _run(source, merge(resolved, swept.get(name, {}), (RunConfig,)))

    return run_of(chosen), _with_sweeps(study, swept, run_of)


def _study(path: str | Path, data: Any) -> StudyConfig:
    try:
        return StudyConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path), data, StudyConfig, "study")) from error


def _run(source: str, data: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, source, data, RunConfig)) from error


def _with_sweeps(
    study: StudyConfig, swept: Iterable[str], run_of: Callable[[str], RunConfig]
) -> StudyConfig:
    """The study with its base and every swept arm that is another run than the base's."""
    if not study.sweeps:
        return study
    base = run_of(study.base)
    runs = {name: run_of(name).model_copy(update={"arm": base.arm}) for name in swept}
    more = [study.base, *(name for name, run in runs.items() if run != base)]
    added = [name for name in more if name not in study.arms]
    return study.model_copy(update={"arms": (*study.arms, *added)})
