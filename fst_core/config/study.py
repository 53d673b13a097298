"""Which runs a study compares."""

from typing import Any

from pydantic import Field

from fst_core.config.model import ConfigModel, RunSeed
from fst_core.config.sweeps import SweepConfig

ARMS: dict[str, dict[str, Any]] = {
    "base": {"fast": {"type": "none"}, "slow": {"type": "none"}},
    "rl": {"fast": {"type": "none"}},
    "gepa": {"slow": {"type": "none"}},
    "fst": {},
}
"""Built-in arms: what each changes in the config of the full method."""


class StudyConfig(ConfigModel):
    """Arms and seeds to compare."""

    arms: tuple[str, ...] = ("rl", "fst")
    """Names from [arms] or the built-in ones: base, rl, gepa, fst. Those of the sweeps, and their
    base, are added."""
    base: str = "fst"
    """Arm in which the sweeps change a setting."""
    sweeps: tuple[SweepConfig, ...] = ()
    """Ablations: one arm for each value that the base arm does not have already."""
    seeds: tuple[RunSeed, ...] = (0, 1)
    """Run seeds; every arm runs with each."""
    jobs: int = Field(1, ge=1)
    """Runs at once, each in a process of its own."""
