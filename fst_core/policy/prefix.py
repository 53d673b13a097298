"""Prefixes that rows have in common, computed once and put in front of all of them.

A context is most of a row, and the rows of a batch have K of them between them. So a model reads
each common prefix once, with gradients where they are wanted, and the rows read only what follows,
with the keys and values of their prefix in front. Results are those of whole rows, but for
rounding.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

WORTH = 0.75
"""Share of a batch's padded tokens below which prefixes and suffixes together must stay."""
LAUNCHES = 150e9
"""Tokens times weights of a layer that a GPU gets through while Python launches one more pass.

An H200 at some 300 TFLOP/s, six operations a token and weight, against 3 to 4 ms a layer for a
forward and a backward pass. With SmolLM2-135M that is 43 thousand tokens, with Qwen3-8B 800.
"""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """B rows as P prefixes and what follows them; all on the CPU."""

    ids_PT: torch.Tensor
    mask_PT: torch.Tensor
    """Padded on the right."""
    of_B: torch.Tensor
    """Every row's prefix."""
    length_B: torch.Tensor
    """Its tokens."""
    rest: int
    """Columns of prompts that are read behind the prefixes; a long one may reach into them."""
    saved: int
    """Tokens, padding included, that need not be read."""


def positions(mask_BT: torch.Tensor) -> torch.Tensor:
    """Position ids that ignore left padding, so that padding changes nothing."""
    return (mask_BT.cumsum(-1) - 1).clamp(min=0)


def common_prefixes(ids_BT: torch.Tensor, mask_BT: torch.Tensor, more: int) -> Prefixes | None:
    """The prefixes with which a batch has the fewest tokens to compute; None if none pay.

    In sorted order rows that begin alike are neighbours, and the prefix of any run of neighbours is
    the shortest of those that two of them share. So the batch is cut wherever two share fewer than
    some number of tokens, and the best such number is taken.

    Args:
        ids_BT: prompts, padded on the left.
        more: columns of every row behind its prompt.
    """
    ids_BT, mask_BT = ids_BT.cpu(), mask_BT.cpu()
    rows, width = ids_BT.shape
    size_B = mask_BT.sum(1)
    column_T = torch.arange(width)
    at_BT = (column_T + width - size_B[:, None]).clamp(max=width - 1)
    left_BT = torch.where(column_T < size_B[:, None], ids_BT.gather(1, at_BT), -1)
    sorted_BT, of_B = left_BT.unique(dim=0, return_inverse=True)  # in lexicographic order
    if rows == 1:
        return None
    size_U = (sorted_BT >= 0).sum(1)
    alike_U = (sorted_BT[1:] == sorted_BT[:-1]).int().cumprod(1).sum(1)
    best: tuple[int, Prefixes] | None = None
    for least in alike_U.unique().tolist() or [0]:
        run_U = torch.cat([torch.zeros(1, dtype=torch.long), (alike_U < least).cumsum(0)])
        length_R = torch.full((int(run_U[-1]) + 1,), width)
        length_R.scatter_reduce_(0, run_U, size_U - 1, "amin")  # a token is left to be read
        length_R.scatter_reduce_(0, run_U[1:][alike_U >= least], alike_U[alike_U >= least], "amin")
        rest = int((size_U - length_R[run_U]).max())
        tokens = len(length_R) * int(length_R.max()) + rows * (rest + more)
        if int(length_R.min()) >= 1 and (best is None or tokens < best[0]):
            first_R = torch.searchsorted(run_U, torch.arange(len(length_R)))
            longest = int(length_R.max())
            mask_RT = (column_T[:longest] < length_R[:, None]).long()
            ids_RT = sorted_BT[first_R, :longest].clamp(min=0)
            run_B = run_U[of_B]
            saved = rows * (width + more) - tokens
            best = tokens, Prefixes(ids_RT, mask_RT, run_B, length_R[run_B], rest, saved)
    return best[1] if best and best[0] <= WORTH * rows * (width + more) else None


def shares(model: PreTrainedModel) -> bool:
    """Whether all of a model's layers attend to all that stands in front."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def outlasts_launches(model: Any, saved: int) -> bool:
    """Whether reading so many tokens would take a GPU longer than launching a pass of its own."""
    outer = {id(e.weight) for e in (model.get_input_embeddings(), model.get_output_embeddings())}
    weights = sum(p.numel() for p in model.parameters() if id(p) not in outer)
    return saved * weights / int(model.config.num_hidden_layers) > LAUNCHES


def behind_prefixes(
    model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, prompt: int
) -> dict[str, Any] | None:
    """What a model's forward takes to read rows behind their common prefixes; None if none pay.

    Args:
        ids_BT: prompts, padded on the left, then anything.
        prompt: columns of the prompts.

    Returns:
        `input_ids` and `position_ids` of what is left of the rows, `attention_mask` over prefixes
        and that, and `past_key_values`, computed here.
    """
    found = common_prefixes(ids_BT[:, :prompt], mask_BT[:, :prompt], ids_BT.shape[1] - prompt)
    if found is None or (ids_BT.is_cuda and not outlasts_launches(model, found.saved)):
        return None
    device = ids_BT.device
    of_B, prefix_mask_PT = found.of_B.to(device), found.mask_PT.to(device)
    cache = model(
        input_ids=found.ids_PT.to(device),
        attention_mask=prefix_mask_PT,
        position_ids=positions(prefix_mask_PT),
        past_key_values=DynamicCache(),
        use_cache=True,
        logits_to_keep=1,
    ).past_key_values
    cache.batch_select_indices(of_B)
    kept = slice(prompt - found.rest, None)
    behind_BT = mask_BT.cumsum(1) > found.length_B.to(device)[:, None]
    own_BT = (mask_BT * behind_BT)[:, kept]
    return {
        "input_ids": ids_BT[:, kept],
        "attention_mask": torch.cat([prefix_mask_PT[of_B], own_BT], dim=1),
        "position_ids": positions(mask_BT)[:, kept],
        "past_key_values": cache,
    }
