"""Tasksets: environments of verifiers from 0.4 on, whose tasks score a trace of the conversation.

The trace that is scored holds the prompt and one reply. Hooks that prepare or inspect a runtime
cannot run here, so a task that has them is refused.
"""

import inspect
from collections.abc import Iterator
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage
from verifiers.v1.utils.generic import concrete_type
from verifiers.v1.utils.loaders import environment_class, taskset_class

from fst_core.config.imported import VerifiersConfig
from fst_core.config.model import ConfigError
from fst_core.environments.verifiers.source import (
    Item,
    Scored,
    as_messages,
    as_text,
    chat,
    plain,
    wait_for,
)
from fst_core.records import Message, Problem

MESSAGES = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}


class TasksetSource:
    """Tasks of a taskset, scored without a runtime."""

    def __init__(self, config: VerifiersConfig) -> None:
        """Load the taskset.

        Raises:
            ConfigError: if it cannot be loaded, or its tasks need more than one reply.
        """
        self._config = config
        try:
            kind = taskset_class(config.id)
            settings = concrete_type(kind, vf.TasksetConfig) or vf.TasksetConfig
            self._taskset = kind(settings.model_validate({**config.args, "id": config.id}))
            self._task = kind.task_type()
            why = _more_than_a_reply(config.id, self._taskset, self._task)
        except Exception as error:  # the user's code, its settings, or no such package
            raise ConfigError(
                f"environment.id = {config.id!r}: verifiers cannot load the taskset ({error}); "
                "install its package, or correct environment.args"
            ) from error
        if why:
            raise ConfigError(
                f"environment.id = {config.id!r} {why}, and a rollout here is one completion "
                "judged alone; take a taskset of single-turn tasks"
            )

    def items(self) -> Iterator[Item]:
        """Tasks in their order, `most_problems` at most."""
        for task in islice(self._taskset, self._config.most_problems):
            where = f"{self._config.id}:{task.data.idx}"
            messages = chat(where, task.data.prompt, task.data.system_prompt)
            row = plain(task.data.model_dump(mode="json", exclude_none=True))
            yield Item(messages, as_text(getattr(task.data, "answer", None)), row)

    def score(self, problem: Problem, completion: str) -> Scored:
        """What the task's reward functions say of one completion."""
        data = self._task.data_type().model_validate(problem.metadata)
        task = self._task(data, self._taskset.config.task)
        trace = vf.Trace(
            task=TraceTask(type=type(task).__name__, data=data),
            agent=AgentInfo(config=vf.AgentConfig()),
            nodes=_nodes([*problem.messages, {"role": "assistant", "content": completion}]),
        )
        wait_for(task.score(trace))
        given = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        return Scored(
            float(trace.reward),
            sum(float(reward.weight) for reward in given.values() if reward.weight > 0),
            {name: float(reward.score) for name, reward in given.items()},
            {name: float(reward.weight) for name, reward in given.items()},
            as_messages(trace.info.get("feedback")),
        )


def _nodes(messages: list[Message]) -> list[Any]:
    """The conversation as one path; the last message is the sampled one."""
    last = len(messages) - 1
    return [
        MessageNode(
            parent=number - 1 if number else None,
            message=MESSAGES[message["role"]](content=message["content"]),
            sampled=number == last,
        )
        for number, message in enumerate(messages)
    ]


def _more_than_a_reply(name: str, taskset: Any, task: Any) -> str | None:
    """What a taskset asks for that one completion cannot give; None for a single-turn one."""
    sample = next(iter(taskset), None)
    if sample is None:
        return "has no tasks"
    if task.NEEDS_CONTAINER or sample.data.image:
        return "runs its tasks in a container"
    if task.toolsets(taskset.config.task) or type(taskset).toolsets(taskset.config):
        return "offers tools"
    if sample.data.prompt is None:
        return "lets a simulated user open the conversation"
    if environment_class(name) is not vf.SingleAgentEnv:
        return "brings an environment of its own that leads the conversation"
    if any(getattr(task, hook) is not getattr(vf.Task, hook) for hook in ("setup", "finalize")):
        return "prepares or inspects a runtime"
    functions = [*sample.hooks("reward"), *sample.hooks("metric")]
    if any(_needs_runtime(function) for function in functions):
        return "scores what happened in a runtime"
    return None


def _needs_runtime(function: Any) -> bool:
    wanted = inspect.signature(function).parameters.get("runtime")
    return wanted is not None and wanted.default is inspect.Parameter.empty
