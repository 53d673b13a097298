"""What can be said of a config before anything is removed, downloaded or trained."""

from fst_core.config import PolicyConfig, RunConfig, Smollm2Policy
from fst_core.environments.base import Environment
from fst_core.environments.errors import PastTheEnd
from fst_core.environments.layout import train_rows
from fst_core.environments.tasks import Tasks
from fst_core.policy.locate import (
    gguf_file,
    locate,
    refuse_missing_engine,
    smollm2_is_converted,
)
from fst_core.policy.served import server_url
from fst_core.records import Split

ALWAYS_THERE = ("auto", "cpu")
"""Devices that need no torch to be checked."""


def preflight(config: RunConfig) -> list[str]:
    """Check that a run could start: its problems, where its model is, its engine, its device.

    Returns:
        Notes worth reading before the run, one sentence each.

    Raises:
        ConfigError: if the policy, engine or device is not to be had.
        DataError: if the problems are missing, broken or too few.
    """
    _check_engine(config.policy)
    if not isinstance(config.policy, Smollm2Policy):
        locate(config.policy)
    elif not smollm2_is_converted():
        gguf_file()
    tasks = Tasks(config)
    for suite in config.evaluation.suites:
        _check_split(tasks.by_name[suite.name], "test", suite.problems)
    reads = zip(tasks.trained, train_rows(config), strict=True)
    return [note for task, rows in reads for note in _check_problems(task, config, rows)]


def _check_engine(policy: PolicyConfig) -> None:
    refuse_missing_engine(policy)
    if policy.engine == "vllm" and policy.vllm.mode == "server":
        server_url(policy.vllm)
    if policy.device not in ALWAYS_THERE:
        from fst_core.policy.language_model import pick_device  # noqa: PLC0415  (seconds to import)

        pick_device(policy.device)


def _check_problems(environment: Environment, config: RunConfig, rows: int) -> list[str]:
    train = environment.size("train")
    if train is None:
        return []  # endless: counting its held-out splits could take long
    _check_split(environment, "validation", config.evaluation.problems)
    return _epochs(environment.name, train, rows)


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
