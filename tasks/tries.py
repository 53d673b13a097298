"""Which errors are worth another try of a flow, and which it would meet again."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect import get_client
from prefect.context import FlowRunContext

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


class Refused(RuntimeError):
    """A flow cannot do what it is asked for; the message is a sentence with the remedy."""


@contextmanager
def lasting_errors_end_it() -> Iterator[None]:
    """In a flow: an error that another try would meet again uses up the flow run's retries."""
    try:
        yield
    except Exception as error:
        if is_lasting(error):
            _forgo_retries()
        raise


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
