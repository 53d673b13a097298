"""Which slow part a config names."""

from collections.abc import Callable

from fst_core.config import CispoConfig, LoopConfig, SlowConfig
from fst_core.environments.base import Judge
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import Problem
from fst_core.slow.base import SlowPart


def make_slow(
    config: SlowConfig,
    loop: LoopConfig,
    policy: LanguageModelPolicy,
    environment: Judge,
    problem_at: Callable[[int], Problem],
    run_seed: int,
) -> SlowPart | None:
    """The slow part of a config; None where weights stay as they are."""
    if isinstance(config, CispoConfig) and loop.steps:
        from fst_core.slow.cispo import CispoSlow

        return CispoSlow(config, loop, policy, environment, problem_at, run_seed)
    return None
