"""Every method and setting as people read of it: from the docstrings of the config models."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from fst_core.config import (
    CheckpointConfig,
    ChoicesConfig,
    ContextsConfig,
    DirectivesConfig,
    EvaluationConfig,
    HoverConfig,
    HubPolicy,
    HuggingFaceReflection,
    JsonlConfig,
    LitellmReflection,
    LoopConfig,
    LoraConfig,
    MixtureConfig,
    PolarisConfig,
    PolicyReflection,
    ReasoningGymConfig,
    RulesReflection,
    RunConfig,
    SequenceConfig,
    Smollm2Policy,
    StudyConfig,
    SuiteConfig,
    TinyPolicy,
    VerifiersConfig,
    VllmConfig,
)
from fst_core.config.method import MethodSettings
from fst_core.config.model import ConfigModel
from fst_core.config.sweeps import SweepConfig
from fst_core.methods import CURRICULUM, FAST, RETENTION, SLOW, Method, load

ENVIRONMENTS = (
    DirectivesConfig,
    ReasoningGymConfig,
    JsonlConfig,
    HoverConfig,
    PolarisConfig,
    ChoicesConfig,
    VerifiersConfig,
    SequenceConfig,
    MixtureConfig,
)
POLICIES = (TinyPolicy, Smollm2Policy, HubPolicy)
REFLECTIONS = (RulesReflection, PolicyReflection, HuggingFaceReflection, LitellmReflection)

KINDS: Mapping[str, tuple[Mapping[str, Method], str]] = {
    "fast": (FAST, "How contexts evolve: `fast = { type = ... }`."),
    "slow": (SLOW, "How weights are updated: `slow = { type = ... }`."),
    "curriculum": (CURRICULUM, "Which problems come when: `curriculum = { type = ... }`."),
    "retention": (RETENTION, "What holds on to what was learned: `retention = [{ type = ... }]`."),
}
"""Tables of a config that choose a method."""


def typed(
    table: str, models: Sequence[type[ConfigModel]]
) -> Iterator[tuple[str, type[ConfigModel]]]:
    """Headings of tables that a `type` chooses, with their models."""
    for model in models:
        yield f'`{table} = {{ type = "{model.model_fields["type"].default}" }}`', model


TABLES: tuple[tuple[str, type[ConfigModel]], ...] = (
    ("The run", RunConfig),
    ("`[loop]`", LoopConfig),
    ("`[contexts]`", ContextsConfig),
    ("`[evaluation]`", EvaluationConfig),
    ("`[[evaluation.suites]]`", SuiteConfig),
    ("`[checkpoint]`", CheckpointConfig),
    ("`[study]`", StudyConfig),
    ("`[[study.sweeps]]`", SweepConfig),
    *typed("environment", ENVIRONMENTS),
    *typed("policy", POLICIES),
    ("`policy.vllm`", VllmConfig),
    ("`policy.lora`", LoraConfig),
    *typed("fast.reflection", REFLECTIONS),
)
"""What stands in docs/settings.md, in order."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a method."""

    name: str
    default: str
    about: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One method."""

    kind: str
    name: str
    title: str
    """What it is, and its paper."""
    about: str
    """What it computes; paragraphs."""
    cost: str
    """What it uses beyond a run without it."""
    settings: tuple[Setting, ...]


def catalogue() -> Iterator[Entry]:
    """Every registered method, kind by kind in the registry's order."""
    for kind, (methods, _) in KINDS.items():
        for name, method in methods.items():
            yield entry(kind, name, load(method.settings))


def entry(kind: str, name: str, settings: type[MethodSettings]) -> Entry:
    """The entry of one method.

    Raises:
        ValueError: if its docstring says nothing of its cost.
    """
    text = inspect.cleandoc(settings.__doc__ or "")
    body, found, cost = text.partition("Cost:")
    if not found:
        raise ValueError(f"the docstring of {settings.__name__} has no line that starts with Cost:")
    title, _, about = body.strip().partition("\n\n")
    cost, _, more = cost.partition("\n\n")
    about = f"{about}\n\n{more}".strip()
    return Entry(kind, name, joined(title), about, joined(cost), settings_in(settings))


def settings_in(model: type[ConfigModel]) -> tuple[Setting, ...]:
    """The settings of a table, but for the `type` that chooses it."""
    return tuple(
        Setting(field, default_of(info), joined(described(model, field)))
        for field, info in model.model_fields.items()
        if field != "type"
    )


def described(model: type[ConfigModel], field: str) -> str:
    """A setting's docstring, or that of the setting it overrides; tables have a heading instead."""
    kinds = [kind for kind in model.__mro__ if issubclass(kind, ConfigModel)]
    found = [kind.model_fields[field].description for kind in kinds if field in kind.model_fields]
    return next(filter(None, found), "A table of its own.")


def default_of(info: FieldInfo) -> str:
    """A field's default as TOML writes it."""
    if info.is_required():
        return "required"
    return toml(info.get_default(call_default_factory=True))


def toml(value: Any) -> str:
    """A default as TOML writes it; a table of settings by the type it chooses."""
    match value:
        case None:
            return "absent"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case float():
            return f"{value:g}"
    if not isinstance(value, ConfigModel):
        return str(value)
    chosen = getattr(value, "type", None)
    return f'{{ type = "{chosen}" }}' if chosen else "its own defaults"


def joined(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())


def markdown() -> str:
    """docs/methods.md."""
    parts = [
        "# Methods",
        "Every method that a config can name, from the docstrings of its settings: `fst methods "
        "--markdown` writes this page, `fst methods NAME` shows one. A new one is a file and a "
        "line: [how-to/add-a-method.md](how-to/add-a-method.md).",
    ]
    entries = list(catalogue())
    for kind, (_, about) in KINDS.items():
        parts += [f"## {kind}", about]
        for found in entries:
            if found.kind == kind:
                parts += _section(found)
    return "\n\n".join(parts) + "\n"


def _section(found: Entry) -> Iterator[str]:
    yield f"### `{found.name}`"
    yield found.title
    if found.about:
        yield found.about
    yield f"*Cost:* {found.cost}"
    if found.settings:
        yield settings_table(found.settings)


def settings_table(settings: Sequence[Setting]) -> str:
    """Settings as a Markdown table."""
    rows = [(f"`{s.name}`", f"`{s.default}`", s.about) for s in settings]
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    head = ["setting | default | ", "--- | --- | ---"]
    return "\n".join(f"| {line} |" for line in [*head, *lines])


def settings_page() -> str:
    """docs/settings.md."""
    parts = [
        "# Settings",
        "Every table of a config but the methods ([methods.md](methods.md)), from the models that "
        "read it: `fst settings` writes this page. A config names what differs from these "
        "defaults; `fst run CONFIG --dry-run` shows which of them a run changes, as TOML. Relative "
        "paths are taken from the folder a command runs in.",
        "**Arms.** `[arms.NAME]` holds what an arm changes in the run that the file describes; "
        "base, rl, gepa and fst are known without a table. A table whose `type` an arm (or "
        "`--set`) changes begins with the new type's defaults, and `fst run` says which settings "
        "that reset; a sweep keeps those that both types have.",
        "**Overrides.** `--set KEY.PATH=VALUE` (and `overrides` of a deployment) changes one "
        "setting. VALUE is written as in a TOML file or as JSON, and what is neither is text: "
        """`--set loop.steps=20`, `--set name=mine`, `--set 'fast={type = "gepa"}'`, """
        """`--set 'study.arms=["rl", "fst"]'`, `--set policy.lora=null`. The single quotes keep """
        "brackets and double quotes from the shell.",
    ]
    for title, model in TABLES:
        about = inspect.cleandoc(model.__doc__ or "")
        parts += [f"## {title}", about, settings_table(settings_in(model))]
    return "\n\n".join(parts) + "\n"
