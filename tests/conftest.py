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

os.environ.pop("COLUMNS", None)

import fst_core.cli_options  # noqa: E402, F401  (its consoles keep a width that is set at import)
from fst_core.quiet import settle_environment  # noqa: E402

settle_environment()
