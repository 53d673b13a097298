"""What deployments rest on: their form, the worker's folder, other workers' deployments."""

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate
from pydantic import TypeAdapter

from flows.compare import dated_folder
from flows.parameters import Seed, inside_project, starts_inside_project
from fst_core.home import enter_home
from infra.deploy import refuse_unknown_parameters
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


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_the_server_refuses_a_parameter_that_the_flow_has_not(prefect_api, deployment):
    with get_client(sync_client=True) as client:
        identifier = client.create_deployment(
            client.create_flow(flow_of(deployment)),
            deployment["name"],
            parameters=deployment["parameters"],
            parameter_openapi_schema=schema_of(deployment),
            enforce_parameter_schema=True,
        )
        refuse_unknown_parameters(client, [identifier])
        run = client.create_flow_run_from_deployment(identifier)
        assert run.parameters == deployment["parameters"]
        with pytest.raises(PrefectHTTPStatusError) as caught:
            client.create_flow_run_from_deployment(identifier, parameters={"nonsense": 1})
        client.delete_deployment(identifier)
    assert caught.value.response.status_code == 409
    assert "'nonsense' was unexpected" in caught.value.response.json()["detail"]


@pytest.fixture
def deployed(tmp_path, monkeypatch) -> Path:
    """A project as the working directory of a deployment's run, with links in it."""
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "of a test")
    for name, target in {"out": tmp_path, "in": "runs", "ring": "ring"}.items():
        (tmp_path / "project").mkdir(exist_ok=True)
        (tmp_path / "project" / name).symlink_to(target)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


OUTSIDE = ["/tmp/runs", "..", "runs/../../other", "../project-2", "~/runs", "~nobody", "out/runs"]
OUTSIDE += ["ring/runs", "a\0b"]


@pytest.mark.parametrize("folder", OUTSIDE)
def test_a_deployments_run_does_not_leave_the_project(deployed, monkeypatch, folder):
    with pytest.raises(Refused, match=r"is no folder inside the project, .*project "):
        inside_project(folder)
    monkeypatch.delenv("PREFECT__RUNTIME__DEPLOYMENT__ID")
    assert inside_project(folder) == folder  # a command line's


@pytest.mark.parametrize("folder", ["runs", "runs/none/yet", "runs/../other", "in/mine", "./runs"])
def test_a_deployments_run_goes_anywhere_inside_the_project(deployed, folder):
    assert inside_project(folder) == folder
    assert inside_project(str(deployed / folder)) == str(deployed / folder)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("README.md", r"'README.md': .*/README\.md is a file; name a folder"),
        ("README.md/runs", r"/README\.md is a file; name a folder"),
        ("runs/a\nb", "holds control characters"),
        ("runs/\x7f", "holds control characters"),
    ],
)
def test_a_deployments_run_needs_a_folder_that_can_be(deployed, folder, said):
    (deployed / "README.md").touch()
    with pytest.raises(Refused, match=said):
        inside_project(folder)


STARTS = ["start_from", "contexts.start_from"]


@pytest.mark.parametrize("key", STARTS)
@pytest.mark.parametrize(
    "start", ["/etc/a-s0", "../../a-s0", "a/../../../b", "../out/a-s0", "a\0b"]
)
def test_a_deployments_run_begins_with_no_run_outside_the_project(
    deployed, monkeypatch, key, start
):
    planned = [begun_with(key, start)]
    with pytest.raises(Refused, match=rf"{key} = .* is no run inside the project, .*project "):
        starts_inside_project(planned, "runs")
    monkeypatch.delenv("PREFECT__RUNTIME__DEPLOYMENT__ID")
    starts_inside_project(planned, "runs")  # a command line's


@pytest.mark.parametrize("key", STARTS)
@pytest.mark.parametrize("start", ["demo/rl-s0", "../in/a-s0", "none/yet"])
def test_a_deployments_run_begins_with_any_run_inside_the_project(deployed, key, start):
    starts_inside_project([begun_with(key, start)], "runs")
    starts_inside_project([begun_with(key, str(deployed / "runs" / start))], "runs")


def begun_with(key: str, start: str) -> SimpleNamespace:
    """A run's config, as far as it says with which run it begins."""
    given = dict.fromkeys(STARTS) | {key: start}
    contexts = SimpleNamespace(start_from=given["contexts.start_from"])
    return SimpleNamespace(start_from=given["start_from"], contexts=contexts)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_generator_takes_is_refused(seed):
    with pytest.raises(ValueError, match="equal to"):
        TypeAdapter(Seed).validate_python(seed)
    assert TypeAdapter(Seed).validate_python(2**63 - 1) == 2**63 - 1


WRITING = [deployment for deployment in DEPLOYMENTS if deployment["name"] != "prepare"]


@pytest.mark.parametrize("deployment", WRITING, ids=lambda deployment: deployment["name"])
def test_every_flow_that_is_given_a_folder_checks_it(prefect_api, deployed, deployment):
    given = dict(deployment["parameters"])
    given["runs" if "config_path" in given else "study"] = ".."
    with pytest.raises(Refused, match="is no folder inside the project"):
        flow_of(deployment)(**given)


STARTING = [deployment for deployment in WRITING if "config_path" in deployment["parameters"]]


@pytest.mark.parametrize("deployment", STARTING, ids=lambda deployment: deployment["name"])
def test_every_flow_that_can_begin_with_another_run_checks_which(prefect_api, deployed, deployment):
    given = dict(deployment["parameters"])
    for name in {"config_path", "first"} & given.keys():
        given[name] = str(ROOT / given[name])
    given["overrides"] = ['start_from="/elsewhere/rl-s0"']
    with pytest.raises(Refused, match="is no run inside the project"):
        flow_of(deployment)(**given)


def test_a_run_goes_to_the_workers_clone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FST_HOME", raising=False)
    with pytest.raises(RuntimeError, match="FST_HOME is not set; start this worker again"):
        enter_home()
    for wrong in (str(tmp_path), "~nosuchuser/x", "a" * 300):
        monkeypatch.setenv("FST_HOME", wrong)
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
