"""What engines of our own share: batches of similar prompt length, counters, a retry for memory."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from fst_core.policy.base import Sampling, refuse_too_long
from fst_core.policy.memory import Halving
from fst_core.records import Completion, StopReason

Drawn = tuple[list[list[int]], list[list[float]]]
"""Tokens and log-probabilities of every row; what follows a row's first stop token is ignored."""


def completions(
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: frozenset[int],
    prompts: Sequence[Sequence[int]],
    tokens_B: Sequence[list[int]],
    logps_B: Sequence[list[float]],
) -> list[Completion]:
    """What was drawn for every prompt, each cut behind its first stop token."""
    found = []
    for prompt, drawn, logps in zip(prompts, tokens_B, logps_B, strict=True):
        end = next((i for i, token in enumerate(drawn, 1) if token in stop_ids), 0)
        reason = StopReason.STOP if end else StopReason.LENGTH
        tokens = drawn[: end or len(drawn)]
        text = str(tokenizer.decode(tokens, skip_special_tokens=True))
        found.append(
            Completion(tuple(tokens), tuple(logps[: len(tokens)]), text, reason, len(prompt))
        )
    return found


class BatchedEngine(ABC):
    """An `fst_core.policy.base.Engine` but for drawing one batch, and for taking over weights."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        batch_size: int,
        window: int,
    ):
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.batch_size = batch_size
        self.window = window
        self.memory = Halving("policy.batch_size")
        self.rollouts = self.calls = self.tokens = 0

    @abstractmethod
    def _draw_batch(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Drawn:
        """Draw for at most `batch_size` prompts, shortest first."""

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per prompt, in order.

        Raises:
            ContextTooLong: if a prompt plus `max_new_tokens` passes the model's window.
            MemoryFull: if half of `policy.batch_size` is still too much.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but {len(seeds)} seeds")
        refuse_too_long(prompts, sampling, self.window)
        done = self.memory.run(
            lambda size: self._in_batches(prompts, seeds, sampling, size), self.batch_size
        )
        self.calls += 1
        self.rollouts += len(prompts)
        self.tokens += sum(len(c.token_ids) for c in done.values())
        return [done[i] for i in range(len(prompts))]

    def _in_batches(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling,
        size: int,
    ) -> dict[int, Completion]:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        done: dict[int, Completion] = {}
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = [prompts[i] for i in chosen]
            drawn = self._draw_batch(batch, [seeds[i] for i in chosen], sampling)
            found = completions(self.tokenizer, self.stop_ids, batch, *drawn)
            done.update(zip(chosen, found, strict=True))
        return done
