"""What is wrong with the files for other hosts, as sentences; no engine and no network needed.

Every check takes a folder that holds the project (`infra/`, `pyproject.toml` and the rest), so that
a test can hand it a broken copy.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import docker.types
import jsonschema
import kubernetes_validate
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from prefect.server.schemas.actions import WorkPoolCreate
from prefect.utilities.templating import apply_values

BIN = Path(sys.executable).parent
SECRET_NAME = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|TOKEN")
PASSWORD_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
PINNED = re.compile(r"[a-z0-9./-]+:\d[\w.-]*")
TEMPLATES = {"process", "docker", "kubernetes"}
MARKERS = {"process": "working_dir", "docker": "container_create_kwargs", "kubernetes": "namespace"}
"""A key of the job configuration that only this kind of worker has."""


def load_all(path: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def defaulted(text: str) -> str:
    """A compose value where no variable is set: `${NAME:-value}` is value."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def compose_faults(root: Path) -> Iterator[str]:
    """The schema of the compose specification; ports, passwords, images, files and commands."""
    path = root / "infra/compose/compose.yaml"
    compose = yaml.safe_load(path.read_text())
    checker = jsonschema.Draft202012Validator(get_builtin_schema("vendor.compose-spec"))
    for error in checker.iter_errors(compose):
        yield f"compose schema: {error.json_path}: {error.message}"
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            if not defaulted(str(port)).startswith("127.0.0.1:"):
                yield f"{name}: port {port} is open beyond the loopback interface"
        for key, value in service.get("environment", {}).items():
            if SECRET_NAME.search(key) and not re.fullmatch(r"\$\{FST_\w+:\?[^}]+\}", str(value)):
                yield f"{name}: {key} is not taken from a variable that must be set"
        yield from image_faults(root, name, service["image"])
        build = service.get("build")
        if build and not (path.parent / build["context"] / build["dockerfile"]).is_file():
            yield f"{name}: there is no {build['dockerfile']}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if not (path.parent / source).exists() and source not in compose["volumes"]:
                yield f"{name}: there is no {source}"
        if name != "setup" and "healthcheck" not in service:
            yield f"{name}: no health check"
        yield from command_faults(name, defaulted(service.get("command", "")).split())
    example = read_example(root)
    for variable in set(re.findall(r"\$\{(\w+):\?", path.read_text())) ^ set(example):
        yield f"{variable}: not both in compose.yaml and in env.example"
    yield from (f"env.example: {name} has a value" for name, value in example.items() if value)
    if ".env" not in (path.parent / ".gitignore").read_text().split():
        yield "infra/compose/.env is not ignored by Git"


def read_example(root: Path) -> dict[str, str]:
    """The variables of env.example with their values."""
    lines = (root / "infra/compose/env.example").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def image_faults(root: Path, where: str, image: str) -> Iterator[str]:
    """An image is named with a release, and ours with the project's own."""
    if not PINNED.fullmatch(image):
        yield f"{where}: image {image} names no release"
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if image.startswith("fst-lab") and not image.endswith(f":{version}"):
        yield f"{where}: image {image} is not of release {version}"


def command_faults(where: str, words: list[str]) -> Iterator[str]:
    """The program, the subcommand or module, and every option exist in what is installed here."""
    if words[:2] == ["sh", "-c"]:
        for line in " ".join(words[2:]).strip('"').split("&&"):
            yield from command_faults(where, line.strip().removeprefix("exec ").split())
    elif words[:2] == ["python", "-m"]:
        if importlib.util.find_spec(words[2]) is None:
            yield f"{where}: there is no module {words[2]}"
    elif words:
        options = [word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)]
        known = help_of(words)
        for option in options:
            if not re.search(rf"{re.escape(option)}(?![\w.-])", known):
                yield f"{where}: `{words[0]}` has no option {option}"
        if not known:
            yield f"{where}: there is no command `{' '.join(words)}`"


def help_of(words: list[str]) -> str:
    """The help of a program's subcommand; empty where there is none."""
    plain = [word for word in words if not word.startswith("-")]
    return read_help(*plain[: 3 if words[0] == "prefect" else 2])


@cache
def read_help(program: str, *subcommand: str) -> str:
    """What a program says of a subcommand; empty where it knows none of that name."""
    if not (BIN / program).exists():
        return ""
    ask = ["help", *subcommand] if program == "weed" else [*subcommand, "--help"]
    done = subprocess.run([BIN / program, *ask], capture_output=True, text=True)
    known = program == "weed" or not done.returncode
    return done.stdout + done.stderr if known else ""


def dockerfile_faults(root: Path) -> Iterator[str]:
    """hadolint; the base image, the user, the copied files, the extras and the command."""
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    carried = [
        line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    yield from (
        f".dockerignore: there is no {name}" for name in carried if not (root / name).exists()
    )
    for path in sorted((root / "infra/docker").iterdir()):
        text = path.read_text()
        yield from (f"{path.name}: {fault}" for fault in hadolint(text))
        for image in re.findall(r"^FROM (\S+)", text, re.M):
            yield from image_faults(root, path.name, image)
        if re.findall(r"^USER (\S+)", text, re.M)[-1:] != ["1000"]:
            yield f"{path.name}: does not end as user 1000, which Kubernetes is told of"
        for source in re.findall(r"^COPY (?:--\S+ )*(\S+) \./", text, re.M):
            if source not in carried:
                yield f"{path.name}: {source} is not in the build context"
        for extra in ",".join(re.findall(r"-e '\.\[([\w,]+)\]'", text)).split(","):
            if extra not in extras:
                yield f"{path.name}: there is no extra `{extra}`"
        for command in re.findall(r"^CMD (.*)", text.replace("\\\n", ""), re.M):
            yield from command_faults(path.name, json.loads(command))


@cache
def hadolint(text: str) -> list[str]:
    """What hadolint says of a Dockerfile, a line each."""
    words = [str(BIN / "hadolint"), "--no-color", "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()


def manifests(root: Path) -> list[dict[str, Any]]:
    """Every object of infra/k8s, beside the kustomization."""
    files = sorted((root / "infra/k8s").glob("*.yaml"))
    return [d for path in files if path.name != "kustomization.yaml" for d in load_all(path)]


def kubernetes_faults(root: Path) -> Iterator[str]:
    """Kubernetes' own schemas, strictly; what every pod shall have; the list of files."""
    folder = root / "infra/k8s"
    listed = set(load_all(folder / "kustomization.yaml")[0]["resources"])
    written = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml", "jobs.yaml"}
    yield from (f"kustomization.yaml or the folder lacks {name}" for name in listed ^ written)
    for document in manifests(root):
        yield from schema_faults(json.dumps(document))
        if document["kind"] == "Secret":
            yield f"a Secret is written down: {document['metadata']['name']}"
        if document["kind"] not in {"Namespace"} and document["metadata"]["namespace"] != "fst-lab":
            yield f"{document['metadata']['name']}: not in the namespace fst-lab"
        template = document.get("spec", {}).get("template")
        if template:
            name = f"{document['kind']} {document['metadata']['name']}"
            yield from pod_faults(root, name, template["spec"], document["kind"] != "Job")


@cache
def schema_faults(text: str) -> list[str]:
    """What Kubernetes' schema of the newest release known here says of one object, as JSON."""
    document = json.loads(text)
    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{document['kind']} {document['metadata'].get('name')}: {error.message}"]
    return []


def pod_faults(root: Path, name: str, pod: dict[str, Any], served: bool) -> Iterator[str]:
    """What a pod of ours is asked for beyond the schema."""
    if pod.get("enableServiceLinks") is not False:
        yield f"{name}: the addresses of Services become variables, such as MLFLOW_PORT"
    if not pod.get("securityContext", {}).get("runAsNonRoot"):
        yield f"{name}: may run as root"
    for container in pod["containers"]:
        yield from image_faults(root, name, container["image"])
        yield from command_faults(name, container.get("command", []))
        if not container.get("resources", {}).get("requests"):
            yield f"{name}: requests no resources"
        if served and not {"startupProbe", "readinessProbe"} <= container.keys():
            yield f"{name}: no probes"
        for variable in container.get("env", []):
            yield from variable_faults(root, name, variable)


def variable_faults(root: Path, name: str, variable: dict[str, Any]) -> Iterator[str]:
    """Secrets come from keys of the Secret that env.example makes, the rest from the ConfigMap."""
    if SECRET_NAME.search(variable["name"]) and "value" in variable:
        yield f"{name}: {variable['name']} is written down"
    source = variable.get("valueFrom", {})
    key = source.get("secretKeyRef", {}).get("key")
    if key is not None and key not in read_example(root):
        yield f"{name}: the Secret has no key {key}"
    known = load_all(root / "infra/k8s/settings.yaml")[0]["data"]
    key = source.get("configMapKeyRef", {}).get("key")
    if key is not None and key not in known:
        yield f"{name}: the ConfigMap has no key {key}"


def pool_faults(root: Path) -> Iterator[str]:
    """Prefect's own check of each template, its defaults, and what a worker would start."""
    folder = root / "infra/pools"
    yield from (f"no template {name}" for name in TEMPLATES ^ {p.stem for p in folder.iterdir()})
    for path in sorted(folder.iterdir()):
        template = json.loads(path.read_text())
        try:
            WorkPoolCreate(name="gpu", type=path.stem, base_job_template=template)
        except ValueError as refused:
            yield f"{path.name}: {refused}"
            continue
        variables = template["variables"]["properties"]
        defaults = {name: v["default"] for name, v in variables.items() if "default" in v}
        for error in jsonschema.Draft202012Validator(template["variables"]).iter_errors(defaults):
            yield f"{path.name}: {error.message}"
        job = apply_values(template["job_configuration"], defaults, remove_notset=True)
        yield from (f"{path.name}: {fault}" for fault in job_faults(root, path.stem, template, job))


def job_faults(
    root: Path, kind: str, template: dict[str, Any], job: dict[str, Any]
) -> Iterator[str]:
    """What is wrong with what a worker of this kind would start."""
    missing = {"command", "env", "labels", "name", MARKERS[kind]} - set(
        template["job_configuration"]
    )
    yield from (f"the worker cannot set {name}" for name in missing)
    env = job.get("env", {})
    for variable in env if isinstance(env, list) else []:
        yield from variable_faults(root, kind, variable)
    for name, value in env.items() if isinstance(env, dict) else []:
        if SECRET_NAME.search(name) and not value.startswith("{{ prefect.blocks.secret."):
            yield f"{name} is written down"
    if "image" in template["variables"]["properties"]:
        image = template["variables"]["properties"]["image"]["default"]
        yield from image_faults(root, kind, image)
    if kind == "docker":
        asked = {k: v for k, v in job["container_create_kwargs"].items() if k != "hostname"}
        try:
            docker.types.HostConfig(version="1.44", **asked)
        except (TypeError, ValueError) as error:
            yield str(error)
    if kind == "kubernetes":
        manifest = job["job_manifest"]
        manifest["spec"]["template"]["spec"]["containers"][0]["args"] = ["prefect"]
        manifest["metadata"] = {"generateName": "run-"}
        yield from schema_faults(json.dumps(manifest))
        yield from pod_faults(root, "job", manifest["spec"]["template"]["spec"], served=False)


def password_faults(root: Path) -> Iterator[str]:
    """No address in any file of infra/ holds a password."""
    for path in sorted((root / "infra").rglob("*")):
        if path.is_file() and path.name != ".env" and path.suffix != ".pyc":
            for found in PASSWORD_IN_URL.findall(path.read_text()):
                yield f"{path.name}: {found}"
