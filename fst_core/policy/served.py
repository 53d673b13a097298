"""What a vLLM server's answers have to look like; everything else is refused in one place."""

from typing import TYPE_CHECKING, Annotated

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fst_core.config import VllmConfig
from fst_core.config.model import ConfigError

if TYPE_CHECKING:
    from fst_core.policy.base import Sampling

ROUNDING = 1e-3
"""How far above 0 a log-probability may be by rounding (nats)."""


class Model(BaseModel):
    """A served model."""

    id: str
    max_model_len: int = Field(ge=1)


class Models(BaseModel):
    """/v1/models."""

    data: list[Model] = Field(min_length=1)


class ModelConfig(BaseModel):
    """How the server was told to answer."""

    logprobs_mode: str


class DeviceConfig(BaseModel):
    """Where the server computes."""

    device: str


class ServerConfig(BaseModel):
    """The part of the server's own config that answers depend on."""

    of_model: ModelConfig = Field(alias="model_config")
    device_config: DeviceConfig


class Info(BaseModel):
    """/server_info."""

    vllm_config: ServerConfig | None = None
    """None where the server has no such route."""


class WeightInfo(BaseModel):
    """/weight_info."""

    weight_version: str | None


class Reset(BaseModel):
    """/reset_prefix_cache."""

    success: bool = True


class Anything(BaseModel):
    """An answer of which nothing is read."""

    model_config = ConfigDict(extra="ignore")


class TokenLogprobs(BaseModel):
    """Log-probabilities of the drawn tokens, in nats."""

    token_logprobs: list[Annotated[float, Field(le=ROUNDING, allow_inf_nan=False)]]


class Choice(BaseModel):
    """One completion."""

    token_ids: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    logprobs: TokenLogprobs | None = None


class Drawn(BaseModel):
    """/v1/completions for one prompt."""

    choices: list[Choice] = Field(min_length=1, max_length=1)

    @property
    def token_ids(self) -> list[int]:
        """The drawn tokens, stop token included."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> list[float]:
        """Their log-probabilities (nats), if there are any."""
        told = self.choices[0].logprobs
        return told.token_logprobs if told else []

    def what_is_wrong(self, vocabulary: int, asked: "Sampling") -> str:
        """Why the completion cannot be the policy's; empty where it can."""
        tokens, logps = self.token_ids, self.logprobs
        if asked.logprobs and len(tokens) != len(logps):
            return f"{len(tokens)} tokens with {len(logps)} log-probabilities"
        if len(tokens) > asked.max_new_tokens:
            return f"{len(tokens)} tokens where {asked.max_new_tokens} were asked for"
        if max(tokens) >= vocabulary:
            return f"token {max(tokens)} of a vocabulary of {vocabulary}"
        return ""


def what_is_wrong(error: ValidationError) -> str:
    """The first thing that an answer gets wrong, and where."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "the whole answer"
    return f"{place}: {first['msg']}"


def server_url(settings: VllmConfig) -> str:
    """The address of a config's server, checked without asking it.

    Raises:
        ConfigError: if it is no http address.
    """
    try:
        url = httpx.URL(settings.url.rstrip("/"))
        good = url.scheme in ("http", "https") and url.host and 0 < (url.port or 1) < 1 << 16
    except httpx.InvalidURL:
        good = False
    if not good:
        raise ConfigError(
            f"policy.vllm.url = {settings.url!r} is no address; give one such as "
            "http://127.0.0.1:8000"
        )
    return str(url)
