"""The files for other hosts hold what their own validators ask, and what we ask beyond that.

Each broken copy shows that a check can fail.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.pipeline.infra_files import (
    compose_faults,
    dockerfile_faults,
    kubernetes_faults,
    load_all,
    password_faults,
    pool_faults,
    schema_faults,
)

ROOT = Path(__file__).parents[2]
COMPOSE = "infra/compose/compose.yaml"
CHECKS = [compose_faults, dockerfile_faults, kubernetes_faults, password_faults, pool_faults]
Check = Callable[[Path], Iterator[str]]


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_wrong(check: Check) -> None:
    assert list(check(ROOT)) == []


BROKEN: dict[tuple[Check, str], list[tuple[str, str, str]]] = {
    (compose_faults, COMPOSE): [
        ("restart: unless-stopped", "restrat: always", "compose schema"),
        ("${FST_BIND:-127.0.0.1}:5000", "5000", "mlflow: port 5000:5000"),
        ("${FST_BIND:-127.0.0.1}:42", "${FST_BIND:-0.0.0.0}:42", "prefect: port"),
        ("${FST_S3_SECRET_KEY:?", "${FST_S3_SECRET_KEY:-", "AWS_SECRET_ACCESS_KEY"),
        ("PGPASSWORD: ${FST_POSTGRES_PASSWORD:?set", "PGPASSWORD: ${X:-set", "mlflow: PGPASSWORD"),
        ("postgres:17.6-bookworm", "postgres:latest", "names no release"),
        ("fst-lab-gpu:0.1.0", "fst-lab-gpu:0.0.9", "not of release"),
        ("Dockerfile.gpu", "Dockerfile.tpu", "there is no infra/docker/Dockerfile.tpu"),
        ("./postgres-init.sql", "./init.sql", "there is no ./init.sql"),
        ("--artifacts-destination", "--artifact-store", "no option --artifact-store"),
        ("-s3.port.iceberg", "-s3.port.icebreg", "no option -s3.port.icebreg"),
        ("python -m infra.deploy", "python -m infra.deplyo", "no module infra.deplyo"),
        ("prefect server start", "prefect sevrer start", "no command"),
        ("test: [CMD, pg_isready", "tset: [CMD, pg_isready", "compose schema"),
    ],
    (compose_faults, "infra/compose/env.example"): [
        ("FST_S3_SECRET_KEY=", "FST_S3_SECRET_KEY=abc", "FST_S3_SECRET_KEY has a value"),
        ("FST_POSTGRES_PASSWORD=", "", "FST_POSTGRES_PASSWORD: not both in"),
    ],
    (compose_faults, "infra/compose/.gitignore"): [(".env", "env", "not ignored by Git")],
    (dockerfile_faults, "infra/docker/Dockerfile.cpu"): [
        ("python:3.11.14-slim-bookworm", "python", "DL3006"),
        ("COPY pyproject.toml", "COPY setup.py", "setup.py is not in the build context"),
        ("lab,smollm2", "lap,smollm2", "no extra `lap`"),
        ('"worker", "start"', '"agent", "start"', "no command"),
        ('"--with-healthcheck"', '"--with-health"', "no option --with-health"),
    ],
    (dockerfile_faults, "infra/docker/Dockerfile.gpu"): [
        ("USER 1000", "USER root", "DL3002"),
        ("-y --no-install", "--no-install", "DL3014"),
    ],
    (dockerfile_faults, ".dockerignore"): [("!fst_core", "!fst_cor", "there is no fst_cor")],
    (kubernetes_faults, "infra/k8s/mlflow.yaml"): [
        ("enableServiceLinks: false", "enableServiceLinks: true", "MLFLOW_PORT"),
        ("runAsNonRoot: true", "runAsNonRoot: false", "may run as root"),
        ("key: AWS_DEFAULT_REGION", "key: REGION", "the ConfigMap has no key REGION"),
        ("--allowed-hosts", "--allow-hosts", "no option --allow-hosts"),
    ],
    (kubernetes_faults, "infra/k8s/postgres.yaml"): [
        ("key: FST_POSTGRES_PASSWORD", "key: PASSWORD", "the Secret has no key PASSWORD"),
        ("name: PGDATA, value", "name: PGPASSWORD, value", "PGPASSWORD is written down"),
    ],
    (kubernetes_faults, "infra/k8s/workers.yaml"): [
        ("fsGroup:", "fsgroup:", "fsgroup"),
        ("startupProbe:", "livenessProbe:", "no probes"),
        ("requests: {cpu", "limits: {cpu", "requests no resources"),
        ("namespace: fst-lab", "namespace: default", "not in the namespace"),
    ],
    (kubernetes_faults, "infra/k8s/prefect.yaml"): [
        ("replicas: 1", "replicas: one", "Deployment prefect"),
    ],
    (kubernetes_faults, "infra/k8s/kustomization.yaml"): [
        ("  - mlflow.yaml\n", "", "lacks mlflow.yaml"),
    ],
    (kubernetes_faults, "infra/k8s/settings.yaml"): [
        ("kind: ConfigMap", "kind: Secret", "a Secret is written down"),
    ],
    (pool_faults, "infra/pools/docker.json"): [
        ("{{ networks }}", "{{ netwroks }}", "netwroks"),
        ('"default": -1', '"default": "all"', "is not of type 'integer'"),
        ('"{{ gpus }}"', '"{{ image }}"', "count must be an integer"),
        ("{{ prefect.blocks.secret.fst-s3-secret-key }}", "x", "AWS_SECRET_ACCESS_KEY is written"),
    ],
    (pool_faults, "infra/pools/kubernetes.json"): [
        ('"restartPolicy"', '"restartpolicy"', "restartpolicy"),
        ("FST_S3_ACCESS_KEY", "S3_ACCESS_KEY", "the Secret has no key S3_ACCESS_KEY"),
    ],
    (pool_faults, "infra/pools/process.json"): [
        ('"command": "{{ command }}",', "", "the worker cannot set command"),
    ],
    (password_faults, "infra/k8s/mlflow.yaml"): [
        ("//fst@postgres", "//fst:hunter2@postgres", "hunter2"),
    ],
}
CASES = [(*place, *change) for place, changes in BROKEN.items() for change in changes]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files that the checks read; a broken one is put back after each test."""
    folder = tmp_path_factory.mktemp("project")
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    for name in [".dockerignore", *(line[1:] for line in lines if line.startswith("!"))]:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name == "infra":
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".env"))
        elif source.is_dir():
            target.mkdir()
        else:
            shutil.copy(source, target)
    return folder


@pytest.mark.parametrize(("check", "name", "old", "new", "fault"), CASES)
def test_a_broken_file_is_found(
    check: Check, name: str, old: str, new: str, fault: str, copy: Path
) -> None:
    path = copy / name
    whole = path.read_text()
    assert old in whole
    path.write_text(whole.replace(old, new))
    try:
        assert [found for found in check(copy) if fault in found]
    finally:
        path.write_text(whole)


def test_compose_itself_reads_the_file(tmp_path: Path) -> None:
    words = ["docker", "compose"]
    if (
        not shutil.which("docker")
        or subprocess.run([*words, "version"], capture_output=True).returncode
    ):
        pytest.skip("docker compose is not installed")
    example = (ROOT / "infra/compose/env.example").read_text()
    (tmp_path / ".env").write_text(example.replace("=\n", "=x\n"))
    words += [
        "--env-file",
        str(tmp_path / ".env"),
        "--profile",
        "gpu",
        "--file",
        str(ROOT / COMPOSE),
    ]
    done = subprocess.run([*words, "config", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kustomize_builds_what_kubernetes_accepts() -> None:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    words = ["kubectl", "kustomize", str(ROOT / "infra/k8s")]
    built = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    documents = list(yaml.safe_load_all(built))
    resources = load_all(ROOT / "infra/k8s/kustomization.yaml")[0]["resources"]
    assert len(documents) == sum(len(load_all(ROOT / "infra/k8s" / name)) for name in resources)
    assert [fault for document in documents for fault in schema_faults(json.dumps(document))] == []
