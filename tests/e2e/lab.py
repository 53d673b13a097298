"""Servers of `python -m infra.services` in a folder of their own, workers and questions to them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from infra.servers import BUCKET, PORTS, ROOT, address, client_env, free_port

POLL_SECONDS = 0.5
END_SECONDS = 30
PACE = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.5"}
"""A worker asks for work every second, and logs arrive while a test still looks."""


class Lab:
    """Prefect, MLflow and an S3 store, and a clean environment for their clients."""

    def __init__(self, home: Path):
        self.home = home
        self.bucket = BUCKET
        self.ports: dict[str, int] = {}
        for name in PORTS:
            self.ports[name] = free_port(self.ports.values())
        self.urls = {name: address(port) for name, port in self.ports.items()}
        tools = str(Path(sys.executable).parent)
        self.env = {
            **{name: value for name, value in os.environ.items() if not _others(name)},
            **PACE,
            "PATH": os.pathsep.join([tools, os.environ.get("PATH", "")]),
            "PREFECT_HOME": str(home / "client"),
        }
        self.start(*PORTS)
        self.env |= client_env(home, self.ports)

    def start(self, *names: str) -> None:
        """Start servers on their ports, with the data they had."""
        ports = ",".join(f"{name}={port}" for name, port in self.ports.items())
        self._services("up", "--only", ",".join(names), "--ports", ports)

    def stop(self, *names: str) -> None:
        """End servers, whatever they are doing."""
        self._services("down", "--only", ",".join(names), "--grace", "2")

    def close(self) -> None:
        """End all servers."""
        self.stop(*PORTS)

    def run(self, *words: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project root; with `check`, its failure fails the test."""
        done = subprocess.run(words, env=self.env | env, cwd=ROOT, capture_output=True, text=True)
        if check and done.returncode:
            said = f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            raise AssertionError(said)
        return done

    @contextmanager
    def worker(self, pool: str, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
        """A worker of a pool, in a process group of its own that ends with the block.

        Its log, and that of its flow runs, is HOME/workers/POOL-N.log.
        """
        logs = self.home / "workers"
        logs.mkdir(exist_ok=True)
        name = f"{pool}-{len(list(logs.iterdir()))}"
        words = ["prefect", "worker", "start", "--pool", pool, "--type", "process", "--name", name]
        with (logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words,
                env=self.env | env,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            end_group(process)

    @contextmanager
    def client(self) -> Iterator[SyncPrefectClient]:
        """A client of the lab's Prefect server."""
        api = self.env["PREFECT_API_URL"]
        with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
            yield client

    def wait(self, flow_run_id: UUID | str, states: Collection[str], seconds: float) -> FlowRun:
        """Wait until a flow run's state has one of these names, e.g. "Completed".

        Raises:
            AssertionError: if it has none of them in time; with the state it has and its log.
        """
        identifier, deadline = UUID(str(flow_run_id)), time.monotonic() + seconds
        with self.client() as client:
            while True:
                run = client.read_flow_run(identifier)
                if run.state is not None and run.state.name in states:
                    return run
                if time.monotonic() > deadline:
                    raise AssertionError(
                        f"{run.name} is {run.state!r} after {seconds:.0f} s, not one of {states}:\n"
                        f"{self.log(identifier)}"
                    )
                time.sleep(POLL_SECONDS)

    def log(self, flow_run_id: UUID | str) -> str:
        """What a flow run has logged."""
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

        chosen = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[UUID(str(flow_run_id))]))
        with self.client() as client:
            lines = client.read_logs(log_filter=chosen, limit=200)
        return "\n".join(line.message for line in lines)

    def _services(self, *words: str) -> None:
        action, *options = words
        command = (sys.executable, "-m", "infra.services", action, "--home", str(self.home))
        self.run(*command, *options)


def _others(name: str) -> bool:
    return name.startswith(("PREFECT_API", "PREFECT_PROFILE", "MLFLOW_TRACKING", "AWS_", "FST_"))


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all of its group: asked at first, then killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def opened(home: Path) -> Iterator[Lab]:
    """A lab that ends with the block."""
    lab = Lab(home)
    try:
        yield lab
    finally:
        lab.close()
