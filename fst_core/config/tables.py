"""Which settings a table of a config may hold, and how one table changes another."""

from collections.abc import Mapping
from typing import Any, get_args

from fst_core.config.model import ConfigModel

Models = tuple[type[ConfigModel], ...]

OWN = ("type", "name")
"""Settings that say what a table is, which no table takes over from another."""


def models_in(annotation: Any) -> Models:
    """The config models in a field's annotation: several where a `type` chooses among them."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigModel):
        return (annotation,)
    return tuple(model for part in get_args(annotation) for model in models_in(part))


def models_under(models: Models, key: str) -> Models:
    """What the table `key` may be inside a table that is one of `models`."""
    fields = [model.model_fields[key] for model in models if key in model.model_fields]
    return tuple(dict.fromkeys(found for field in fields for found in models_in(field.annotation)))


def type_of(model: type[ConfigModel]) -> str | None:
    """The `type` that chooses a model; None where nothing does."""
    return model.model_fields["type"].default if "type" in model.model_fields else None


def of_type(models: Models, name: Any) -> Models:
    """Those of the models that a `type` chooses; with None, those that need none."""
    return tuple(model for model in models if type_of(model) == name)


def merge(
    base: Mapping[str, Any], change: Mapping[str, Any], models: Models = ()
) -> dict[str, Any]:
    """Deep merge; a table whose `type` changes replaces the old one.

    Args:
        models: what `base` may be. With it, a table whose type changes keeps those settings of the
            old one that its new type has as well; without, it keeps none.
    """
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if not isinstance(value, Mapping):
            merged[key] = value
        elif not isinstance(old, Mapping):
            merged[key] = dict(value)
        else:
            chosen = value.get("type", old.get("type"))
            inner = of_type(models_under(models, key), chosen)
            kept = old if chosen == old.get("type") else _shared(old, inner)
            merged[key] = merge(kept, value, inner)
    return merged


def _shared(table: Mapping[str, Any], models: Models) -> dict[str, Any]:
    """The settings of a table that one of the models has as well."""
    known = {key for model in models for key in model.model_fields} - {*OWN}
    return {key: value for key, value in table.items() if key in known}
