"""What Qwen3-8B under the paper's settings needs: memory by part and card, rollouts a second.

    python tests/bench/sizing.py [--measured docs/results/bench/measured.json]

Memory is computed from the model's shape by the formulas of fst_core/sizing.py. Speeds are
measured, on a smaller model, where the JSON is there:

    {"device": "H100", "model": "SmolLM2-135M", "rollouts_per_second": 300.0,
     "weak_efficiency": 0.93, "measured_on": "2026-11-28"}

Every key is optional.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fst_core.sizing import QWEN3_8B, Load, Shape, memory

CYCLE_STEPS = 6
"""T of the paper."""
METRIC_CALLS = 960
"""Of one fast phase in the paper."""


def rollouts_per_cycle(load: Load) -> int:
    """T steps of all groups, and one rollout a metric call."""
    return CYCLE_STEPS * load.rollouts + METRIC_CALLS


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def memory_table(shape: Shape, load: Load) -> str:
    """Memory by part under one card, and eight with DDP and with FSDP."""
    ways = {"1 card": (1, False), "8 cards, DDP": (8, False), "8 cards, FSDP": (8, True)}
    columns = [memory(shape.parameters, shape, load, *way) for way in ways.values()]
    rows = [[name, *(f"{column[name]:.1f}" for column in columns)] for name in columns[0]]
    sums = [sum(size or 0 for size in column.values()) for column in columns]
    rows.append(["**together**", *(f"**{size:.0f}**" for size in sums)])
    return table(["GiB a card (computed)", *ways], rows)


def speed_table(load: Load, measured: Mapping[str, Any]) -> str:
    """Rollouts a second needed for a cycle in so many minutes, by 1 and 8 cards."""
    per_cycle = rollouts_per_cycle(load)
    rows = []
    for minutes in (15, 30, 60, 120):
        needed = per_cycle / (minutes * 60)
        tokens = needed * load.sequence_tokens
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
    shape, load = QWEN3_8B, Load()
    print(f"Qwen3-8B: {shape.parameters / 1e9:.2f} billion parameters.\n")  # noqa: T201
    print(memory_table(shape, load), speed_table(load, measured), sep="\n\n")  # noqa: T201


if __name__ == "__main__":
    main()
