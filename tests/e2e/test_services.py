"""`python -m infra.services`: what it starts, ends, refuses and leaves alone."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.processes import alive, end, members, start
from infra.servers import free_port, listens
from infra.services import ServiceError, down, exports, running, up
from tests.e2e.lab import Lab

S3 = ["s3"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "services"
    down(tmp_path / "services", ["s3", "mlflow", "prefect"], grace_seconds=1)


def command(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.run(sys.executable, "-m", "infra.services", *words, check=False)


def test_all_three_answer_and_mlflow_keeps_artifacts_in_the_store(servers: Lab) -> None:
    for name, path in {"prefect": "/api/health", "mlflow": "/health", "s3": "/healthz"}.items():
        with urllib.request.urlopen(servers.urls[name] + path, timeout=30) as answer:
            assert answer.status == 200
    code = """
import boto3, mlflow, os
with mlflow.start_run() as run:
    mlflow.log_text("seen", "note.txt")
names = boto3.client("s3").list_objects_v2(Bucket="fst-lab", Prefix="mlflow/")["Contents"]
assert any(run.info.run_id in entry["Key"] for entry in names), names
"""
    servers.run(sys.executable, "-c", code)


def test_only_loopback_is_listened_on_and_no_port_of_another_lab(servers: Lab) -> None:
    state = json.loads((servers.home / "services.json").read_text())
    for name, entry in state.items():
        listening = [
            connection.laddr
            for member in [psutil.Process(entry["pid"])]
            for process in [member, *member.children(recursive=True)]
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert {address.ip for address in listening} == {"127.0.0.1"}, name
        assert not {address.port for address in listening} & {8181, 9101}, "left switched on"


def test_a_second_up_starts_nothing_and_a_second_down_ends_nothing(home: Path) -> None:
    port = free_port()
    first = up(home, S3, {"s3": port})
    assert up(home, S3, {"s3": port}) == first
    assert up(home, S3, {}) == first, "a service keeps its port"
    with pytest.raises(ServiceError, match=rf"already runs on port {port}; to move it"):
        up(home, S3, {"s3": port + 1})
    assert down(home, S3) == ["s3"]
    assert not psutil.pid_exists(first["s3"]["pid"])
    assert not listens(port)
    assert down(home, S3) == []


def test_data_and_keys_survive_and_the_keys_are_private(home: Path, servers: Lab) -> None:
    port = free_port()
    before = exports(home, up(home, S3, {"s3": port}))
    assert stat.S_IMODE((home / "s3" / "keys.json").stat().st_mode) == 0o600
    put = "import boto3; boto3.client('s3').put_object(Bucket='fst-lab', Key='kept', Body=b'yes')"
    get = "import boto3; boto3.client('s3').get_object(Bucket='fst-lab', Key='kept')"
    env = dict(line.removeprefix("export ").split("=", 1) for line in before.splitlines())
    servers.run(sys.executable, "-c", put, check=True, **env)
    down(home, S3, grace_seconds=0)
    assert exports(home, up(home, S3, {"s3": port})) == before
    servers.run(sys.executable, "-c", get, check=True, **env)


def test_keys_are_shown_on_demand_alone(home: Path, servers: Lab) -> None:
    words = ("up", "--home", str(home), "--only", "s3", "--ports", f"s3={free_port()}")
    secret = "AWS_SECRET_ACCESS_KEY="
    quiet, asked = command(servers, *words), command(servers, *words, "--env")
    assert quiet.returncode == asked.returncode == 0
    assert secret not in quiet.stdout + quiet.stderr
    assert f"the store's keys are in {home}/s3/keys.json" in quiet.stderr
    assert f"export {secret}" in asked.stdout
    assert secret not in asked.stderr


def test_a_port_in_use_leaves_nothing_half_started(home: Path, servers: Lab) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken, free = other.getsockname()[1], free_port()
        ports = f"mlflow={taken},s3={free}"
        done = command(servers, "up", "--home", str(home), "--only", "mlflow,s3", "--ports", ports)
    assert done.returncode == 1
    assert f"port {taken}, for MLflow, is in use by" in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr
    assert f"--ports mlflow={taken + 1}" in done.stderr
    assert not running(home)


def test_a_service_that_does_not_start_ends_the_others_and_shows_its_log(home: Path) -> None:
    (home / "mlflow").mkdir(parents=True)
    (home / "mlflow" / "mlflow.db").write_text("this is no database, but a sentence" * 100)
    ports = {"s3": free_port(), "mlflow": free_port()}
    with pytest.raises(ServiceError, match=r"(?s)MLflow ended at once; the end of its log.*"):
        up(home, ["s3", "mlflow"], ports)
    assert not running(home)
    with pytest.raises(OSError), urllib.request.urlopen(f"http://127.0.0.1:{ports['s3']}/"):
        pass


def test_a_process_number_that_another_program_has_now_is_left_alone(home: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        home.mkdir()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for record in (
            {"pid": bystander.pid, "boot": boot, "began": 1, "port": 1, "s3_port": 1},
            {
                "pid": bystander.pid,
                "boot": "before the reboot",
                "began": 1,
                "port": 1,
                "s3_port": 1,
            },
        ):
            (home / "services.json").write_text(json.dumps({"s3": record}))
            assert running(home) == {}
            assert down(home, S3) == []
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_a_killed_leader_leaves_is_ended(tmp_path: Path) -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    words = [sys.executable, "-c", script]
    process = start(words, os.environ, tmp_path, tmp_path / "log")
    deadline = time.monotonic() + 60
    while len(members(process)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(process)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert not alive(process)
    assert len(members(process)) == 1
    end(process, grace_seconds=5)
    assert not members(process)


def test_choices_that_make_no_sense(servers: Lab) -> None:
    for words in (["--only", "s4"], ["--ports", "s3"], ["--ports", "s3=99999999"]):
        done = command(servers, "up", *words)
        assert done.returncode == 2
        assert words[1] in done.stderr


def test_doctor(servers: Lab) -> None:
    well = servers.run("fst", "doctor").stdout
    for line in (
        f"ok      prefect server: {servers.env['PREFECT_API_URL']} answers",
        f"ok      tracking: {servers.urls['mlflow']} answers",
        f"ok      store: {servers.env['FST_STORE']} can be read and written",
    ):
        assert line in well
    ill = servers.run("fst", "doctor", check=False, AWS_SECRET_ACCESS_KEY="wrong")
    assert ill.returncode == 1
    assert f"problem store: the store refuses {servers.env['FST_STORE']}" in ill.stdout
