"""What deployments rest on: their form, the worker's folder, other workers' deployments."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow, flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.compare import dated_folder
from fst_core.home import enter_home
from tasks.runs import Order
from tasks.tries import Refused
from tasks.workers import run_on_workers
from tests.runs import tiny_config

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = yaml.safe_load((ROOT / "infra/prefect.yaml").read_text())["deployments"]


def flow_of(deployment: dict[str, Any]) -> Flow:
    path, name = deployment["entrypoint"].split(":")
    found = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(found, Flow)
    return found


def schema_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return parameter_schema(flow_of(deployment)).model_dump_for_openapi()


def named(name: str) -> dict[str, Any]:
    return next(deployment for deployment in DEPLOYMENTS if deployment["name"] == name)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_the_form_explains_every_parameter_and_takes_the_defaults(deployment):
    schema = schema_of(deployment)
    assert [
        name for name, field in schema["properties"].items() if "description" not in field
    ] == []
    validate(deployment["parameters"], schema, raise_on_error=True)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("train", {"seed": True}),
        ("train", {"seed": 1.5}),
        ("compare", {"jobs": 0}),
        ("compare", {"seeds": ["0"]}),
        ("compare", {"arms": [""]}),
        ("compare", {"on": "elsewhere"}),
        ("plasticity", {"first": "configs/tiny/demo"}),
        ("report", {"study": ""}),
    ],
)
def test_the_form_refuses_what_cannot_be_run(name, wrong):
    deployment = named(name)
    with pytest.raises(ValidationError, match=f"for field '{next(iter(wrong))}"):
        validate({**deployment["parameters"], **wrong}, schema_of(deployment), raise_on_error=True)


def test_a_run_goes_to_the_workers_clone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FST_HOME", raising=False)
    with pytest.raises(RuntimeError, match="FST_HOME is not set; start this worker again"):
        enter_home()
    monkeypatch.setenv("FST_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="is no clone of the project"):
        enter_home()
    (tmp_path / "clone/flows").mkdir(parents=True)
    monkeypatch.setenv("FST_HOME", str(tmp_path / "clone"))
    assert enter_home() == {"directory": str(tmp_path / "clone")}
    assert Path.cwd() == tmp_path / "clone"


def test_every_deployment_goes_there_first():
    pull = yaml.safe_load((ROOT / "infra/prefect.yaml").read_text())["pull"]
    assert pull == [{"fst_core.home.enter_home": {}}]
    assert all("pull" not in deployment for deployment in DEPLOYMENTS)


def test_a_study_is_refused_workers_of_a_deployment_that_is_not_there(prefect_api, tmp_path):
    order = Order("a.toml", (), str(tmp_path), False, "workers", "train/none")

    @flow(name="asks workers")
    def asks() -> None:
        run_on_workers(order, [tiny_config()], 1)

    with pytest.raises(Refused, match="no deployment 'train/none': `make deploy`"):
        asks()


def test_a_dated_study_has_the_folder_of_its_day(prefect_api):
    @flow(name="dated")
    def dated() -> str:
        return dated_folder("runs/nightly")

    folder = Path(dated())
    assert folder.parent == Path("runs/nightly")
    assert len(folder.name.split("-")) == 3 and os.sep not in folder.name
