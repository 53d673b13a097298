"""A resolved run as people write it: TOML with what differs from the defaults, and a line."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from fst_core.config.environment import environment_name, tasks_of
from fst_core.config.fast import NoFast
from fst_core.config.model import ConfigModel
from fst_core.config.run import RunConfig
from fst_core.config.slow import NoSlow
from fst_core.config.study import ARMS
from fst_core.config.tables import merge
from fst_core.counting import counted


def in_words(config: RunConfig) -> str:
    """Who a run is and what it is made of, in one line."""
    fast, slow, loop, writer = config.fast, config.slow, config.loop, config.fast.writer
    by = f" (reflection by {writer.type})" if writer else ""
    parts = [
        "no fast part" if isinstance(fast, NoFast) else f"fast {fast.type}{by}",
        "no slow part" if isinstance(slow, NoSlow) else f"slow {slow.type}",
        f"{config.policy.type} on {', '.join(map(environment_name, tasks_of(config.environment)))}",
        f"{counted(loop.steps, 'step')} of {loop.problems_per_step} x {loop.group_size} rollouts",
        counted(config.population_size, "context"),
    ]
    return f"{config.name}/{config.id}: {', '.join(parts)}"


def as_toml(config: ConfigModel) -> str:
    """The settings that differ from their defaults, as a file would have them.

    What is read from it is the same config again, but for nulls inside free tables such as
    `environment.options`: TOML has none.
    """
    return "\n".join(_table(_differing(config), ())).strip("\n")


def as_file(config: RunConfig) -> str:
    """The same with what its arm needs to be known by: a file that `load_config` reads as this run.

    An arm that a study's file had made, or made its own, is a table without changes here.
    """
    text = as_toml(config)
    changes = ARMS.get(config.arm)
    if changes is None or RunConfig.model_validate(merge(tomllib.loads(text), changes)) != config:
        text += f"\n\n[arms.{_key(config.arm)}]"
    return text


def _differing(config: ConfigModel) -> dict[str, Any]:
    """Settings that are not their model's default, and the `type` that chooses the model."""
    found: dict[str, Any] = {}
    fields = type(config).model_fields
    for name, field in sorted(fields.items(), key=lambda item: item[0] != "type"):
        value = getattr(config, name)
        if (
            name == "type"
            or field.is_required()
            or value != field.get_default(call_default_factory=True)
        ):
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigModel):
        return _differing(value)
    return list(map(_plain, value)) if isinstance(value, tuple | list) else value


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """A table's own settings, then those of the tables in it, each under its head."""
    inner = {key: value for key, value in table.items() if _has_head(value)}
    for key, value in table.items():
        if key not in inner and value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        name = ".".join(map(_key, (*path, key)))
        for item in value if isinstance(value, list) else [value]:
            yield ""
            yield f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            yield from _table(item, (*path, key))


def _has_head(value: Any) -> bool:
    """Whether a value is a table or a list of tables."""
    tables = value if isinstance(value, list) else [value]
    return bool(tables) and all(isinstance(item, Mapping) for item in tables)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inside} }}" if inside else "{}"
    return json.dumps(value)


def _text(text: str) -> str:
    """A string of TOML, without characters that a terminal would obey."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
