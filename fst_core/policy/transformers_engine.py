"""Generation with a plain transformers model: batched prefill, cached decode, seeded sampling."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from fst_core.policy.base import Sampling
from fst_core.policy.batched_engine import BatchedEngine, Drawn
from fst_core.policy.chats import positions_of
from fst_core.policy.noise import draw, seed_tensor
from fst_core.policy.prefix import behind_prefixes, positions, shares


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


def window_of(model: PreTrainedModel) -> int:
    """Most tokens the model has positions for."""
    return positions_of(model.config)


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


class TransformersEngine(BatchedEngine):
    """Draws completions from a live transformers model, in batches of similar prompt length."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        batch_size: int,
        autocast: bool = False,
        share_prefixes: bool = False,
    ):
        super().__init__(tokenizer, stop_ids, batch_size, window_of(model))
        self.model = model
        self.autocast = autocast
        self.share_prefixes = share_prefixes and shares(model)

    def sync(self, version: int) -> None:
        """Nothing to do: the engine reads the trained tensors themselves."""

    def _draw_batch(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Drawn:
        with looking(self.model, self.autocast):
            return self._decode(prompts, seeds, sampling)

    def _decode(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Drawn:
        """Prefill once, then decode; rows that have stopped leave the batch."""
        device = self.model.device
        ids_BT, mask_BT = left_pad(prompts, self._pad_id(), device)
        position_BT = positions(mask_BT)
        cache: Any = DynamicCache(config=self.model.config)
        if self.share_prefixes:
            behind = behind_prefixes(self.model, ids_BT, mask_BT, ids_BT.shape[1])
            if behind is not None:
                ids_BT, mask_BT = behind["input_ids"], behind["attention_mask"]
                position_BT, cache = behind["position_ids"], behind["past_key_values"]
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
        return tokens_B, logps_B

    def _pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)
