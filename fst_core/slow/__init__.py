"""Weight updates: TRL's GRPO with contexts inside every group."""

import fst_core.config  # noqa: F401  # first: it reads the settings of every method in here
