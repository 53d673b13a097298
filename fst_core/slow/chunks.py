"""Cutting a scored batch into the pieces that get a forward and backward pass of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator

Batch = dict[str, Any]
"""TRL's scored batch: tensors with N rows, and scalars that belong to all of them."""


def take_rows(batch: Batch, rows: torch.Tensor) -> Batch:
    """Some rows of a batch; scalars stay."""
    return {
        key: value[rows.to(value.device)]
        if isinstance(value, torch.Tensor) and value.ndim
        else value
        for key, value in batch.items()
    }


def without_shared_padding(batch: Batch) -> Batch:
    """A scored batch without the columns that are padding in every row."""
    prompt_T = batch["prompt_mask"].any(dim=0)
    completion_T = batch["completion_mask"].any(dim=0)
    first = int(prompt_T.int().argmax())
    width = len(completion_T)
    # Two columns at least: TRL takes one for a value a sequence, and counts rows instead of tokens.
    last = max(2, width - int(completion_T.flip(0).int().argmax())) if completion_T.any() else 2
    trimmed = dict(batch)
    for key, value in batch.items():
        if key in ("prompt_ids", "prompt_mask"):
            trimmed[key] = value[:, first:]
        elif isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[1] == width:
            trimmed[key] = value[:, :last]  # completion ids, mask and per-token log-probs
    return trimmed


def padded_tokens(batch: Batch) -> int:
    """Tokens a forward pass over the batch computes."""
    rows, prompt = batch["prompt_ids"].shape
    return int(rows * (prompt + batch["completion_ids"].shape[1]))


def by_tokens(batch: Batch, budget: int) -> list[Batch]:
    """Rows sorted by length, in pieces of at most `budget` padded tokens (one row at least)."""
    prompt_N = batch["prompt_mask"].sum(1)
    completion_N = batch["completion_mask"].sum(1)
    order = torch.argsort(prompt_N + completion_N, stable=True).tolist()
    groups = cut_by_tokens(order, prompt_N.tolist(), completion_N.tolist(), budget)
    return [without_shared_padding(take_rows(batch, torch.tensor(rows))) for rows in groups]


def cut_by_tokens(
    order: Sequence[int], prompt_N: Sequence[int], completion_N: Sequence[int], budget: int
) -> list[list[int]]:
    """Row numbers in order, cut before a piece's padded tokens would pass the budget.

    Completions count at least the two columns that `without_shared_padding` leaves.
    """
    pieces: list[list[int]] = []
    prompt = completion = 0
    for row in order:
        prompt, completion = max(prompt, prompt_N[row]), max(completion, completion_N[row], 2)
        if pieces and (len(pieces[-1]) + 1) * (prompt + completion) <= budget:
            pieces[-1].append(row)
        else:
            pieces.append([row])
            prompt, completion = prompt_N[row], max(completion_N[row], 2)
    return pieces


def by_rows(batch: Batch, size: int) -> list[Batch]:
    """Pieces of at most `size` rows, in order; a batch that is one piece stays as it is."""
    rows = torch.arange(len(batch["prompt_ids"]))
    if len(rows) <= size:
        return [batch]
    return [without_shared_padding(take_rows(batch, part)) for part in rows.split(size)]


def filler(batch: Batch) -> Batch:
    """One row whose completion counts for nothing: no loss, no KL, no tokens."""
    row = take_rows(batch, batch["prompt_mask"].sum(1).argmin().view(1))
    row["completion_mask"] = torch.zeros_like(row["completion_mask"])
    return without_shared_padding(row)


def keep_rows(batch: Batch, alive_N: torch.Tensor, chunks: int) -> Batch:
    """A scored batch without the rows that are not alive.

    The batch is cut into `chunks` equal micro-batches afterwards, so up to `chunks` - 1 other rows
    (or `chunks`, where none is alive) stay as filler with an empty completion mask: they carry no
    loss, no KL and no share of the normaliser.
    """
    size = max(chunks, -(-int(alive_N.sum()) // chunks) * chunks)
    rows = torch.argsort((~alive_N).int(), stable=True)[:size].sort().values
    smaller = take_rows(batch, rows)
    smaller["completion_mask"] = smaller["completion_mask"] * alive_N[rows][:, None]
    return without_shared_padding(smaller)


@contextmanager
def unequal_rows(accelerator: Accelerator) -> Iterator[None]:
    """Where TRL gathers a metric of every row, let processes have pieces of other sizes.

    Shorter ones are filled up with NaN, which TRL leaves out of such metrics.
    """
    gather = accelerator.gather
    if accelerator.num_processes == 1:
        yield
        return

    def gathered(values_B: torch.Tensor) -> Any:
        return gather(accelerator.pad_across_processes(values_B, pad_index=float("nan")))

    accelerator.gather = gathered
    try:
        yield
    finally:
        accelerator.gather = gather
