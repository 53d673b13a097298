"""Errors of flows: which are told in a sentence, and which another try would meet again."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prefect import get_client, get_run_logger
from prefect.context import FlowRunContext
from prefect.exceptions import ParameterTypeError
from prefect.states import Failed

from fst_core.failures import sentence_for
from fst_core.remote import RemoteFailed

LASTING = frozenset(
    {
        "fst_core.checkpoint.CheckpointError",
        "fst_core.config.model.ConfigError",
        "fst_core.environments.errors.DataError",
        "fst_core.journal.JournalError",
        "fst_core.policy.base.ContextTooLong",
        "fst_core.run_folder.RunMismatch",
        "fst_core.slow.base.TrainingDiverged",
        "tasks.alive.Occupied",
        "tasks.tries.Refused",
    }
)
"""Errors that another try would meet again, by name: their modules may not be loaded."""


ENGINE, RUNS = "prefect.engine", ("prefect.flow_runs", "prefect.task_runs")
"""Loggers of Prefect that show tracebacks."""
REPEATED = re.compile(
    "Engine execution exited with unexpected exception"
    "|Task run failed with exception(?!.* - Retry [0-9]+/)",
    re.DOTALL,
)
"""What Prefect says of an error that a state tells as well."""


class Told(RuntimeError):
    """An error of a flow whose message is a sentence for the user."""


class Refused(Told):
    """A flow cannot do what it is asked for; the message is a sentence with the remedy."""


def sentence_of(error: BaseException) -> str | None:
    """What to tell of an error instead of its traceback; None for one nobody foresaw."""
    return str(error) if isinstance(error, Told | ParameterTypeError) else sentence_for(error)


@dataclass
class Ending:
    """How a flow ends."""

    state: Any = None
    """For the flow to return: Failed with a sentence, where it met an error that has one."""


@contextmanager
def told_as_failed() -> Iterator[Ending]:
    """In a flow: an error that has a sentence ends the block, and the ending holds the state.

    One that another try would meet again uses up the flow run's retries.
    """
    ending = Ending()
    try:
        yield ending
    except Exception as error:
        if is_lasting(error):
            _forgo_retries()
        sentence = sentence_of(error)
        if sentence is None:
            raise
        get_run_logger().error("%s", sentence)
        ending.state = Failed(data=error, message=sentence)


class Untraced(logging.Filter):
    """Leaves out tracebacks of errors that have a sentence, unless one logs for debugging."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is shown at all."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        if sentence_of(error) is None:
            return True
        record.exc_info = record.exc_text = None
        return not (record.name == ENGINE or REPEATED.match(record.getMessage()))


def leave_out_tracebacks() -> None:
    """Have Prefect show errors that have a sentence without a traceback; once is enough."""
    for name in (ENGINE, *RUNS):
        logger = logging.getLogger(name)
        if not any(isinstance(present, Untraced) for present in logger.filters):
            logger.addFilter(Untraced())


def is_lasting(error: BaseException) -> bool:
    """Whether another try would end with the same error."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if isinstance(error, RemoteFailed):
        names |= set(error.kinds)
    return bool(names & LASTING)


def _forgo_retries() -> None:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    policy = context.flow_run.empirical_policy.model_copy(update={"retries": 0})
    with get_client(sync_client=True) as client:
        client.update_flow_run(context.flow_run.id, empirical_policy=policy)
