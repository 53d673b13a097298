"""The examples of docs/how-to/own-environment.md run."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fst_core.config import RunConfig, VerifiersConfig
from fst_core.environments.jsonl import JsonlEnvironment
from fst_core.environments.verifiers import VerifiersEnvironment
from fst_core.records import SPLITS
from fst_core.rollouts import judge

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/own-environment.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def taskset() -> str:
    return next(block for block in blocks("python") if "vf.Taskset" in block)


def test_every_config_of_the_page_is_read() -> None:
    configs = [RunConfig.model_validate(tomllib.loads(block)) for block in blocks("toml")]
    kinds = [config.environment.type for config in configs]
    assert kinds == ["jsonl", "hover", "polaris", "choices", "verifiers"]


def test_the_json_line_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.loads(blocks("json")[0])
    rows = [{**row, "question": f"{i}: {row['question']}"} for i in range(60)]
    (tmp_path / "planets.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    config = RunConfig.model_validate(tomllib.loads(blocks("toml")[0])).environment
    environment = JsonlEnvironment(config)  # type: ignore[arg-type]
    problem = environment.problem("train", 0)
    assert judge(environment, problem, "The answer is B").reward == 1
    assert "Think of mass." in judge(environment, problem, "C").feedback


def test_the_class_is_an_environment() -> None:
    made: dict[str, Any] = {"__name__": "roman"}
    exec(next(block for block in blocks("python") if "RomanEnvironment" in block), made)
    environment = made["RomanEnvironment"](made["RomanConfig"]())
    held = {s: {environment.problem(s, i).text for i in range(40)} for s in SPLITS}
    assert len(set.union(*held.values())) == 120, "no question stands in two splits"
    assert environment.size("train") is None and environment.size("test") == 256
    problem = environment.problem("test", 5)
    assert judge(environment, problem, environment.solution(problem)).reward == 1
    wrong = judge(environment, problem, "0")
    assert wrong.reward == 0 and problem.reference not in " ".join(wrong.feedback)


@pytest.mark.skipif(
    importlib.util.find_spec("verifiers") is None
    or importlib.util.find_spec("verifiers.legacy") is not None,
    reason="a taskset needs the package verifiers from 0.4 on: pip install 'fst-lab[verifiers]'",
)
def test_the_taskset_is_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text(taskset())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums", raising=False)
    config = RunConfig.model_validate(tomllib.loads(blocks("toml")[-1])).environment
    assert isinstance(config, VerifiersConfig)
    environment = VerifiersEnvironment(config)
    assert sum(environment.size(split) for split in SPLITS) == 200
    problem = environment.problem("train", 3)
    assert judge(environment, problem, problem.reference).reward == 1
    told = judge(environment, problem, "no idea").feedback
    assert told[0] == "Answer with digits and nothing else."


def test_links_of_the_page_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs/how-to" / link).is_file(), link
