"""What a value of a config must be, for each way in which pydantic refuses one."""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from fst_core.config.model import COMPONENT_NAME, FOLDER_NAME, SETTING_PATH
from fst_core.counting import counted, shortened

KINDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
BOUNDS = {
    "greater_than": "above {}",
    "greater_than_equal": "{} or more",
    "less_than": "below {}",
    "less_than_equal": "{} or less",
}
PATTERNS = {
    FOLDER_NAME: "is no folder name; use letters and digits, with . + - _ inside",
    COMPONENT_NAME: "is no name of a component; use letters and digits, with - and _ inside",
    SETTING_PATH: 'is no path of a setting; write one such as "contexts.size"',
}
MOST_SHOWN = 60
"""Characters of a refused value that its error repeats."""


def refusal(item: ErrorDetails) -> str:
    """What is wrong with a value that stands alone, the value, and what it must be."""
    kind, given, limits = item["type"], item["input"], item.get("ctx", {})
    if kind in KINDS:
        return f"must be {KINDS[kind]}, not {shown(given)}"
    if kind in BOUNDS:
        return f"must be {BOUNDS[kind].format(*map(_number, limits.values()))}, not {shown(given)}"
    if kind == "string_type":
        return f"must be text{_quoted(given)}, not {shown(given)}"
    if kind == "literal_error":
        return one_of(re.findall("'([^']*)'", limits["expected"]), given)
    if kind == "too_short":
        wanted = counted(limits["min_length"], "entry", "entries")
        return f"needs at least {wanted}, and has {limits['actual_length']}"
    if kind == "string_pattern_mismatch" and limits["pattern"] in PATTERNS:
        return f"{given!r} {PATTERNS[limits['pattern']]}"
    return item["msg"].removeprefix("Value error, ")


def one_of(names: Iterable[str], given: Any) -> str:
    """What may stand where only some names may, and the nearest."""
    known = list(names)
    listed = ", ".join(map(json.dumps, known))
    told = f"must be {'one of ' * (len(known) > 1)}{listed}, not {shown(given)}"
    near = get_close_matches(str(given), known, n=1)
    return told + (f"; did you mean {json.dumps(near[0])}?" if near else "")


def shown(given: Any) -> str:
    """A value as a file would have it, cut where it is long."""
    text = json.dumps(given, ensure_ascii=False, default=str)
    return shortened(text, MOST_SHOWN)


def _number(limit: float) -> str:
    return str(int(limit) if limit == int(limit) else limit)


def _quoted(given: Any) -> str:
    """How a number or a switch is written where text is wanted."""
    if not isinstance(given, bool | int | float):
        return ' in quotes, such as "text"'
    text = json.dumps(given)
    return f" in quotes, such as {json.dumps(text)}"
