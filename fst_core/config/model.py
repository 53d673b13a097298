"""The base of every config model: frozen, strict about keys, documented field by field."""

from pydantic import BaseModel, ConfigDict

FOLDER_NAME = r"^\w[\w.+-]*$"
"""Names become folders: letters, digits, and . + - _ inside."""


class ConfigError(ValueError):
    """A config that cannot be run; the message says which key, why, and what to do."""


class ConfigModel(BaseModel):
    """Frozen; unknown keys are errors; the string under each field is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )
