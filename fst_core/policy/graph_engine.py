"""Generation for small models on a GPU: static cells and a decode step captured as a CUDA graph.

A decode step of a small model is some hundred short kernels, and launching them from Python takes
several times longer than running them. Here a whole step (model, draw, stop test) is captured once
per number of rows and replayed. The host looks at the batch only every few tokens; when half of its
rows have stopped, the others move together and a smaller graph goes on. Identical prompts (the
rollouts of a problem under one context) are read once.

The engine samples from a copy of the weights in the type that training computes in, refreshed by
`sync`. Without a GPU the same steps run uncaptured.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fst_core.policy import noise
from fst_core.policy.adapters import adapted_layers, plain, whole_weights
from fst_core.policy.base import Sampling
from fst_core.policy.batched_engine import BatchedEngine, Drawn
from fst_core.policy.cells import Cells, Prompts
from fst_core.policy.decoder import Decoder
from fst_core.policy.transformers_engine import window_of

MODELS = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Architectures of transformers known to keep to static shapes and plain attention."""
WIDTH = 64
"""Widths of the cells are multiples of this (tokens)."""
LOOK = 4
"""Decode steps between two looks of the host at what has stopped."""
PREFILL_TOKENS = 1 << 16
"""Most tokens (padding included) of one forward pass over prompts."""
ROOM = 1 << 30
"""Memory (bytes) that must be free on the device before a graph is captured."""

Draw = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def why_not(model: PreTrainedModel) -> str | None:
    """What keeps a model from this engine; None if nothing does."""
    config: Any = model.config
    if config.model_type not in MODELS:
        return f"{config.model_type} is not among {', '.join(sorted(MODELS))}"
    if any("sliding" in kind for kind in getattr(config, "layer_types", None) or ()):
        return "it has sliding-window attention"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1) != 1:
        return "its rotary embeddings turn a part of each head"
    return None


def sampling_copy(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with parameters of another type; buffers stay as they are."""
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    for parameter in twin.parameters():
        parameter.data = parameter.data.to(dtype)
    return twin


@dataclass
class Rows:
    """The state of up to R rows on the device; graphs are bound to its memory."""

    token: torch.Tensor
    """The token to be read next, (R,)."""
    position: torch.Tensor
    """Its position, (R,)."""
    seeds: torch.Tensor
    """(R, 2), see `noise.seed_tensor`."""
    owner: torch.Tensor
    """Which rollout of the batch a row is, (R,); filler rows are rollout R."""
    stopped: torch.Tensor
    """(R,) bool."""
    index: torch.Tensor
    """Which token of the completions is drawn next, 0-dimensional."""
    temperature: torch.Tensor
    """0-dimensional float32."""
    tokens: torch.Tensor
    """Every token drawn, (R + 1, T); T has one to spare, for what trying out a step draws."""
    logps: torch.Tensor
    """Their log-probabilities, (R + 1, T)."""

    @classmethod
    def empty(cls, rows: int, tokens: int, device: torch.device) -> "Rows":
        """Memory for R rows of T tokens."""

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            zeros(rows),
            zeros(rows),
            zeros(rows, 2),
            zeros(rows),
            zeros(rows, dtype=torch.bool),
            zeros(),
            zeros(dtype=torch.float32),
            zeros(rows + 1, tokens),
            zeros(rows + 1, tokens, dtype=torch.float32),
        )

    def changing(self) -> list[torch.Tensor]:
        """What a decode step writes."""
        return [self.token, self.position, self.stopped, self.index, self.tokens, self.logps]


class GraphEngine(BatchedEngine):
    """Draws completions with replayed decode steps (see `fst_core.policy.base.Engine`).

    Args:
        dtype: type of the engine's copy of the weights.
    Attributes:
        syncs: how often weights were copied.
        captures: how many graphs were captured.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        batch_size: int,
        dtype: torch.dtype,
    ):
        super().__init__(tokenizer, stop_ids, batch_size, window_of(model))
        self.trained = model
        self.syncs = self.captures = 0
        self.twin = sampling_copy(plain(model), dtype)
        self.device = model.device
        self.stop = torch.tensor(sorted(stop_ids), device=self.device)
        self.cells = Cells(self.twin)
        self.decoder = Decoder(self.twin, self.cells)
        self.rows = Rows.empty(0, 0, self.device)
        self._version: int | None = None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._side: torch.cuda.Stream | None = None
        self._draw = _draw_on(self.device)

    def sync(self, version: int) -> None:
        """Copy the trained weights, once per version."""
        if version == self._version:
            return
        with torch.no_grad():
            self._copy()
        self._version = version
        self.syncs += 1

    def _copy(self) -> None:
        if not adapted_layers(self.trained):
            torch._foreach_copy_(list(self.twin.parameters()), list(self.trained.parameters()))
            return
        for own, (_, value) in zip(
            self.twin.parameters(), whole_weights(self.trained), strict=True
        ):
            own.copy_(value)

    @torch.inference_mode()
    def _draw_batch(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Drawn:
        live, limit = len(prompts), sampling.max_new_tokens
        size = bucket(live)
        width = -(-(max(map(len, prompts)) + limit) // WIDTH) * WIDTH
        self._reserve(size, width, limit)
        self._load(prompts, seeds, sampling.temperature)
        self._prefill(prompts)
        for index in range(1, limit):
            if index % LOOK == 1:
                live = size - int(self.rows.stopped[:size].sum())
                if not live:
                    break
                if bucket(live) < size:
                    size = self._compact(size, bucket(live))
            self._step(size)
        count = len(prompts)
        return self.rows.tokens[:count, :limit].tolist(), self.rows.logps[:count, :limit].tolist()

    def _reserve(self, rows: int, width: int, tokens: int) -> None:
        """Memory for a batch; graphs that are bound to memory given up go."""
        had, room = self.rows.tokens.shape
        moved = self.cells.reserve(rows, width)
        if rows >= had or tokens >= room:
            self.rows = Rows.empty(max(rows, had - 1), max(tokens + 1, room), self.device)
            moved = True
        if moved:
            self._graphs.clear()

    def _load(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], temperature: float
    ) -> None:
        rows, count = self.rows, len(prompts)
        spare = rows.token.shape[0]
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        rows.position.zero_()[:count] = lengths
        rows.seeds.zero_()[:count] = noise.seed_tensor(seeds, self.device)
        rows.owner.fill_(spare)[:count] = torch.arange(count, device=self.device)
        rows.stopped.fill_(True)[:count] = False
        rows.index.zero_()
        rows.temperature.fill_(temperature)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read every distinct prompt once, and draw the first token of every row."""
        users: dict[tuple[int, ...], list[int]] = {}
        for row, prompt in enumerate(prompts):
            users.setdefault(tuple(prompt), []).append(row)
        distinct = sorted(users, key=len)
        per_pass = max(1, PREFILL_TOKENS // len(distinct[-1]))
        state_ND = self.cells.like.new_empty(len(prompts), int(self.twin.config.hidden_size))
        for start in range(0, len(distinct), per_pass):
            chosen = distinct[start : start + per_pass]
            pairs = [(row, u) for u, prompt in enumerate(chosen) for row in users[prompt]]
            rows_R, source_R = torch.tensor(pairs, device=self.device).T
            ids_UT, last_U = _right_pad(chosen, self.device)
            hidden_UTD = self.decoder.read(ids_UT, Prompts(rows_R, source_R))
            final_UD = hidden_UTD[torch.arange(len(chosen), device=self.device), last_U]
            state_ND[rows_R] = final_UD[source_R]
        self._advance(state_ND)

    def _advance(self, hidden_BD: torch.Tensor) -> None:
        """Draw a token for the first B rows and note it."""
        rows, size = self.rows, len(hidden_BD)
        head: Any = self.twin.get_output_embeddings()
        token_B, logp_B = self._draw(
            head(hidden_BD), rows.seeds[:size], rows.index, rows.temperature
        )
        owner_B, index_B = rows.owner[:size], rows.index.expand(size)
        rows.tokens[owner_B, index_B] = token_B
        rows.logps[owner_B, index_B] = logp_B
        rows.stopped[:size] |= (token_B[:, None] == self.stop).any(1)
        rows.token[:size] = token_B
        rows.index += 1

    def _decode(self, size: int) -> None:
        """Read one token of the first `size` rows and draw the next."""
        rows = self.rows
        token_B, position_B = rows.token[:size], rows.position[:size]
        hidden_BD = self.decoder.step(token_B, position_B)
        position_B += 1
        self._advance(hidden_BD)

    def _step(self, size: int) -> None:
        if self.device.type != "cuda":
            self._decode(size)
            return
        if size not in self._graphs:
            self._graphs[size] = self._capture(size)
        self._graphs[size].replay()

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        """A decode step as a graph; what trying it out has changed is put back."""
        before = [tensor.clone() for tensor in self.rows.changing()]
        if torch.cuda.mem_get_info(self.device)[0] < ROOM:
            torch.cuda.empty_cache()  # torch.cuda.graph does so always, and training allocates anew
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._side = self._side or torch.cuda.Stream()
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            for _ in range(2):
                self._decode(size)
            graph.capture_begin(self._pool(), capture_error_mode="thread_local")
            try:
                self._decode(size)
            finally:
                graph.capture_end()
        here.wait_stream(self._side)
        for tensor, old in zip(self.rows.changing(), before, strict=True):
            tensor.copy_(old)
        self.captures += 1
        return graph

    def _pool(self) -> Any:
        """The memory of graphs already captured: none of them keeps anything between replays."""
        if not self._graphs:
            return torch.cuda.graph_pool_handle()
        return next(iter(self._graphs.values())).pool()

    def _compact(self, size: int, smaller: int) -> int:
        """Move the rows that go on to the front; stopped ones fill up."""
        rows = self.rows
        keep_B = torch.argsort(rows.stopped[:size].int(), stable=True)[:smaller]
        self.cells.keep(keep_B)
        for tensor in (rows.token, rows.position, rows.seeds, rows.owner, rows.stopped):
            tensor[:smaller] = tensor[keep_B]
        return smaller


def bucket(rows: int) -> int:
    """The smallest batch with a graph that holds so many rows: a power of two, at least 8."""
    return max(8, 1 << (rows - 1).bit_length())


def _right_pad(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (U, T), padded on the right, and the position of each last token (U,)."""
    width = max(map(len, prompts))
    ids = [[*prompt, *([0] * (width - len(prompt)))] for prompt in prompts]
    last = [len(prompt) - 1 for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(last, device=device)


def _draw_on(device: torch.device) -> Draw:
    if device.type != "cuda":
        return noise.draw
    from fst_core.policy import triton_draw  # noqa: PLC0415  # Triton comes with CUDA builds only

    return triton_draw.draw
