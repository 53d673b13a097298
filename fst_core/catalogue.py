"""Every registered method as people read of it: from the docstring and fields of its settings."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fst_core.config.method import MethodSettings
from fst_core.methods import CURRICULUM, FAST, RETENTION, SLOW, Method, load

KINDS: Mapping[str, tuple[Mapping[str, Method], str]] = {
    "fast": (FAST, "How contexts evolve: `fast = { type = ... }`."),
    "slow": (SLOW, "How weights are updated: `slow = { type = ... }`."),
    "curriculum": (CURRICULUM, "Which problems come when: `curriculum = { type = ... }`."),
    "retention": (RETENTION, "What holds on to what was learned: `retention = [{ type = ... }]`."),
}
"""Tables of a config that choose a method."""


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
    own = tuple(
        Setting(field, default_of(info), joined(info.description or ""))
        for field, info in settings.model_fields.items()
        if field != "type"
    )
    return Entry(kind, name, joined(title), f"{about}\n\n{more}".strip(), joined(cost), own)


def default_of(info: FieldInfo) -> str:
    """A field's default as TOML writes it."""
    return "required" if info.default is PydanticUndefined else toml(info.default)


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
    chosen = getattr(value, "type", None)
    return f'{{ type = "{chosen}" }}' if chosen else str(value)


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
        rows = [(f"`{s.name}`", f"`{s.default}`", s.about) for s in found.settings]
        lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
        head = ["setting | default | ", "--- | --- | ---"]
        yield "\n".join(f"| {line} |" for line in [*head, *lines])
