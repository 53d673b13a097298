"""What is wrong with a config, in the words of the TOML file it was read from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fst_core.config.model import FOLDER_NAME, ConfigModel
from fst_core.config.tables import Models, models_under, of_type, type_of

Location = Sequence[int | str]


def explain(
    error: ValidationError, source: str, data: Any, model: type[ConfigModel], under: str = ""
) -> str:
    """One line for all that was refused: the file, then each setting with the reason.

    Args:
        source: the file, and the arm where it matters.
        data: what was read.
        model: what it was read as.
        under: dotted path of `data` in the file; empty for the whole of it.
    """
    found = error.errors()
    lines = []
    for item in found:
        if _is_consequence(item, found):
            continue
        keys = [*([under] if under else []), *_keys(item["loc"], data)]
        lines.append(f"{'.'.join(keys) or 'config'}: {_message(item, keys, (model,))}")
    return f"{source}: " + "; ".join(lines)


def _is_consequence(item: ErrorDetails, found: Sequence[ErrorDetails]) -> bool:
    """Whether a list is too short only since some of its items were refused."""
    loc = item["loc"]
    inside = (other["loc"] for other in found if len(other["loc"]) > len(loc))
    return item["type"] == "too_short" and any(other[: len(loc)] == loc for other in inside)


def _message(item: ErrorDetails, keys: Sequence[str], models: Models) -> str:
    kind, given = item["type"], item["input"]
    if kind == "extra_forbidden":
        return _no_such(item["loc"], keys, models)
    if kind == "string_pattern_mismatch" and item["ctx"]["pattern"] == FOLDER_NAME:
        return f"{given!r} is no folder name; use letters and digits, with . + - _ inside"
    choices, _ = _walk(item["loc"], models)
    if kind in ("model_type", "model_attributes_type", "dict_type", "union_tag_not_found"):
        return f"must be a table{_example(choices, given)}"
    if kind == "tuple_type":
        return f"must be a list{_list_example(choices, given, '.'.join(keys))}"
    return item["msg"].removeprefix("Value error, ")


def _no_such(location: Location, keys: Sequence[str], models: Models) -> str:
    """A setting that is not there: of another type, or misspelt."""
    key = str(location[-1])
    own, siblings = _walk(location[:-1], models)
    having = [str(type_of(model)) for model in siblings if key in model.model_fields]
    if having:
        table = ".".join(keys[:-1])
        missing = f"type {type_of(own[0])!r} of {table} has no such setting"
        return f"{missing}; it belongs to {', '.join(having)}"
    fields = {name for model in own for name in model.model_fields}
    known = _known_keys()
    near = get_close_matches(key, fields, n=1)
    if not near and key not in known:
        near = get_close_matches(key, known, n=1)
    return "no such setting" + (f"; did you mean {near[0]}?" if near else "")


def _example(choices: Models, given: Any) -> str:
    """How a table is written."""
    types = [name for name in map(type_of, choices) if name]
    if types:
        name = given if isinstance(given, str) and given in types else types[-1]
        return f' such as {{ type = "{name}" }}'
    return f" of settings such as {next(iter(choices[0].model_fields))}" if choices else ""


def _list_example(choices: Models, given: Any, where: str) -> str:
    """How a list is written."""
    if any(map(type_of, choices)):
        name = given.get("type") if isinstance(given, Mapping) else given
        return f" of tables such as [{_example(choices, name).removeprefix(' such as ')}]"
    if choices:
        return f" of tables, each under [[{where}]]"
    return f" such as [{json.dumps(given)}]" if isinstance(given, str | int | float) else ""


def _walk(location: Location, models: Models) -> tuple[Models, Models]:
    """What a table may be, and among what its `type` chose it; pydantic's location has the type."""
    siblings: Models = ()
    for part in location:
        if isinstance(part, int):
            continue
        if len(models) > 1:
            models, siblings = of_type(models, part), models
        else:
            models, siblings = models_under(models, part), ()
    return models, siblings


def _keys(location: Location, data: Any) -> Iterator[str]:
    """The path to a setting as TOML has it: pydantic adds the `type` of each table it chose."""
    for part in location:
        chosen = isinstance(data, Mapping) and part not in data and data.get("type") == part
        if not chosen:
            yield str(part)
            inside = isinstance(data, Mapping) and part in data
            inside |= isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
            data = data[part] if inside else None


def _known_keys() -> set[str]:
    """Names of every setting there is."""
    models, keys = [ConfigModel], set[str]()
    while models:
        model = models.pop()
        models += model.__subclasses__()
        keys |= model.model_fields.keys()
    return keys
