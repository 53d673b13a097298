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

from fst_core.config import load_config
from fst_core.config.environment import environment_name
from fst_core.environments.tasks import task_configs
from fst_core.study import expand

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(ROOT.glob("configs/**/*.toml"))
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES: dict[str, dict[str, Any]] = DVC["stages"]
MANIFEST = json.loads((ROOT / "data.manifest.json").read_text())
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())
DEPLOYMENTS = yaml.safe_load((ROOT / "infra/prefect.yaml").read_text())["deployments"]


def dig(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def commands(stage: dict[str, Any]) -> list[str]:
    found = stage["cmd"] if isinstance(stage["cmd"], list) else [stage["cmd"]]
    for key in ("jobs", "organism.steps", "organism.seed"):
        found = [command.replace(f"${{{key}}}", str(dig(PARAMS, key))) for command in found]
    assert not [command for command in found if "${" in command]
    return found


def after(words: list[str], option: str) -> list[str]:
    """What stands between an option and the next one; empty without the option."""
    rest = words[words.index(option) + 1 :] if option in words else []
    return list(itertools.takewhile(lambda word: not word.startswith("--"), rest))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_config_parses_with_each_of_its_arms(path):
    _, study = load_config(path)
    runs, _ = expand(path)
    assert len(runs) == len(study.arms) * len(study.seeds)


def test_there_are_configs():
    assert ROOT / "configs/tiny/demo.toml" in CONFIGS


@pytest.mark.parametrize(
    "command", [c for stage in STAGES.values() for c in commands(stage)], ids=lambda c: c[:40]
)
def test_every_command_of_a_stage_is_understood(command):
    """Each command line with --help added: unknown modules and subcommands fail."""
    words = shlex.split(command)
    module = words[2] if words[:2] == ["python", "-m"] else "fst_core.cli"
    rest = words[3:] if words[0] == "python" else words[1:]
    line = [sys.executable, "-m", module, *rest, "--help"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    options = [word for word in rest if word.startswith("--")]
    assert [option for option in options if option not in done.stdout] == []


@pytest.mark.parametrize("name", STAGES)
def test_every_param_key_of_a_stage_exists(name):
    for entry in STAGES[name].get("params", []):
        for path, keys in entry.items():
            data = tomllib.loads((ROOT / path).read_text())
            for key in keys:
                dig(data, key)


@pytest.mark.parametrize("name", STAGES)
def test_every_dependency_is_a_file_or_an_output(name):
    pools = {f"data/{Path(file).parent}" for file in MANIFEST}
    made = {out for stage in STAGES.values() for out in stage["outs"]} | pools
    missing = [d for d in STAGES[name]["deps"] if d not in made and not (ROOT / d).exists()]
    assert missing == []


@pytest.mark.parametrize(
    ("stage", "config"),
    [
        ("compare", "demo"),
        ("plasticity", "plasticity"),
        ("posthoc", "posthoc"),
        ("continual", "continual"),
        ("ablation", "ablation"),
    ],
)
def test_the_stages_name_the_journals_of_their_runs(stage, config):
    words = shlex.split(commands(STAGES[stage])[-1])
    arms, seeds = after(words, "--arms"), [int(seed) for seed in after(words, "--seeds")]
    runs, _ = expand(ROOT / f"configs/tiny/{config}.toml", (), arms, seeds)
    journals = {f"runs/repro/{run.name}/{run.id}/journal.jsonl" for run in runs}
    assert set(STAGES[stage]["outs"]) == journals
    assert journals < set(STAGES["report"]["deps"])
    pools = {f"data/{environment_name(task)}" for run in runs for task in task_configs(run)}
    assert pools == {dep for dep in STAGES[stage]["deps"] if dep.startswith("data/")}


@pytest.mark.parametrize("stage", ["plasticity", "posthoc"])
def test_a_stage_of_probes_depends_on_every_run_it_starts_from(stage):
    runs, _ = expand(ROOT / f"configs/tiny/{stage}.toml")
    begun = {f"runs/repro/{run.start_from}/journal.jsonl" for run in runs if run.start_from}
    assert begun
    assert begun <= set(STAGES["compare"]["outs"]) & set(STAGES[stage]["deps"])


def test_the_data_import_is_not_frozen():
    """A frozen import, or a plain .dvc file, fails on a fresh clone without a remote."""
    data = yaml.safe_load((ROOT / "data.dvc").read_text())
    assert not data.get("frozen")
    assert [dep["path"] for dep in data["deps"]] == STAGES["generate"]["outs"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_every_deployment_names_a_flow_and_its_parameters(deployment):
    path, name = deployment["entrypoint"].split(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    inspect.signature(flow.fn).bind(**deployment["parameters"])
    config = deployment["parameters"].get("config_path")
    assert config is None or (ROOT / config).is_file()
