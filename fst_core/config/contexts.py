"""The population of contexts."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from fst_core.config.model import COMPONENT_NAME, ConfigModel
from fst_core.records import Parts, joined

ComponentName = Annotated[str, Field(pattern=COMPONENT_NAME)]


class ContextsConfig(ConfigModel):
    """The population of contexts."""

    seed: str = "You are a helpful assistant."
    """The context every run starts from; says nothing of the task."""
    components: dict[ComponentName, str] | None = Field(
        None, min_length=1, exclude_if=lambda components: components is None
    )
    """The context every run starts from as named components that GEPA evolves jointly, instead of
    `seed`. The policy reads them in this order, each from a line of its own, without their names;
    empty ones are left out."""
    size: int = Field(4, ge=1)
    """K: contexts in the population; a run without a fast part holds one, unless it starts from the
    population of another run."""
    start_from: str | None = None
    """Run whose final population this one begins with, named as in the run's own `start_from`."""
    max_tokens: int = Field(512, ge=1)
    """Longest context (tokens of the policy's tokenizer); longer proposals are rejected."""

    @model_validator(mode="before")
    @classmethod
    def join_components(cls, data: Any) -> Any:
        components = data.get("components") if isinstance(data, Mapping) else None
        if not isinstance(components, Mapping):
            return data
        if not all(isinstance(text, str) for text in components.values()):
            return data  # refused by its type
        if "type" in components:
            raise ValueError("components cannot hold one called type; give it another name")
        seed = joined(components.values())
        if data.get("seed", seed) != seed:
            raise ValueError(
                "both seed and components say what the context is at the start; leave one out"
            )
        return {**data, "seed": seed}

    @property
    def parts(self) -> Parts:
        """The components, in order; none where the context is one text."""
        return tuple((self.components or {}).items())
