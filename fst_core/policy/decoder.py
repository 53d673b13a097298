"""A Llama-like model over cells: a decode step in eight kernels a layer.

For one new token a row, transformers' layers are some thirty short kernels each, and what lies
between two of them costs as much as they do. Here the products that read the same input are one
(queries, keys and values; gate and up), and what stands between products is one kernel. The
weights stay where the model's own modules find them, so that they can be copied name by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, rms_norm
from transformers import PreTrainedModel

from fst_core.policy import plain_layers
from fst_core.policy.cells import Cells, Heads, Prompts, Turn

Attend = Callable[[torch.Tensor, int, Heads, Turn], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Joined:
    """Linear layers that read the same input, as one product."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, *layers: Any) -> "Joined":
        """Put the layers' parameters behind one another in memory, where the layers look on."""
        weight = _stacked([layer.weight for layer in layers])
        assert weight is not None
        return cls(weight, _stacked([layer.bias for layer in layers]))

    def __call__(self, x_BD: torch.Tensor) -> torch.Tensor:
        """All outputs side by side."""
        return linear(x_BD, self.weight, self.bias)


def _stacked(parameters: list[nn.Parameter | None]) -> torch.Tensor | None:
    given = [p for p in parameters if p is not None]
    if not given:
        return None
    whole = torch.cat([p.data for p in given])
    for parameter, part in zip(given, whole.split([len(p) for p in given]), strict=True):
        parameter.data = part
    return whole


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer of transformers, and what of it is joined."""

    module: Any
    qkv: Joined
    gate_up: Joined
    heads: Heads
    turns: bool
    """Whether it has rotary embeddings (SmolLM3 leaves some layers without)."""

    @classmethod
    def of(cls, module: Any) -> "Layer":
        """Join the products of a layer."""
        own, mlp = module.self_attn, module.mlp
        heads = Heads(own.q_proj.out_features // own.head_dim, own.scaling)
        if hasattr(own, "q_norm"):
            norms = own.q_norm.weight, own.k_norm.weight, own.q_norm.variance_epsilon
            heads = Heads(heads.queries, heads.scale, *norms)
        return cls(
            module,
            Joined.of(own.q_proj, own.k_proj, own.v_proj),
            Joined.of(mlp.gate_proj, mlp.up_proj),
            heads,
            bool(getattr(own, "use_rope", True)),
        )


class Decoder:
    """The body of a model over cells, for prompts and for one new token of every row.

    Args:
        model: its parameters move in memory here.
    """

    def __init__(self, model: PreTrainedModel, cells: Cells):
        body: Any = model.get_decoder()
        self.cells = cells
        self.embed, self.turn, self.last = body.embed_tokens, body.rotary_emb, body.norm
        self.layers = [Layer.of(module) for module in body.layers]
        self.kernels = _kernels_on(model.device)

    def step(self, token_B: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
        """Read a token of each row at its position; its hidden state, normalised, (B, D)."""

        def attend(qkv_BX: torch.Tensor, number: int, heads: Heads, turn: Turn) -> torch.Tensor:
            found: torch.Tensor = self.kernels.attend(
                qkv_BX, heads, self.cells, number, position_B, turn
            )
            return found

        return self._through(token_B, position_B, attend)

    def read(self, ids_UT: torch.Tensor, prompts: Prompts) -> torch.Tensor:
        """Read prompts into the rows that begin with them; normalised hidden states (U, T, D)."""

        def attend(qkv_NX: torch.Tensor, number: int, heads: Heads, turn: Turn) -> torch.Tensor:
            given = self.cells, number, width, prompts
            return plain_layers.attend_prompts(qkv_NX, heads, *given, turn)

        width = ids_UT.shape[1]
        position_UT = torch.arange(width, device=ids_UT.device).expand_as(ids_UT)
        hidden_ND = self._through(ids_UT.flatten(), position_UT.flatten(), attend)
        return hidden_ND.view(*ids_UT.shape, -1)

    def _through(
        self, token_N: torch.Tensor, position_N: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        kernels = self.kernels
        x_ND = self.embed(token_N)
        cos_1ND, sin_1ND = self.turn(x_ND[None], position_N[None])
        turn = cos_1ND[0], sin_1ND[0]
        first = self.layers[0].module.input_layernorm
        following = [layer.module.input_layernorm for layer in self.layers[1:]] + [self.last]
        read_ND = rms_norm(x_ND, first.weight.shape, first.weight, first.variance_epsilon)
        for number, (layer, after) in enumerate(zip(self.layers, following, strict=True)):
            module, norm = layer.module, layer.module.post_attention_layernorm
            qkv_NX = layer.qkv(read_ND)
            seen_NX = attend(qkv_NX, number, layer.heads, turn if layer.turns else None)
            delta_ND = module.self_attn.o_proj(seen_NX)
            read_ND = kernels.add_norm(x_ND, delta_ND, norm.weight, norm.variance_epsilon)
            delta_ND = module.mlp.down_proj(kernels.gated(layer.gate_up(read_ND)))
            read_ND = kernels.add_norm(x_ND, delta_ND, after.weight, after.variance_epsilon)
        return read_ND


def _kernels_on(device: torch.device) -> ModuleType:
    if device.type != "cuda":
        return plain_layers
    from fst_core.policy import triton_layers  # noqa: PLC0415  # Triton comes with CUDA builds only

    return triton_layers
