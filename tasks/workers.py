"""The runs of a study as flow runs of a deployment, which the workers of its pool take."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
from prefect import get_client, get_run_logger
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelling

from fst_core.config import RunConfig
from fst_core.run_folder import holds_finished
from fst_core.study import run_folder
from tasks.archive import fetch
from tasks.runs import Order
from tasks.tries import Refused

POLL_SECONDS = 2.0
CRASHED_SECONDS = 60.0
"""How long a crashed run is given to be put back to Scheduled before it counts as failed."""


@dataclass
class Sent:
    """A run that workers have been asked for."""

    config: RunConfig
    id: UUID
    crashed_at: float | None = None
    """Monotonic seconds since which the run has been seen as crashed."""

    def failure(self, run: FlowRun) -> str | None:
        """Why the run has failed; empty where it ended well, None while it may still go on."""
        state = run.state
        if state is None or not state.is_final():
            self.crashed_at = None
            return None
        if state.is_completed():
            return ""
        if state.is_crashed():
            self.crashed_at = self.crashed_at or time.monotonic()
            if time.monotonic() - self.crashed_at < CRASHED_SECONDS:
                return None
        return (
            f"{self.config.id} ended as {state.name} on a worker: {state.message or 'no message'}"
        )


def run_on_workers(order: Order, planned: Sequence[RunConfig], jobs: int) -> tuple[str, ...]:
    """Train runs as flow runs of the order's deployment, at most `jobs` at once; wait for all.

    They are subflows of this flow run. One that was asked for before, by a try of this flow run
    that crashed, is not asked for again. Where this flow run is cancelled, so are they.

    Returns:
        One message per run that failed, or whose folder did not get here.
    Raises:
        Refused: if there is no such deployment.
    """
    waiting, sent, failures = deque(planned), list[Sent](), list[str]()
    with get_client(sync_client=True) as client:
        _refuse_unknown(client, order.deployment)
        try:
            while waiting or sent:
                while waiting and len(sent) < jobs:
                    sent.append(_send(order, waiting.popleft()))
                time.sleep(POLL_SECONDS)
                for one in list(sent):
                    failure = _failure(client, one)
                    if failure is not None:
                        sent.remove(one)
                        failures += [failure] if failure else _brought(order, one.config)
        except BaseException:
            cancel(client, [one.id for one in sent])
            raise
    return tuple(failures)


def cancel(client: SyncPrefectClient, flow_run_ids: Iterable[UUID]) -> None:
    """Ask for flow runs to be cancelled; a worker ends those that it has begun."""
    for flow_run_id in flow_run_ids:
        with suppress(ObjectNotFound, httpx.HTTPError):  # the others are asked all the same
            client.set_flow_run_state(flow_run_id, Cancelling())


def _failure(client: SyncPrefectClient, one: Sent) -> str | None:
    """See `Sent.failure`; that one run was deleted ends no other."""
    try:
        return one.failure(client.read_flow_run(one.id))
    except ObjectNotFound:
        return f"{one.config.id}: its flow run was deleted on the server"


def _refuse_unknown(client: SyncPrefectClient, deployment: str) -> None:
    try:
        client.read_deployment_by_name(deployment)
    except ObjectNotFound as error:
        raise Refused(
            f"the Prefect server has no deployment {deployment!r}: `make deploy` makes those of "
            "infra/prefect.yaml"
        ) from error


def _send(order: Order, config: RunConfig) -> Sent:
    parameters = {
        "config_path": order.config_path,
        "arm": config.arm,
        "seed": config.seed,
        "overrides": list(order.overrides),
        "runs": order.runs,
        "track": order.track,
    }
    asked = run_deployment(  # a coroutine in async code only
        order.deployment,
        parameters=parameters,
        flow_run_name=config.id,
        timeout=0,
        tags=[config.name, config.arm],
        idempotency_key=f"{this_flow_run.id}-{config.name}-{config.id}",
    )
    assert isinstance(asked, FlowRun)
    get_run_logger().info("%s is asked of the workers of %s", config.id, order.deployment)
    return Sent(config, asked.id)


def _brought(order: Order, config: RunConfig) -> list[str]:
    """Bring a run's folder here, unless the disk is shared; what to tell where it is not here."""
    folder = run_folder(Path(order.runs), config)
    fetch(folder)
    if holds_finished(folder, config):
        return []
    return [
        f"{config.id} has ended on a worker, but {folder} does not hold it: share the disk with "
        "the workers, or set FST_STORE here and there"
    ]
