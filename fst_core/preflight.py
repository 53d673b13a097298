"""What can be said of a config before anything is removed, downloaded or trained."""

from fst_core.config import RunConfig, SequenceConfig, Smollm2Policy
from fst_core.environments.base import Environment
from fst_core.environments.errors import PastTheEnd
from fst_core.environments.tasks import Tasks
from fst_core.policy.locate import (
    gguf_file,
    locate,
    refuse_missing_engine,
    smollm2_is_converted,
)
from fst_core.records import Split


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
    tasks = Tasks(config)
    for suite in config.evaluation.suites:
        _check_split(tasks.by_name[suite.name], "test", suite.problems)
    return [note for task in tasks.trained for note in _check_problems(task, config)]


def _check_problems(environment: Environment, config: RunConfig) -> list[str]:
    train = environment.size("train")
    if train is None:
        return []  # endless: counting its held-out splits could take long
    _check_split(environment, "validation", config.evaluation.problems)
    steps = config.loop.steps
    if isinstance(config.environment, SequenceConfig):
        steps = config.environment.task_steps
    return _epochs(environment.name, train, steps * config.loop.problems_per_step)


def _check_split(environment: Environment, split: Split, asked: int) -> None:
    if environment.size("train") is None:
        return  # endless: counting its held-out splits could take long
    held = environment.size(split)
    if held is not None and held < asked:
        raise PastTheEnd(environment.name, split, held, held)


def _epochs(name: str, train: int, read: int) -> list[str]:
    if read <= train:
        return []
    times = f"{read / train:.1f} times through"
    return [f"the run reads {read} train problems of {name}, which has {train}: {times}"]
