"""The base of every config model: frozen, strict about keys, documented field by field."""

from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

FOLDER_NAME = r"^\w[\w.+-]*$"
"""Names become folders: letters, digits, and . + - _ inside."""
COMPONENT_NAME = r"^\w[\w-]*$"
SETTING_PATH = r"^\w+(\.\w+)*$"
"""A dotted path of keys."""

FolderName = Annotated[str, Field(pattern=FOLDER_NAME, max_length=100)]
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

    @model_validator(mode="before")
    @classmethod
    def _refuse_truth_for_a_number(cls, data: Any) -> Any:
        """`steps = true` is no 1, as it would be to Python."""
        given = data if isinstance(data, Mapping) else {}
        wrong = [
            InitErrorDetails(
                type="int_type" if int in kinds else "float_type", loc=(name,), input=given[name]
            )
            for name, field in cls.model_fields.items()
            if isinstance(given.get(name), bool)
            and {int, float} & (kinds := {*_plain_types(field.annotation)})
            and bool not in kinds
        ]
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return data


def _plain_types(annotation: Any) -> Iterator[Any]:
    """The types that a union, or what Annotated wraps, is made of; not what a container holds."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        for part in get_args(annotation):
            yield from _plain_types(part)
    else:
        yield annotation


def first_twin(names: Iterable[str]) -> str | None:
    """The first name that one before it equals but for case, as on disks that ignore case."""
    seen = set[str]()
    for name in names:
        if name.casefold() in seen:
            return name
        seen.add(name.casefold())
    return None
