"""What is written down outside Python exists: configs, DVC stages, deployments."""

import importlib
import inspect
import itertools
import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fst_core.config import RunConfig, load_config
from fst_core.config.environment import environment_name
from fst_core.config.sweeps import SweepConfig, swept_arms
from fst_core.environments.tasks import task_configs
from fst_core.provenance import RUN_PROPERTIES
from fst_core.study import expand
from tests.pipeline.clones import BIN
from tests.pipeline.stages import declared

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(ROOT.glob("configs/**/*.toml"))
STAGES = declared(ROOT)
TRAINING = [name for name, stage in STAGES.items() if "fst run " in stage.commands[0]]
PLOTS = yaml.safe_load((ROOT / "dvc.yaml").read_text())["plots"]
MANIFEST = json.loads((ROOT / "data.manifest.json").read_text())
DEPLOYMENTS = yaml.safe_load((ROOT / "infra/prefect.yaml").read_text())["deployments"]


def dig(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def trained(name: str) -> tuple[Path, RunConfig]:
    """The config file and the run of a stage that trains."""
    words = shlex.split(STAGES[name].commands[0])
    chosen = {option: words[words.index(option) + 1] for option in ("--arm", "--seed")}
    path = ROOT / words[2]
    run, _ = load_config(path, chosen["--arm"], [f"seed={chosen['--seed']}"])
    return path, run


def code_of(name: str) -> set[str]:
    """The code a stage depends on."""
    return {dep for dep in STAGES[name].deps if dep.startswith("fst_core/")}


def tables_read(path: Path, run: RunConfig) -> set[str]:
    """Keys of a config file that make a run what it is.

    A table whose `type` the arm replaces is not read; of the arms and the sweeps, the arm's own.
    """
    written, dumped = tomllib.loads(path.read_text()), run.model_dump(mode="json")
    kept = {
        name
        for name, value in written.items()
        if name in dumped
        and name not in RUN_PROPERTIES
        and (not isinstance(value, dict) or value.get("type") in (None, dumped[name].get("type")))
    }
    if run.arm in written.get("arms", {}):
        kept.add(f"arms.{run.arm}")
    sweeps = [SweepConfig(**sweep) for sweep in written.get("study", {}).get("sweeps", [])]
    return kept | ({"study.sweeps"} if run.arm in swept_arms(sweeps, ()) else set())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_config_parses_with_each_of_its_arms(path):
    _, study = load_config(path)
    runs, _ = expand(path)
    assert len(runs) == len(study.arms) * len(study.seeds)


def test_there_are_configs():
    assert ROOT / "configs/tiny/demo.toml" in CONFIGS


def called(words: list[str]) -> tuple[str, ...]:
    """The words in front of the paths and options of a command line."""
    return tuple(itertools.takewhile(lambda word: word[:2] != "--" and "/" not in word, words))


COMMANDS = [
    shlex.split(command)
    for stage in STAGES.values()
    for command in stage.commands
    if command.startswith(("fst ", "python "))
]


@pytest.mark.parametrize("line", sorted({called(words) for words in COMMANDS}), ids=" ".join)
def test_every_command_of_a_stage_is_understood(line):
    """The command lines that begin so, with --help added: unknown words and options fail."""
    options = {w for words in COMMANDS if called(words) == line for w in words if w[:2] == "--"}
    rest = [sys.executable, *line[1:]] if line[0] == "python" else [BIN / line[0], *line[1:]]
    done = subprocess.run([*rest, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [option for option in options if option not in done.stdout] == []


@pytest.mark.parametrize("name", STAGES)
def test_every_param_key_of_a_stage_exists(name):
    for path, keys in STAGES[name].params.items():
        load = yaml.safe_load if path.endswith(".yaml") else tomllib.loads
        data = load((ROOT / path).read_text())
        for key in keys:
            dig(data, key)


@pytest.mark.parametrize("name", STAGES)
def test_every_dependency_is_a_file_or_an_output(name):
    pools = {f"data/{Path(file).parent}" for file in MANIFEST}
    made = {out for stage in STAGES.values() for out in stage.outs} | pools | {"data"}
    missing = [d for d in STAGES[name].deps if d not in made and not (ROOT / d).exists()]
    assert missing == []


@pytest.mark.parametrize("name", TRAINING)
def test_a_run_depends_on_the_config_keys_that_it_reads_and_on_no_others(name):
    path, run = trained(name)
    assert STAGES[name].params == {str(path.relative_to(ROOT)): tables_read(path, run)}


@pytest.mark.parametrize("name", TRAINING)
def test_a_run_depends_on_its_pools_its_start_and_the_check_of_all_pools(name):
    _, run = trained(name)
    pools = {f"data/{environment_name(task)}" for task in task_configs(run)}
    begun = {f"runs/repro/{run.start_from}"} if run.start_from else set()
    assert STAGES[name].deps - code_of(name) == {"build/data-checked", *pools, *begun}


@pytest.mark.parametrize("name", TRAINING)
def test_every_run_depends_on_the_same_code(name):
    """Any run's process loads the settings of every method; what it loads, test_stages looks at."""
    assert code_of(name) - {"fst_core/policy/tiny"} == code_of("train@fst-0")


@pytest.mark.parametrize("name", TRAINING)
def test_a_run_writes_where_the_report_and_the_probes_look_for_it(name):
    _, run = trained(name)
    (out,) = STAGES[name].outs
    folder = f"runs/repro/{run.name}/{run.id}"
    assert out == (folder if run.name == "demo" else f"{folder}/journal.jsonl")
    assert out in STAGES["report"].deps
    assert name.rpartition("-")[2] == str(run.seed)


@pytest.mark.parametrize("config", ["demo", "plasticity", "posthoc", "continual"])
def test_every_run_of_a_study_is_a_stage(config):
    runs, _ = expand(ROOT / f"configs/tiny/{config}.toml")
    made = {trained(name)[1].id for name in TRAINING if trained(name)[0].stem == config}
    assert made == {run.id for run in runs}


def test_the_plots_show_every_arm_that_has_a_curve():
    """The base model is measured once: a point, and no curve."""
    runs = [trained(name)[1] for name in TRAINING]
    drawn = {
        (study, arm)
        for plot in PLOTS
        for study, shown in plot.items()
        for file, arms in shown["y"].items()
        for arm in arms
        if Path(file).stem == study
    }
    assert drawn == {(run.name, run.arm) for run in runs if run.arm != "base"}


def test_nothing_but_the_report_is_kept_in_git():
    """What git tracks, a fresh clone compares its own numbers with."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    (metrics,) = stages["report"]["metrics"]
    assert metrics == {"docs/results/repro/metrics.json": {"cache": False}}


def test_the_data_import_is_not_frozen():
    """A frozen import, or a plain .dvc file, fails on a fresh clone without a remote."""
    data = yaml.safe_load((ROOT / "data.dvc").read_text())
    assert not data.get("frozen")
    assert {dep["path"] for dep in data["deps"]} == STAGES["generate"].outs


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_every_deployment_names_a_flow_and_its_parameters(deployment):
    path, name = deployment["entrypoint"].split(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    inspect.signature(flow.fn).bind(**deployment["parameters"])
    config = deployment["parameters"].get("config_path")
    assert config is None or (ROOT / config).is_file()
