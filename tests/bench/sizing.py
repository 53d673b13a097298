"""What Qwen3-8B under the paper's settings needs: memory by part and card, rollouts a second.

    python tests/bench/sizing.py [--measured docs/results/bench/measured.json]

Memory is computed from the model's shape by the formulas below. Speeds are measured, on a smaller
model, where the JSON is there:

    {"device": "H100", "model": "SmolLM2-135M", "rollouts_per_second": 300.0,
     "weak_efficiency": 0.93, "measured_on": "2026-11-28"}

Every key is optional.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """A decoder with grouped-query attention, gated MLP and q/k norms."""

    layers: int = 36
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 12288
    vocabulary: int = 151936
    tied: bool = False

    @property
    def embedding(self) -> int:
        """Parameters of one embedding table."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        norms = 2 * self.hidden + 2 * self.head_dim
        return attention + 3 * self.hidden * self.intermediate + norms

    @property
    def parameters(self) -> int:
        """All parameters."""
        tables = 1 if self.tied else 2
        return self.layers * self.layer + tables * self.embedding + self.hidden

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values a token, in bfloat16."""
        return 2 * self.layers * 2 * self.kv_heads * self.head_dim

    @property
    def layer_activations(self) -> int:
        """Numbers a token that one layer keeps for its backward pass (flash attention)."""
        attention = self.head_dim * 2 * (self.heads + self.kv_heads)
        return 4 * self.hidden + attention + 3 * self.intermediate


@dataclass(frozen=True)
class Settings:
    """METHODS 0: 32 problems x G 8, K 4, T 6, 960 metric calls; and how a card works on them."""

    problems: int = 32
    group: int = 8
    cycle_steps: int = 6
    metric_calls: int = 960
    sequence_tokens: int = 4096
    """Prompt and completion."""
    concurrent: int = 64
    """Most rollouts generated at once on a card (policy.batch_size)."""
    pass_tokens: int = 8192
    """Tokens of one forward and backward pass on a card (slow.token_budget)."""


def memory(shape: Shape, settings: Settings, cards: int, fsdp: bool) -> dict[str, float]:
    """GiB a card, by part."""
    shards = cards if fsdp else 1
    total = shape.parameters
    rows = min(settings.concurrent, -(-settings.problems * settings.group // cards))
    # FSDP gathers this layer, the next, and the two embedding tables, in bfloat16.
    gathered = 2 * (2 * shape.layer + 2 * shape.embedding) if fsdp and cards > 1 else 0
    kept = 2 * settings.pass_tokens * (shape.layers * shape.hidden + shape.layer_activations)
    parts = {
        "master weights (fp32)": 4 * total / shards,
        "gradients (fp32)": 4 * total / shards,
        "Adam (2 x fp32)": 8 * total / shards,
        "gathered layers (bf16)": gathered,
        "reference for KL (fp32)": 4 * total / shards,
        "engine's copy (bf16)": 2 * total,
        "base for evaluation": (2 if fsdp else 4) * total,
        "KV cache": rows * settings.sequence_tokens * shape.cache_bytes,
        "activations, checkpointed": kept,
        "logits and their gradient": 2 * 4 * settings.pass_tokens * shape.vocabulary,
    }
    return {name: size / GIB for name, size in parts.items()}


def rollouts_per_cycle(settings: Settings) -> int:
    """T steps of all groups, and one rollout a metric call."""
    return settings.cycle_steps * settings.problems * settings.group + settings.metric_calls


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def memory_table(shape: Shape, settings: Settings) -> str:
    """Memory by part under one card, and eight with DDP and with FSDP."""
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "1 card": lambda: memory(shape, settings, 1, False),
        "8 cards, DDP": lambda: memory(shape, settings, 8, False),
        "8 cards, FSDP": lambda: memory(shape, settings, 8, True),
    }
    columns = [way() for way in ways.values()]
    rows = [[name, *(f"{column[name]:.1f}" for column in columns)] for name in columns[0]]
    rows.append(["**together**", *(f"**{sum(column.values()):.0f}**" for column in columns)])
    return table(["GiB a card (computed)", *ways], rows)


def speed_table(settings: Settings, measured: Mapping[str, Any]) -> str:
    """Rollouts a second needed for a cycle in so many minutes, by 1 and 8 cards."""
    per_cycle = rollouts_per_cycle(settings)
    rows = []
    for minutes in (15, 30, 60, 120):
        needed = per_cycle / (minutes * 60)
        tokens = needed * settings.sequence_tokens
        rows.append([f"{minutes} min", f"{needed:.2f}", f"{needed / 8:.3f}", f"{tokens:,.0f}"])
    heads = ["a cycle in (computed)", "rollouts/s", "a card of 8", "tokens/s at the full length"]
    lines = [f"Rollouts a cycle: {per_cycle}.", "", table(heads, rows), ""]
    if not measured:
        return "\n".join([*lines, "Measured: nothing yet."])
    told = ", ".join(f"{key} = {value}" for key, value in sorted(measured.items()))
    return "\n".join([*lines, f"Measured: {told}."])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, default=Path("docs/results/bench/measured.json"))
    path = parser.parse_args().measured
    measured = json.loads(path.read_text()) if path.is_file() else {}
    shape, settings = Shape(), Settings()
    print(f"Qwen3-8B: {shape.parameters / 1e9:.2f} billion parameters.\n")  # noqa: T201
    print(memory_table(shape, settings), speed_table(settings, measured), sep="\n\n")  # noqa: T201


if __name__ == "__main__":
    main()
