"""Work pools, GPU slots, deployments and automations, put on the server in PREFECT_API_URL.

    python -m infra.deploy [--silence 90]

A second call changes what has changed and keeps the rest; runs that are going on are left alone.
"""

import tasks  # noqa: F401  (first: it tells in a sentence what Prefect cannot read)

# isort: split

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import httpx
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from fst_core.addresses import without_password
from infra.automations import SILENCE_SECONDS, apply_automations, automations
from infra.servers import ROOT
from tasks.cards import cards, make_limit

POOLS = ("cpu", "gpu")
POOL_TYPE = "process"
TEMPLATE = ROOT / "infra" / "pools" / "process.json"
DEPLOYMENTS = ROOT / "infra" / "prefect.yaml"
LEAST_SILENCE_SECONDS, MOST_SILENCE_SECONDS = 60, 86_400
PING_SECONDS = 5
TAIL_LINES = 15


class DeployError(RuntimeError):
    """The server cannot be used, or refused something; the message is a sentence."""


def deploy(silence_seconds: float = SILENCE_SECONDS) -> None:
    """Put everything on the server in PREFECT_API_URL, and tell what became of it.

    Args:
        silence_seconds: see `infra.automations.automations`.
    Raises:
        DeployError: if there is no server, or it refused something.
    """
    url = server_url()
    with get_client(sync_client=True) as client:
        for name in POOLS:
            _tell(f"pool {name}: {make_pool(client, name)}")
        limit = make_limit()
        _tell(f"limit {limit}: {len(cards())} slots" if limit else "no card here, so no GPU slots")
        with pauses_kept(client):
            apply_deployments()
        deployments = deployment_ids(client)
        for name in deployments:
            for sentence in schedules_of(client, name):
                _tell(sentence)
        refuse_unknown_parameters(client, deployments.values())
        _tell(f"{len(deployments)} deployments: {', '.join(deployments)}")
        wanted = automations(deployments, silence_seconds)
        for name, became in apply_automations(client, wanted).items():
            _tell(f"automation {name!r}: {became}")
        watched = watch_running(client, deployments)
    _tell(f"{watched} running flow runs are watched; all is on {url.removesuffix('/api')}")


def server_url() -> str:
    """The address of the configured server, which answers.

    Raises:
        DeployError: if none is configured or it does not answer.
    """
    api = get_current_settings().api
    url = api.url
    if not url:
        raise DeployError(
            "PREFECT_API_URL is not set, so there is no server to put deployments on; start one "
            "(make services) and set what it prints"
        )
    shown = without_password(url)
    verify = not api.tls_insecure_skip_verify and (api.ssl_cert_file or True)
    try:
        answer = httpx.get(f"{url}/health", timeout=PING_SECONDS, verify=verify)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = (str(error) or repr(error)).replace(url, shown)
        raise DeployError(
            f"the Prefect server in PREFECT_API_URL, {shown}, does not answer "
            f"({reason}); start it (make services), or set another address"
        ) from error
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return shown  # it asks who one is, which Prefect's own client tells
    if answer.status_code != httpx.codes.OK or answer.text != "true":
        raise DeployError(
            f"what answers at {shown} is no Prefect server; PREFECT_API_URL is the address of its "
            "API and ends in /api"
        )
    return shown


def make_pool(client: SyncPrefectClient, name: str) -> str:
    """Make a work pool of processes, or bring its template up to date; what became of it.

    A pool of another type, say Kubernetes, is somebody's own and kept as it is.
    """
    template = json.loads(TEMPLATE.read_text())
    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        made = WorkPoolCreate(name=name, type=POOL_TYPE, base_job_template=template)
        client.create_work_pool(made)
        return "made"
    if pool.type != POOL_TYPE:
        return f"kept, of type {pool.type}"
    if pool.base_job_template == template:
        return "kept"
    client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))
    return "changed"


def apply_deployments() -> None:
    """Put the deployments of infra/prefect.yaml on the server.

    Raises:
        DeployError: with the end of what `prefect deploy` said, if it fails.
    """
    file = str(DEPLOYMENTS.relative_to(ROOT))
    words = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        [*words, "--prefect-file", file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        tail = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-TAIL_LINES:])
        raise DeployError(f"`prefect deploy` failed on {file}; the end of what it said:\n{tail}")


def _import_path() -> list[str]:
    before = os.environ.get("PYTHONPATH")
    return [str(ROOT), *([before] if before else [])]


def declared_names() -> list[str]:
    """The deployments of infra/prefect.yaml, as "FLOW/DEPLOYMENT"."""
    declared = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]
    return [f"{one['entrypoint'].rpartition(':')[2]}/{one['name']}" for one in declared]


def deployment_ids(client: SyncPrefectClient) -> dict[str, UUID]:
    """The ids of the deployments of infra/prefect.yaml, by name."""
    return {name: client.read_deployment_by_name(name).id for name in declared_names()}


@contextmanager
def pauses_kept(client: SyncPrefectClient) -> Iterator[None]:
    """Pause again what was paused before the block: `prefect deploy` sets every schedule going."""
    paused: dict[str, list[Any]] = {}
    for name in declared_names():
        with suppress(ObjectNotFound):
            found = client.read_deployment_by_name(name).schedules
            paused[name] = [one.schedule for one in found if not one.active]
    yield
    for name, schedules in paused.items():
        deployment = client.read_deployment_by_name(name)
        for one in deployment.schedules:
            if one.active and one.schedule in schedules:
                client.update_deployment_schedule(deployment.id, one.id, active=False)


def schedules_of(client: SyncPrefectClient, name: str) -> list[str]:
    """What the clock starts of a deployment, in a sentence for each of its schedules."""
    deployment = client.read_deployment_by_name(name)
    config = (deployment.parameters or {}).get("config_path", "")
    return [
        f"schedule of {name}: {_when(one.schedule)}, {config}"
        + ("; the switch on its page in the UI pauses it" if one.active else "; it is paused")
        for one in deployment.schedules
    ]


def _when(schedule: Any) -> str:
    cron = getattr(schedule, "cron", None)
    return f"cron {cron!r} ({schedule.timezone or 'UTC'})" if cron else str(schedule)


def refuse_unknown_parameters(client: SyncPrefectClient, deployments: Iterable[UUID]) -> None:
    """Have the server refuse a flow run with a parameter that the deployment's flow has not.

    The schema that `prefect deploy` makes allows parameters of any name.
    """
    for identifier in deployments:
        schema = client.read_deployment(identifier).parameter_openapi_schema or {}
        closed = DeploymentUpdate(
            parameter_openapi_schema={**schema, "additionalProperties": False}
        )
        client.update_deployment(identifier, closed)


def watch_running(client: SyncPrefectClient, deployments: Mapping[str, UUID]) -> int:
    """Send a heartbeat in the name of every run that counts as running; how many there are.

    A server that was away has forgotten whose heartbeats it was waiting for. So one that lives
    goes on beating, and one that died meanwhile is found as any other.
    """
    running = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
        ),
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=list(deployments.values()))),
    )
    for run in running:
        emit_event(
            "prefect.flow-run.heartbeat",
            resource={
                "prefect.resource.id": f"prefect.flow-run.{run.id}",
                "prefect.resource.name": run.name,
            },
            related=[
                {
                    "prefect.resource.id": f"prefect.deployment.{run.deployment_id}",
                    "prefect.resource.role": "deployment",
                }
            ],
        )
    EventsWorker.drain_all(timeout=10)
    return len(running)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _seconds(text: str) -> float:
    seconds = float(text)
    if not LEAST_SILENCE_SECONDS <= seconds < MOST_SILENCE_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text} s: a run beats every 30 s, so wait for at least {LEAST_SILENCE_SECONDS} s "
            "and less than a day"
        )
    return seconds


def main() -> None:
    """Command line of `python -m infra.deploy`."""
    parser = argparse.ArgumentParser(prog="python -m infra.deploy", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    help_text = "seconds without a heartbeat after which a run is taken for dead"
    parser.add_argument("--silence", type=_seconds, default=SILENCE_SECONDS, help=help_text)
    args = parser.parse_args()
    try:
        deploy(args.silence)
    except (DeployError, httpx.HTTPError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
