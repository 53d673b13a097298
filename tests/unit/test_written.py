"""A run as TOML again: what differs from the defaults, and nothing lost."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fst_core.config import RunConfig, load_config
from fst_core.config.study import ARMS
from fst_core.config.sweeps import swept_arms
from fst_core.config.written import as_file, as_toml, in_words

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "configs/tiny/demo.toml"
TASK: dict[str, Any] = {"type": "directives"}


def again(config: RunConfig) -> RunConfig:
    """What is read from a run's TOML."""
    return RunConfig.model_validate(tomllib.loads(as_toml(config)))


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/**/*.toml")), ids=lambda p: p.stem)
def test_every_run_here_is_the_same_when_it_is_read_again(path: Path) -> None:
    _, study = load_config(path)
    for arm in (*study.arms, study.base):
        config, _ = load_config(path, arm)
        assert again(config) == config


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/**/*.toml")), ids=lambda p: p.stem)
def test_every_run_here_is_the_same_from_a_file_of_its_own(path: Path, tmp_path: Path) -> None:
    for arm in every_arm(path):
        config, _ = load_config(path, arm)
        file = tmp_path / "own.toml"
        file.write_text(as_file(config), encoding="utf-8")
        assert load_config(file)[0] == config, arm


def every_arm(path: Path) -> list[str]:
    """The built-in arms that a file allows, its own, and those of its sweeps."""
    _, study = load_config(path)
    own = tomllib.loads(path.read_text(encoding="utf-8")).get("arms", {})
    return sorted({*study.arms, study.base, *own, *swept_arms(study.sweeps, {**ARMS, **own})})


def test_an_arm_that_changes_its_run_again_is_not_applied_twice(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    task = '[environment]\ntype = "directives"\n[fast]\ntype = "gepa"\n[arms.rl.loop]\nsteps = 3\n'
    file.write_text(task, encoding="utf-8")
    config, _ = load_config(file, "rl")
    assert config.arm == "rl" and config.loop.steps == 3 and config.fast.type == "gepa"
    file.write_text(as_file(config), encoding="utf-8")
    assert load_config(file)[0] == config


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(min_size=1).filter(str.isalnum))
def test_any_text_and_key_is_the_same_when_it_is_read_again(text: str, key: str) -> None:
    options = {key: text, f"{key} x": {"a": [1, {"b": 0.5}], text: True}, "c": [], "d": {}}
    task = {"type": "reasoning_gym", "dataset": "gcd", "options": options}
    config = RunConfig.model_validate({"environment": task, "why": text})
    written = as_toml(config)
    assert again(config) == config
    assert all(character.isprintable() or character == "\n" for character in written)


def test_only_what_differs_is_written() -> None:
    config = RunConfig.model_validate(
        {"environment": TASK, "seed": 3, "policy": {"type": "tiny", "lora": {}}}
    )
    assert as_toml(config).split("\n") == [
        *("seed = 3", "", "[environment]", 'type = "directives"', ""),
        *("[policy]", 'type = "tiny"', "", "[policy.lora]"),
    ]


def test_tables_in_lists_have_heads_of_their_own() -> None:
    tasks = [TASK, {**TASK, "name": "other", "required": []}]
    config = RunConfig.model_validate({"environment": {"type": "mixture", "tasks": tasks}})
    assert again(config) == config
    assert as_toml(config).count("[[environment.tasks]]") == 2


def test_a_line_says_what_a_run_is_made_of() -> None:
    fst, rl = (in_words(load_config(DEMO, arm, ["seed=2"])[0]) for arm in ("fst", "rl"))
    assert fst.startswith("demo/fst-s2: fast gepa (reflection by rules), slow cispo, tiny on ")
    assert fst.endswith("60 steps of 16 x 16 rollouts, 4 contexts")
    assert "no fast part, slow" in rl and rl.endswith("1 context")
