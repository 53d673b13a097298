"""Global random generators, set before every phase, evaluation and step, restored after looks.

What is drawn from them is then a function of (run seed, purpose, step) alone, so that an
evaluation, a resume or the fast loop cannot shift anyone else's draws.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fst_core.records import seed_of


def set_seeds(run_seed: int, purpose: str, step: int) -> None:
    """Seed Python's, NumPy's and torch's generators (all devices) for one purpose and step."""
    seed = seed_of(run_seed, purpose, step)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def preserved() -> Iterator[None]:
    """Leave every global generator as it was found."""
    python, numpy = random.getstate(), np.random.get_state()
    cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(cuda)
