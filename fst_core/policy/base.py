"""The seams of the model: an Engine samples token ids; a Policy formats chats and scores them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from fst_core.config import PolicyConfig
from fst_core.records import Completion


class ContextTooLong(ValueError):
    """A prompt and its completion do not fit the model's window."""


class EngineError(RuntimeError):
    """The engine cannot generate any more; the last checkpoint is intact, so the run can go on."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn."""

    temperature: float = 1.0
    max_new_tokens: int = 32
    logprobs: bool = True
    """Whether anyone reads the log-probabilities of the drawn tokens, which may cost something."""


class Engine(Protocol):
    """Draws completions from the CURRENT weights; the only place where text is generated.

    A rollout's draws depend on its own seed and prompt alone, not on its neighbours in the batch
    (beyond floating-point rounding). `rollouts` and `calls` count what was generated, for the
    ledger to be checked against.
    """

    rollouts: int
    calls: int
    tokens: int

    def sync(self, version: int) -> None:
        """Take over the policy's weights as they are after `version` slow steps.

        An engine that samples from the policy's own tensors has nothing to do; one with a copy of
        its own copies once per version.
        """
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per prompt (token ids), in order.

        Where `sampling.logprobs` is false, an engine may leave them out; draws are the same.

        Raises:
            ContextTooLong: if a prompt plus `max_new_tokens` passes the window.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The tokens of one completion under the policy and its frozen base, in nats.

    All at the sampling temperature and under the same prompt; each as long as the completion.
    """

    logp: tuple[float, ...]
    """log pi(y_t | x, y_<t)."""
    base_logp: tuple[float, ...]
    """log pi_base(y_t | x, y_<t)."""
    kl: tuple[float, ...]
    """KL(pi || pi_base) of the next-token distribution, over the full vocabulary."""
    entropy: tuple[float, ...]
    """Entropy of pi's next-token distribution."""


def refuse_too_long(
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    window: int,
    limit: str = "",
) -> None:
    """Refuse prompts that leave no room for a completion.

    Args:
        window: most tokens of a prompt and its completion together.
        limit: the setting that makes the window this small; empty where it is the model's own.
    Raises:
        ContextTooLong: if a prompt plus `max_new_tokens` passes the window.
    """
    longest = max(map(len, prompts), default=0)
    if longest + sampling.max_new_tokens > window:
        passed = f"{limit} = {window}; raise it," if limit else f"the model's window of {window};"
        raise ContextTooLong(
            f"a prompt of {longest} tokens plus max_new_tokens = {sampling.max_new_tokens} passes "
            f"{passed} lower contexts.max_tokens or policy.max_new_tokens, or shorten the problems"
        )


def sampling_dtype(config: PolicyConfig) -> torch.dtype:
    """The type that training computes in, and so that of what an engine computes."""
    return torch.bfloat16 if config.autocast else getattr(torch, config.dtype)


class Sampler(Protocol):
    """Weights that answer chats."""

    sampling: Sampling
    """The run's own."""

    @property
    def version(self) -> int:
        """Slow steps behind the weights."""
        ...

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, ending where the assistant's turn begins."""
        ...

    def prompts_of(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
        """The same of every chat, at once."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling | None = None,
    ) -> list[Completion]:
        """Completions from the engine; `sampling` None takes the run's own."""
        ...


class Policy(Sampler, Protocol):
    """The model as fast phase, slow phase and evaluation see it."""

    window: int
    """Most tokens of a prompt and its completion together."""

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text."""
        ...

    def score(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> list[TokenScores]:
        """Given completions under the same prompts, token by token, by the policy and its base."""
        ...
