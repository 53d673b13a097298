"""What a changed `type` leaves behind: a table of another type begins with its own defaults."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fst_core.config import RunConfig, load_config
from fst_core.config.model import ConfigError, ConfigModel
from fst_core.config.tables import OWN
from fst_core.launch import STUDIED


def dropped_notes(path: str | Path, planned: Sequence[RunConfig]) -> list[str]:
    """Notes on settings that arms or overrides reset: each once, with the arms it holds for.

    There are none in a process that a study started, which has told them.
    """
    if STUDIED in os.environ:
        return []
    try:
        written, _ = load_config(path)
    except ConfigError:  # a file that only its arms complete
        return []
    arms: dict[str, dict[str, None]] = {}
    for run in planned:
        for note in dropped_settings(written, run):
            arms.setdefault(note, {})[run.arm] = None
    return [f"{', '.join(whose)}: {note}" for note, whose in arms.items()]


def dropped_settings(written: RunConfig, chosen: RunConfig) -> Iterator[str]:
    """One sentence for each table whose type an arm or an override changed, and what that reset.

    Args:
        written: the run as its file has it, without arm and overrides.
        chosen: the run that was asked for.
    """
    for name, before, now in _changed("", written, chosen):
        lost = dict(_reset(before, now))
        if lost:
            values = ", ".join(f"{key} = {value}" for key, value in lost.items())
            old, new = _type_of(before), _type_of(now)
            yield (
                f"{name}.type = {new!r} begins with its own defaults: {values}; what the file "
                f"sets for {old!r} does not carry over, so set these beside the type"
            )


def _changed(
    path: str, before: ConfigModel, now: ConfigModel
) -> Iterator[tuple[str, ConfigModel, ConfigModel]]:
    """The outermost tables that are of another type, by their dotted path."""
    if type(before) is not type(now):
        yield path, before, now
        return
    for key in type(now).model_fields:
        old, new = getattr(before, key), getattr(now, key)
        if isinstance(old, ConfigModel) and isinstance(new, ConfigModel):
            yield from _changed(f"{path}.{key}".lstrip("."), old, new)


def _type_of(table: ConfigModel) -> str:
    return str(getattr(table, "type", ""))


def _reset(before: ConfigModel, now: ConfigModel) -> Iterator[tuple[str, str]]:
    """Settings of both that the old table set and the new one has at another value, unset."""
    for key in type(now).model_fields:
        shared = key not in OWN and key in before.model_fields_set
        if shared and key not in now.model_fields_set:
            old, new = getattr(before, key), getattr(now, key)
            if old != new:
                yield key, f"{_shown(new)} (the file has {_shown(old)})"


def _shown(value: object) -> str:
    """A value as a note shows it: a table by its type."""
    named = isinstance(value, ConfigModel) and _type_of(value)
    return f"{{ type = {named!r} }}" if named else repr(value)
