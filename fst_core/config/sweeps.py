"""Ablations of a study: one setting of its base arm, several values, an arm for each."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from fst_core.config.model import FOLDER_NAME, SETTING_PATH, ConfigModel, FolderName, first_twin

IDENTITY = ("arm", "name", "seed", "study")
"""Keys that say which run it is, or which runs there are."""


class SweepConfig(ConfigModel):
    """One setting and the values it takes; each is an arm that changes nothing else."""

    name: FolderName
    """Short name of the setting; its arms are called NAME-VALUE, a table by its type."""
    key: str = Field(pattern=SETTING_PATH)
    """Dotted path of the setting, such as "contexts.size"."""
    values: tuple[Any, ...] = Field(min_length=1)
    """Numbers, strings, tables with a `type`, or lists of them. A table of the same type
    as the base arm's changes what it names; one of another type, or a `key` that ends in ".type",
    also keeps the settings that the base arm sets and the new type has too, but for `name`."""

    @model_validator(mode="after")
    def check_arms(self) -> Self:
        if self.key.partition(".")[0] in IDENTITY:
            raise ValueError(
                f"the sweep {self.name!r} cannot change {self.key}, which tells runs apart; "
                "name a setting of the run"
            )
        labels = [label_of(value) for value in self.values]
        for arm in (f"{self.name}-{label}" for label in labels):
            if not re.fullmatch(FOLDER_NAME, arm):
                raise ValueError(
                    f"a value of the sweep {self.name!r} would name an arm {arm!r}, "
                    "which is no folder name; use a number, a plain word, or a table with a type"
                )
        twin = first_twin(labels)
        if twin is not None:
            raise ValueError(
                f"two values of the sweep {self.name!r} would be the arm {self.name}-{twin}; "
                "give one of them a sweep of another name"
            )
        return self


def label_of(value: Any) -> str:
    """A value in a word: a table by its type, a list by its members, other JSON as it is."""
    if isinstance(value, Mapping) and "type" in value:
        return str(value["type"])
    if isinstance(value, list | tuple):
        return "+".join(map(label_of, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def swept_arms(sweeps: Iterable[SweepConfig], taken: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What each arm of the sweeps changes in the base arm, by its name.

    Args:
        taken: names of the other arms.

    Raises:
        ValueError: if two arms have one name, but for case.
    """
    others, arms = {name.casefold() for name in taken}, dict[str, dict[str, Any]]()
    for sweep in sweeps:
        for value in sweep.values:
            name = f"{sweep.name}-{label_of(value)}"
            if name.casefold() in others:
                raise ValueError(f"study.sweeps: two arms are named {name}; rename the sweep")
            others.add(name.casefold())
            for part in reversed(sweep.key.split(".")):
                value = {part: value}
            arms[name] = value
    return arms
