"""The kernels of a decoder layer against the torch operations they stand for, on a GPU.

`python tests/bench/layers.py`: hidden states of random models of every architecture must be within
1e-3 of transformers' in float32, and in bfloat16 no further off than twice what torch operations
are, else the exit status is 1; then the time of each kernel at SmolLM2-135M's shapes.
"""

import sys
from collections.abc import Callable
from types import ModuleType

import torch

from fst_core.bench.timing import drain, interleaved
from fst_core.policy import decoder, plain_layers, triton_layers
from fst_core.policy.cells import Cells, Heads
from fst_core.policy.graph_engine import sampling_copy
from tests.unit.test_decoder import KINDS, gap_to_transformers, random_model

CUDA = torch.device("cuda")
CALLS = 200
"""Calls of a kernel that are timed together."""


def gap(kernels: ModuleType, dtype: torch.dtype, case: int) -> float:
    """Largest difference of hidden states from transformers' in float32."""
    decoder._kernels_on = lambda _: kernels
    return gap_to_transformers(random_model(*KINDS[case]).to(CUDA), dtype)


def agree(case: int) -> bool:
    """Whether the kernels are as near to transformers as torch operations are."""
    exact = gap(triton_layers, torch.float32, case)
    rounded = gap(triton_layers, torch.bfloat16, case)
    allowed = 2 * gap(plain_layers, torch.bfloat16, case)
    sys.stdout.write(
        f"{KINDS[case]}: float32 {exact:.1e}, bfloat16 {rounded:.1e} of {allowed:.1e}\n"
    )
    return exact < 1e-3 and rounded < allowed


def times(rows: int, position: int) -> None:
    """Print microseconds of each kernel for so many rows that hold so many tokens."""
    case = ("llama", {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3})
    model = random_model(*case).to(CUDA)
    cells = Cells(sampling_copy(model, torch.bfloat16))
    cells.reserve(rows, position + 64)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=CUDA, dtype=torch.bfloat16)

    qkv, turn = noise(rows, 15 * 64), (noise(rows, 64), noise(rows, 64))
    heads = Heads(9, 0.125)
    at = torch.full((rows,), position, device=CUDA)
    x, delta, weight, wide = noise(rows, 576), noise(rows, 576), noise(576), noise(rows, 3072)
    work: dict[str, Callable[[ModuleType], object]] = {
        "attend": lambda kernels: kernels.attend(qkv, heads, cells, 0, at, turn),
        "add_norm": lambda kernels: kernels.add_norm(x, delta, weight, 1e-5),
        "gated": lambda kernels: kernels.gated(wide),
    }
    for name, call in work.items():
        graphs = [captured(lambda call=call, k=k: call(k)) for k in (plain_layers, triton_layers)]
        found = interleaved({"torch": graphs[0].replay, "kernel": graphs[1].replay}, 7)
        plain, ours = (1e6 * sorted(seconds)[3] / CALLS for seconds in found.values())
        sys.stdout.write(
            f"{name}, {rows} rows at {position}: torch {plain:.1f} us, kernel {ours:.1f} us\n"
        )


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Many calls as one graph."""
    call()
    drain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph


def main() -> None:
    """Compare, then time."""
    torch.manual_seed(0)
    failed = [case for case in range(len(KINDS)) if not agree(case)]
    for rows, position in ((256, 100), (256, 600), (32, 100)):
        times(rows, position)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
