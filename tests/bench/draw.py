"""The drawing kernel against the torch operations it stands for, on a GPU.

`python tests/bench/draw.py`: more than 98% of the tokens must be equal, and their log-probabilities
within 1e-4 nats, else the exit status is 1; then the time of both.
"""

import itertools
import sys

import torch

from fst_core.bench.timing import interleaved
from fst_core.policy import noise, triton_draw

SHAPES = ((256, 49152), (7, 1000), (64, 4097))
TYPES = (torch.float32, torch.bfloat16)
EQUAL = 0.98
"""Least share of equal tokens: two logits with their noise may lie within rounding."""


def agree(shape: tuple[int, int], dtype: torch.dtype, temperature: float) -> bool:
    """Whether both draw the same from random logits."""
    device = torch.device("cuda")
    logits_BV = (torch.randn(shape, device=device) * 3).to(dtype)
    seeds_B2 = noise.seed_tensor([i * 7919 + (i << 35) for i in range(shape[0])], device)
    index = torch.tensor(5, device=device)
    heat = torch.tensor(temperature, device=device)
    ours, ours_logp = triton_draw.draw(logits_BV, seeds_B2, index, heat)
    plain, plain_logp = noise.draw(logits_BV, seeds_B2, index, heat)
    same = ours == plain
    gap = float((ours_logp - plain_logp)[same].abs().max())
    share = float(same.float().mean())
    sys.stdout.write(f"{dtype} {shape} at {temperature}: equal {share:.3f}, gap {gap:.1e} nats\n")
    return share > EQUAL and gap < 1e-4


def main() -> None:
    """Compare, then time."""
    torch.manual_seed(0)
    cases = list(itertools.product(SHAPES, TYPES, (1.0, 0.7)))
    failed = [case for case in cases if not agree(*case)]
    device = torch.device("cuda")
    logits_BV = torch.randn(256, 49152, device=device, dtype=torch.bfloat16)
    given = (
        logits_BV,
        noise.seed_tensor(range(256), device),
        torch.tensor(5, device=device),
        torch.tensor(1.0, device=device),
    )
    calls = {
        "torch": lambda: noise.draw(*given),
        "kernel": lambda: triton_draw.draw(*given),
    }
    for name, seconds in interleaved(calls, repeats=21, warmups=3).items():
        sys.stdout.write(f"{name}: median {1e3 * sorted(seconds)[10]:.3f} ms\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
