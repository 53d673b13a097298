"""Generation with a plain transformers model: batched prefill, cached decode, seeded sampling."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from fst_core.policy.base import Sampling, refuse_too_long
from fst_core.policy.memory import Halving
from fst_core.policy.noise import draw, seed_tensor
from fst_core.records import Completion, StopReason


def left_pad(
    rows: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both (B, T) int64, padded on the left."""
    width = max(map(len, rows))
    ids_BT = torch.full((len(rows), width), pad, dtype=torch.long)
    mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids_BT[i, width - len(row) :] = torch.tensor(row, dtype=torch.long)
        mask_BT[i, width - len(row) :] = 1
    return ids_BT.to(device), mask_BT.to(device)


def positions(mask_BT: torch.Tensor) -> torch.Tensor:
    """Position ids that ignore left padding, so that padding changes nothing."""
    return (mask_BT.cumsum(-1) - 1).clamp(min=0)


def window_of(model: PreTrainedModel) -> int:
    """Most tokens the model has positions for."""
    return int(getattr(model.config, "max_position_embeddings", 1 << 30))


@contextmanager
def looking(model: PreTrainedModel, autocast: bool) -> Iterator[None]:
    """Eval mode, no gradients, and bfloat16 autocast where training uses it; all put back after."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
            yield
    finally:
        model.train(training)


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


class TransformersEngine:
    """Draws completions from a live transformers model, in batches of similar prompt length."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        batch_size: int,
        autocast: bool = False,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.batch_size = batch_size
        self.autocast = autocast
        self.window = window_of(model)
        self.memory = Halving("policy.batch_size")
        self.rollouts = self.calls = self.tokens = 0

    def sync(self, version: int) -> None:
        """Nothing to do: the engine reads the trained tensors themselves."""

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per prompt, in order (see `fst_core.policy.base.Engine`).

        Raises:
            ContextTooLong: if a prompt plus `max_new_tokens` passes the model's window.
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
        with looking(self.model, self.autocast):
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                batch = self._batch([prompts[i] for i in rows], [seeds[i] for i in rows], sampling)
                done.update(zip(rows, batch, strict=True))
        return done

    def _batch(
        self, prompts: list[Sequence[int]], seeds: list[int], sampling: Sampling
    ) -> list[Completion]:
        """Prefill once, then decode; rows that have stopped leave the batch."""
        device = self.model.device
        ids_BT, mask_BT = left_pad(prompts, self._pad_id(), device)
        position_BT = positions(mask_BT)
        cache: Any = DynamicCache(config=self.model.config)
        noise_B2 = seed_tensor(seeds, device)
        stop = torch.tensor(sorted(self.stop_ids), device=device)
        live_B = torch.arange(len(prompts), device=device)
        tokens_B: list[list[int]] = [[] for _ in prompts]
        logps_B: list[list[float]] = [[] for _ in prompts]
        for t in range(sampling.max_new_tokens):
            logits_BV = self.model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=position_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            token_B, logp_B = draw(logits_BV, noise_B2, t, sampling.temperature)
            rows = live_B.tolist()
            for row, token, logp in zip(rows, token_B.tolist(), logp_B.tolist(), strict=True):
                tokens_B[row].append(token)
                logps_B[row].append(logp)
            keep_B = ~torch.isin(token_B, stop)
            if not bool(keep_B.any()):
                break
            position_BT = position_BT[:, -1:] + 1
            if not bool(keep_B.all()):
                cache.batch_select_indices(keep_B.nonzero().squeeze(1))
                live_B, token_B, noise_B2 = live_B[keep_B], token_B[keep_B], noise_B2[keep_B]
                position_BT, mask_BT = position_BT[keep_B], mask_BT[keep_B]
            ids_BT = token_B[:, None]
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(live_B), 1)], dim=1)
        return completions(self.tokenizer, self.stop_ids, prompts, tokens_B, logps_B)

    def _pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)
