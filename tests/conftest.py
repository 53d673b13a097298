"""Shared by all tests: no network, one thread, and small runs of the tiny policy."""

import os

for name, value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)

from fst_core.quiet import settle_environment  # noqa: E402

settle_environment()
