"""What is wrong with a config, in the words of the TOML file it was read from."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fst_core.config.model import ConfigModel
from fst_core.config.tables import Models, models_under, of_type, type_of
from fst_core.config.wording import one_of, refusal

Location = Sequence[int | str]
KEY_ITSELF = "[key]"
"""How pydantic marks that it is a key which was refused, not its value."""
MOST_LISTED = 12
"""Settings of a table that are listed where none is like the one that was written."""


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
        tag = ["type"] if item["type"] == "union_tag_invalid" else []
        keys = [*([under] if under else []), *_keys(item["loc"], data), *tag]
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
    if kind == "union_tag_invalid":
        return one_of(re.findall("'([^']*)'", item["ctx"]["expected_tags"]), item["ctx"]["tag"])
    if kind == "missing":
        return _missing(item["loc"], ".".join(keys), models)
    choices, _ = _walk(item["loc"], models)
    if kind in ("model_type", "model_attributes_type", "dict_type", "union_tag_not_found"):
        return f"must be a table{_example(choices, given)}"
    if kind == "tuple_type":
        return f"must be a list{_list_example(choices, given, '.'.join(keys))}"
    return refusal(item)


def _missing(location: Location, where: str, models: Models) -> str:
    """A setting without a default, and what it takes: an example, or its own description."""
    key, choices = str(location[-1]), _walk(location, models)[0]
    own = _walk(location[:-1], models)[0]
    fields = [model.model_fields[key] for model in own if key in model.model_fields]
    if any(get_origin(field.annotation) is tuple for field in fields):
        return f"is missing; give it a list{_list_example(choices, None, where)}"
    if choices:
        return f"is missing; give it a table{_example(choices, None)}"
    about = re.split(r"[.;](?: |$)", " ".join(field.description or "" for field in fields))[0]
    return f"is missing, and has no default; set it{f' ({about})' * bool(about)}"


def _no_such(location: Location, keys: Sequence[str], models: Models) -> str:
    """A setting that is not there: of another type or table, or misspelt."""
    key = str(location[-1])
    own, siblings = _walk(location[:-1], models)
    having = [str(type_of(model)) for model in siblings if key in model.model_fields]
    if having:
        table = ".".join(keys[:-1])
        missing = f"type {type_of(own[0])!r} of {table} has no such setting"
        return f"{missing}; it belongs to {', '.join(having)}"
    fields = {name for model in own for name in model.model_fields}
    meant = _places(key, models)[:2] or get_close_matches(key, fields, n=1)
    if meant:
        return f"no such setting; did you mean {' or '.join(meant)}?"
    return f"no such setting; {_listed(fields)}"


def _listed(fields: Iterable[str]) -> str:
    """What may stand in the place of a setting that is like none."""
    names = sorted(fields)
    more = "; `fst settings` and `fst methods` tell of all" * (len(names) > MOST_LISTED)
    return f"there are {', '.join(names[:MOST_LISTED])}{more}"


def _places(key: str, models: Models) -> list[str]:
    """Paths of the settings of a name that the whole of a config, or one of its tables, has."""
    names = dict.fromkeys(name for model in models for name in model.model_fields)
    inside = [
        f"{table}.{key}"
        for table in names
        if any(key in inner.model_fields for inner in models_under(models, table))
    ]
    return [*(name for name in names if name == key), *inside]


def _example(choices: Models, given: Any) -> str:
    """How a table is written."""
    types = [str(type_of(model)) for model in choices if type_of(model)]
    if types:
        alone = [str(type_of(m)) for m in choices if type_of(m) and not _needs_more(m)]
        name = given if isinstance(given, str) and given in types else (alone or types)[-1]
        return f' such as {{ type = "{name}" }}'
    return f" of settings such as {next(iter(choices[0].model_fields))}" if choices else ""


def _needs_more(model: type[ConfigModel]) -> bool:
    """Whether a table that holds only its `type` would be refused."""
    try:
        model.model_validate({"type": type_of(model)})
    except ValidationError:
        return True
    return False


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
        if not chosen and part != KEY_ITSELF:
            yield str(part)
            inside = isinstance(data, Mapping) and part in data
            inside |= isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
            data = data[part] if inside else None
