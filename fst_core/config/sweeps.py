"""Ablations of a study: one setting of its base arm, several values, an arm for each."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from fst_core.config.model import FOLDER_NAME, ConfigModel

IDENTITY = ("arm", "name", "seed", "study")
"""Keys that say which run it is, or which runs there are."""


class SweepConfig(ConfigModel):
    """One setting and the values it takes; each is an arm that changes nothing else."""

    name: str = Field(pattern=FOLDER_NAME)
    """Short name of the setting; its arms are called NAME-VALUE, a table by its type."""
    key: str = Field(pattern=r"^\w+(\.\w+)*$")
    """Dotted path of the setting, such as "contexts.size"."""
    values: tuple[Any, ...] = Field(min_length=1)
    """Numbers, strings, tables with a `type`, or lists of them. A table of another type than the
    base arm's replaces it whole; one of the same type changes what it names."""

    @model_validator(mode="after")
    def check_arms(self) -> Self:
        if self.key.partition(".")[0] in IDENTITY:
            raise ValueError(
                f"the sweep {self.name!r} cannot change {self.key}, which tells runs apart; "
                "name a setting of the run"
            )
        labels = [label_of(value) for value in self.values]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(
                f"two values of the sweep {self.name!r} would be the arm {self.name}-{twice[0]}; "
                "give one of them a sweep of another name"
            )
        for label in labels:
            if not re.match(FOLDER_NAME, f"{self.name}-{label}"):
                raise ValueError(
                    f"a value of the sweep {self.name!r} would name an arm {self.name}-{label}, "
                    "which is no folder name; use a number, a plain word, or a table with a type"
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
        ValueError: if two arms have one name.
    """
    others, arms = set(taken), dict[str, dict[str, Any]]()
    for sweep in sweeps:
        for value in sweep.values:
            name = f"{sweep.name}-{label_of(value)}"
            if name in others or name in arms:
                raise ValueError(f"study.sweeps: two arms are named {name}; rename the sweep")
            for part in reversed(sweep.key.split(".")):
                value = {part: value}
            arms[name] = value
    return arms
