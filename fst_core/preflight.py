"""What can be said of a config before anything is removed, downloaded or trained."""

from fst_core.config import LoopConfig, RunConfig, Smollm2Policy
from fst_core.environments.base import Environment
from fst_core.environments.errors import PastTheEnd
from fst_core.environments.registry import make_environment
from fst_core.policy.locate import (
    gguf_file,
    locate,
    refuse_missing_engine,
    smollm2_is_converted,
)


def preflight(config: RunConfig) -> list[str]:
    """Check that a run could start: its problems, where its model is, its engine.

    Returns:
        Notes worth reading before the run, one sentence each.

    Raises:
        ConfigError: if the policy or engine is not to be had.
        DataError: if the problems are missing, broken or too few.
    """
    refuse_missing_engine(config.policy)
    if not isinstance(config.policy, Smollm2Policy):
        locate(config.policy)
    elif not smollm2_is_converted():
        gguf_file()
    return _check_problems(make_environment(config.environment, config.data), config)


def _check_problems(environment: Environment, config: RunConfig) -> list[str]:
    train = environment.size("train")
    if train is None:
        return []  # endless: counting its held-out splits could take long
    validation, asked = environment.size("validation"), config.evaluation.problems
    if validation is not None and validation < asked:
        raise PastTheEnd(environment.name, "validation", validation, validation)
    return _epochs(train, config.loop)


def _epochs(train: int, loop: LoopConfig) -> list[str]:
    read = loop.steps * loop.problems_per_step
    if read <= train:
        return []
    return [f"the run reads {read} train problems of {train}: {read / train:.1f} times through"]
