"""From an environment's config to the Environment."""

from pathlib import Path

from fst_core.config.environment import DirectivesConfig, JsonlConfig, TaskConfig
from fst_core.config.imported import (
    ChoicesConfig,
    HoverConfig,
    Imported,
    PolarisConfig,
)
from fst_core.environments.base import Environment


def make_environment(config: TaskConfig, data: str | None = None) -> Environment:
    """Build the environment a config describes.

    Args:
        config: one task of a run.
        data: folder of versioned problem pools; with it, problems are read from data/NAME/, and
            are the same as the first problems of the environment itself.

    Raises:
        ConfigError: for settings the environment refuses.
        DataError: for problem files that are missing or broken.
    """
    environment = _live(config, load=data is None)
    if data is None:
        return environment
    from fst_core.environments.pools import PooledEnvironment

    return PooledEnvironment(environment, Path(data) / environment.name)


def _live(config: TaskConfig, load: bool) -> Environment:
    if isinstance(config, DirectivesConfig):
        return _directives(config)
    if isinstance(config, JsonlConfig):
        from fst_core.environments.jsonl import JsonlEnvironment

        return JsonlEnvironment(config, load=load)
    if isinstance(config, Imported):
        return _imported(config, load)
    from fst_core.environments.reasoning_gym import ReasoningGymEnvironment

    return ReasoningGymEnvironment(config)


def _imported(config: Imported, load: bool) -> Environment:
    if isinstance(config, HoverConfig):
        from fst_core.environments.hover import HoverEnvironment

        return HoverEnvironment(config, load)
    if isinstance(config, PolarisConfig):
        from fst_core.environments.polaris import PolarisEnvironment

        return PolarisEnvironment(config, load)
    if isinstance(config, ChoicesConfig):
        from fst_core.environments.choices import ChoicesEnvironment

        return ChoicesEnvironment(config, load)
    from fst_core.environments.verifiers import VerifiersEnvironment

    return VerifiersEnvironment(config, load)


def _directives(config: DirectivesConfig) -> Environment:
    from fst_core.config.model import ConfigError
    from fst_core.environments.directives import DirectivesEnvironment

    try:
        return DirectivesEnvironment(
            config.name, config.task, config.required, config.seed, config.told
        )
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from error
