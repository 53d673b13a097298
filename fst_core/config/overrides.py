"""One setting of a config changed by `key.path=value`, as after --set."""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from fst_core.config.model import ConfigError
from fst_core.config.tables import merge
from fst_core.counting import shortened

CLOSING = {"{": "}", "[": "]"}
EXAMPLES = {"{": """'fast={type = "gepa"}'""", "[": """'study.arms=["rl", "fst"]'"""}
"""How a table and a list are written so that a shell hands them over as they are."""

DEEPEST = 32
"""Most parts of a key."""
MOST_SHOWN = 120
"""Characters of a wrong override that its error repeats."""


def override(data: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """A config's data with one setting changed.

    Raises:
        ConfigError: if the assignment has no `=` or no key, or its value cannot be meant.
    """
    key, separator, text = assignment.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not separator or not all(parts):
        raise ConfigError(
            f"override {assignment!r} is not of the form key.path=value; write, for example, "
            "loop.steps=20"
        )
    if len(parts) > DEEPEST:
        shown = shortened(assignment, MOST_SHOWN)
        raise ConfigError(f"override {shown!r} goes {len(parts)} tables deep; {DEEPEST} are enough")
    value = _value_of(assignment, text.strip())
    try:
        json.dumps([key, value], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"override {assignment!r} holds a lone surrogate, which no text may; write it in UTF-8"
        ) from error
    except TypeError as error:  # a date or a time, which TOML has and no setting takes
        raise ConfigError(
            f"override {assignment!r} holds a date or a time, which no setting takes; put it in "
            "double quotes"
        ) from error
    for part in reversed(parts):
        value = {part: value}
    return merge(data, value)


def _value_of(assignment: str, text: str) -> Any:
    """What is written: JSON, or else a value of TOML, or else the text itself.

    A date alone is text, as in a name. The last reading is closed to what looks like a table or a
    list, which would be told of as text where one is wanted.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if _looks_nested(text):
            raise ConfigError(
                f"override {_short(assignment)!r}: its value is neither TOML nor JSON "
                f"({_reason(error)}); write it as in --set {EXAMPLES[text[0]]}, in single quotes "
                "for the shell; a text in brackets goes in double quotes"
            ) from error
        return text
    alone = len(read) == 1 and isinstance(read["value"], bool | int | float | str | dict | list)
    return read["value"] if alone else text


def _looks_nested(text: str) -> bool:
    """Whether a text is in brackets, or opens one that it never closes."""
    closing = CLOSING.get(text[:1])
    return closing is not None and (text.endswith(closing) or closing not in text)


def _reason(error: Exception) -> str:
    return "too deep" if isinstance(error, RecursionError) else str(error).partition(" (at ")[0]


def _short(text: str) -> str:
    return shortened(text, MOST_SHOWN)
