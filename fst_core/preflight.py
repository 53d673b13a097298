"""What can be said of a config before anything is removed, downloaded or trained."""

from pathlib import Path

from fst_core.config import (
    HubPolicy,
    HuggingFaceReflection,
    PolicyConfig,
    RunConfig,
    Smollm2Policy,
)
from fst_core.config.model import NotHere
from fst_core.environments.base import Environment
from fst_core.environments.errors import DataAbsent, PastTheEnd
from fst_core.environments.layout import train_rows
from fst_core.environments.registry import make_environment
from fst_core.environments.tasks import Tasks, task_configs
from fst_core.policy.locate import (
    cached_config,
    gguf_file,
    locate,
    refuse_missing_engine,
    refuse_missing_peft,
    refuse_unreachable,
    smollm2_is_converted,
)
from fst_core.policy.served import server_url
from fst_core.records import Split

ALWAYS_THERE = ("auto", "cpu")
"""Devices that need no torch to be checked."""


def preflight(config: RunConfig, plan_only: bool = False) -> list[str]:
    """Check that a run could start: its problems, where its model is, its engine, its device.

    Args:
        plan_only: the run is only planned, so what is not on this machine (an engine, a local
            model, a published data set) becomes a note.

    Returns:
        Notes worth reading before the run, one sentence each.

    Raises:
        ConfigError: if the policy, engine or device is not to be had.
        DataError: if the problems are missing, broken or too few.
    """
    if plan_only:
        return _notes_of_a_plan(config)
    notes = [note for check in CHECKS for note in check(config)]
    _check_hub(config)
    return notes


def _notes_of_a_plan(config: RunConfig) -> list[str]:
    """The notes of every check; of one that cannot be made here, what is absent."""
    absent, notes = _absent_model(config.policy), list[str]()
    for check in CHECKS:
        try:
            notes += check(config)
        except DataAbsent:
            absent += _absent_problems(config)
        except NotHere as error:
            absent.append(str(error))
    return [*(f"not here yet: {what}" for what in dict.fromkeys(absent)), *notes]


def _absent_model(policy: PolicyConfig) -> list[str]:
    if not isinstance(policy, HubPolicy) or cached_config(policy):
        return []
    if policy.model.startswith((".", "/", "~")) or Path(policy.model).is_dir():
        return []  # a local folder: _check_model speaks of it
    return [f"policy.model = {policy.model!r} is not in the hub's cache; a run fetches it"]


def _absent_problems(config: RunConfig) -> list[str]:
    absent = []
    for task in task_configs(config):
        try:
            make_environment(task, config.data)
        except (DataAbsent, NotHere) as error:
            absent.append(str(error))
    return absent


def _check_model(config: RunConfig) -> list[str]:
    if not isinstance(config.policy, Smollm2Policy):
        locate(config.policy)
    elif not smollm2_is_converted():
        gguf_file()
    return []


def _check_hub(config: RunConfig) -> None:
    """Refuse models that must be fetched where the hub cannot be asked; no plan asks it."""
    policy, writer = config.policy, config.fast.writer
    if isinstance(policy, HubPolicy):
        refuse_unreachable("policy.model", policy.model, policy.revision)
    if isinstance(writer, HuggingFaceReflection):
        refuse_unreachable("fast.reflection.model", writer.model, None)


def _check_tasks(config: RunConfig) -> list[str]:
    tasks = Tasks(config)
    for suite in config.evaluation.suites:
        _check_split(tasks.by_name[suite.name], "test", suite.problems)
    reads = zip(tasks.trained, train_rows(config), strict=True)
    return [note for task, rows in reads for note in _check_problems(task, config, rows)]


def _check_engine(config: RunConfig) -> list[str]:
    policy = config.policy
    refuse_missing_engine(policy)
    refuse_missing_peft(policy)
    if policy.engine == "vllm" and policy.vllm.mode == "server":
        server_url(policy.vllm)
    if policy.device not in ALWAYS_THERE:
        from fst_core.policy.device import pick_device  # noqa: PLC0415  (torch)

        pick_device(policy.device)
    return []


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


CHECKS = (_check_engine, _check_model, _check_tasks)
