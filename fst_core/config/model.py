"""The base of every config model: frozen, strict about keys, documented field by field."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FOLDER_NAME = r"^\w[\w.+-]*$"
"""Names become folders: letters, digits, and . + - _ inside."""
COMPONENT_NAME = r"^\w[\w-]*$"
SETTING_PATH = r"^\w+(\.\w+)*$"
"""A dotted path of keys."""

FolderName = Annotated[str, Field(pattern=FOLDER_NAME)]
RunSeed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""What tables and every server keep as a number: 64 bits with a sign."""


class ConfigError(ValueError):
    """A config that cannot be run; the message says which key, why, and what to do."""


class NotHere(ConfigError):
    """What a run needs and this machine lacks: a plan can still be made, a run cannot."""


class ConfigModel(BaseModel):
    """Frozen; unknown keys are errors; the string under each field is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )


def first_twin(names: Iterable[str]) -> str | None:
    """The first name that one before it equals but for case, as on disks that ignore case."""
    seen = set[str]()
    for name in names:
        if name.casefold() in seen:
            return name
        seen.add(name.casefold())
    return None
