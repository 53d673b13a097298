"""What a changed type resets is told."""

from pathlib import Path

import pytest

from fst_core.config import load_config
from fst_core.dropped import dropped_notes, dropped_settings
from fst_core.launch import STUDIED
from fst_core.study import expand
from tests.unit.commands import call, write_config

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "configs/tiny/demo.toml"


def notes(*overrides: str, arm: str | None = None, config: Path = DEMO) -> list[str]:
    return list(dropped_settings(load_config(config)[0], load_config(config, arm, overrides)[0]))


def test_settings_of_both_types_that_fall_back_to_defaults_are_named() -> None:
    (note,) = notes('slow={"type":"dr_grpo"}')
    assert "learning_rate = 1e-06 (the file has 0.0005)" in note
    assert "warmup_steps = 10 (the file has 5)" in note
    assert "beta" not in note  # 0 in the file, and by default


def test_a_table_inside_a_table_is_named_by_its_path(tmp_path: Path) -> None:
    text = DEMO.read_text().replace(
        "[fast]\n", "[fast]\nreflection = { type = 'policy', temperature = 0.5 }\n", 1
    )
    config = tmp_path / "own.toml"
    config.write_text(text)
    own = 'fast.reflection={"type":"huggingface","model":"m"}'
    (note,) = notes(own, config=config)
    assert note.startswith("fast.reflection.type = 'huggingface' begins with its own defaults: ")
    assert "temperature = 1.0 (the file has 0.5)" in note
    assert notes("fast.reflection.temperature=0.7", config=config) == []


def test_another_environment_names_what_both_have(tmp_path: Path) -> None:
    config = tmp_path / "own.toml"
    config.write_text("environment = { type = 'directives', seed = 7 }\n")
    (note,) = notes('environment={"type":"reasoning_gym","dataset":"gcd"}', config=config)
    assert "environment.type = 'reasoning_gym'" in note and "seed = 0 (the file has 7)" in note


def test_one_note_for_all_arms_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    change = 'slow={"type":"dr_grpo"}'
    planned, _ = expand(DEMO, [change], ["rl", "fst", "base"], [0, 1, 2])
    (note,) = dropped_notes(DEMO, planned)
    assert note.startswith("rl, fst: slow.type = 'dr_grpo' begins with its own defaults: ")
    monkeypatch.setenv(STUDIED, "1")
    assert dropped_notes(DEMO, planned) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--dry-run"], "fst"),
        (["run", "--no-track"], "fst"),
        (["compare", "--no-track", "--seeds", "0,1", "--arms", "rl,fst"], "rl, fst"),
    ],
    ids=["plan", "run", "compare"],
)
def test_every_command_tells_it_once(words: list[str], told: str, tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    change = 'slow={"type":"dr_grpo","micro_batch":16}'
    sizes = ["loop.steps=1", "evaluation.ends=false", "fast.metric_calls=0"]
    sets = [word for one in (change, *sizes) for word in ("--set", one)]
    command, *rest = words
    answer = call(command, config, "--runs", runs, *sets, *rest)
    assert answer.code == 0, answer.err
    assert (answer.out + answer.err).count("begins with its own defaults") == 1
    assert f"note: {told}: slow.type = 'dr_grpo'" in answer.err
    assert "learning_rate = 1e-06 (the file has 0.0005)" in answer.err


def test_what_is_written_beside_the_type_is_not() -> None:
    (note,) = notes('slow={"type":"dr_grpo","learning_rate":5e-4,"warmup_steps":5}')
    assert "learning_rate" not in note and "micro_batch" in note
    every = '{"type":"dr_grpo","learning_rate":5e-4,"warmup_steps":5,"micro_batch":256}'
    assert notes(f"slow={every}") == []


@pytest.mark.parametrize("arm", ["rl", "gepa", "base", "fst"])
def test_a_part_left_out_or_kept_resets_nothing(arm: str) -> None:
    assert notes(arm=arm) == []


def test_arms_of_the_comparison_say_all_they_mean() -> None:
    config = ROOT / "configs/tiny/methods.toml"
    _, study = load_config(config)
    assert not any(notes(arm=arm, config=config) for arm in study.arms)


def test_a_sweep_over_types_keeps_them() -> None:
    sweeps = 'study.sweeps=[{"name":"o","key":"slow.type","values":["dr_grpo"]}]'
    assert notes(sweeps, arm="o-dr_grpo") == []
