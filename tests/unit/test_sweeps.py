"""Sweeps of a study: which arms they make, and what is refused when the file is read."""

from pathlib import Path

import pytest

from fst_core.config import (
    LitellmReflection,
    PolicyReflection,
    ReasoningGymConfig,
    load_config,
)
from fst_core.config.model import ConfigError
from fst_core.config.sweeps import SweepConfig, label_of, swept_arms
from fst_core.slow.objectives import Grpo, Rloo
from fst_core.study import expand

HEAD = """
name = "swept"

[environment]
type = "directives"

[contexts]
size = 2

[loop]
group_size = 8
problems_per_step = 4

[fast]
type = "gepa"
metric_calls = 64

[slow]
type = "cispo"
micro_batch = 32

[study]
arms = ["rl"]
seeds = [0, 1]
"""
K = '[[study.sweeps]]\nname = "K"\nkey = "contexts.size"\nvalues = [1, 2, 4]\n'


def sweep(name: str, key: str, values: str) -> str:
    return f'[[study.sweeps]]\nname = "{name}"\nkey = "{key}"\nvalues = {values}\n'


def write(folder: Path, *parts: str) -> Path:
    path = folder / "swept.toml"
    path.write_text("\n".join((HEAD, *parts)))
    return path


def test_every_value_but_the_base_arms_own_is_an_arm(tmp_path: Path) -> None:
    runs, study = expand(write(tmp_path, K))
    assert study.arms == ("rl", "fst", "K-1", "K-4")
    assert [run.id for run in runs][2:] == [
        "fst-s0",
        "fst-s1",
        "K-1-s0",
        "K-1-s1",
        "K-4-s0",
        "K-4-s1",
    ]
    sizes = {run.arm: run.contexts.size for run in runs}
    assert sizes == {"rl": 2, "fst": 2, "K-1": 1, "K-4": 4}


def test_an_arm_differs_from_its_base_in_the_swept_setting_alone(tmp_path: Path) -> None:
    path = write(tmp_path, K, sweep("beta", "slow.beta", "[0.0, 0.5]"))
    base, _ = load_config(path)
    slow = base.slow.model_copy(update={"beta": 0.5})
    assert load_config(path, "beta-0.5")[0] == base.model_copy(
        update={"arm": "beta-0.5", "slow": slow}
    )


def test_defaults_that_the_file_leaves_out_are_the_base_arms_too(tmp_path: Path) -> None:
    parts = (
        sweep("tau", "slow.tau", "[4, 8.5]"),
        sweep("curriculum", "curriculum", '[{ type = "stream" }, { type = "uniform" }]'),
        sweep("keep", "retention", '[[], [{ type = "kl", to = "base" }]]'),
    )
    _, study = load_config(write(tmp_path, *parts))
    assert study.arms == ("rl", "fst", "tau-8.5", "curriculum-uniform", "keep-kl")


@pytest.mark.parametrize(
    ("key", "values"),
    [("slow.type", '["grpo", "rloo"]'), ("slow", '[{ type = "grpo" }, { type = "rloo" }]')],
)
def test_another_type_keeps_what_the_base_arm_sets_and_both_have(
    tmp_path: Path, key: str, values: str
) -> None:
    """tau is CISPO's alone; what the base arm leaves out is the new type's own default."""
    path = write(tmp_path, sweep("slow", key, values))
    changes = ["slow.learning_rate=0.5", "slow.beta=0.25", "slow.tau=2.0"]
    grpo, rloo = (load_config(path, f"slow-{name}", changes)[0] for name in ("grpo", "rloo"))
    assert grpo.slow == Grpo(learning_rate=0.5, beta=0.25, micro_batch=32)
    assert rloo.slow == Rloo(learning_rate=0.5, beta=0.25, micro_batch=32)
    assert rloo.slow.model_dump()["baseline"] == "leave_one_out"
    assert rloo.fast.type == "gepa"


def test_a_value_of_another_type_wins_over_what_it_would_keep(tmp_path: Path) -> None:
    path = write(tmp_path, sweep("slow", "slow", '[{ type = "rloo", micro_batch = 8 }]'))
    assert load_config(path, "slow-rloo")[0].slow == Rloo(micro_batch=8)


def test_tables_inside_a_table_of_another_type_are_kept_and_changed_alike(tmp_path: Path) -> None:
    values = """[
      { type = "mutation" },
      { type = "playbook", reflection = { type = "litellm", model = "m" } },
    ]"""
    path = write(tmp_path, sweep("fast", "fast", values))
    changes = ['fast.reflection={"type":"policy","temperature":0.5}', "fast.anchors=2"]
    mutation = load_config(path, "fast-mutation", changes)[0].fast.model_dump()
    playbook = load_config(path, "fast-playbook", changes)[0].fast.model_dump()
    assert mutation["reflection"] == PolicyReflection(temperature=0.5).model_dump()
    assert playbook["reflection"] == LitellmReflection(model="m", temperature=0.5).model_dump()


def test_a_task_of_another_type_has_a_name_of_its_own(tmp_path: Path) -> None:
    values = '[{ type = "jsonl", path = "mine" }, { type = "reasoning_gym", dataset = "sums" }]'
    path = write(tmp_path, sweep("task", "environment", values))
    changes = ["environment.name=told", "environment.seed=7"]
    jsonl, gym = (
        load_config(path, arm, changes)[0] for arm in ("task-jsonl", "task-reasoning_gym")
    )
    assert jsonl.environment.name == "jsonl"
    assert gym.environment == ReasoningGymConfig(dataset="sums", seed=7)


def test_arms_and_overrides_of_another_type_start_afresh(tmp_path: Path) -> None:
    path = write(tmp_path, '[arms.other]\nslow = { type = "rloo" }\n')
    changes = ["contexts.size=1"]
    assert load_config(path, "other", changes)[0].slow == Rloo()
    assert load_config(path, None, [*changes, 'slow={"type":"grpo"}'])[0].slow == Grpo()


def test_another_base(tmp_path: Path) -> None:
    text = HEAD.replace('arms = ["rl"]', 'arms = []\nbase = "rl"')
    path = tmp_path / "rl.toml"
    path.write_text(text + sweep("baseline", "slow.baseline", '["problem", "batch"]'))
    runs, study = expand(path)
    assert study.arms == ("rl", "baseline-batch")
    assert {run.fast.type for run in runs} == {"none"}


def test_an_override_reaches_every_arm_but_not_the_swept_setting(tmp_path: Path) -> None:
    path, changes = write(tmp_path, K), ["contexts.size=4", "loop.steps=3", "slow.tau=2.0"]
    runs, study = expand(path, changes)
    assert study.arms == ("rl", "fst", "K-1", "K-2")
    assert {run.arm: run.contexts.size for run in runs}["K-1"] == 1
    assert {run.loop.steps for run in runs} == {3}
    assert {run.slow.model_dump()["tau"] for run in runs} == {2.0}
    assert load_config(path, None, ["study.sweeps=[]"])[1].arms == ("rl",)


def test_single_arms_of_a_sweep_can_be_chosen(tmp_path: Path) -> None:
    runs, _ = expand(write(tmp_path, K), (), ["fst", "K-4"], [7])
    assert [run.id for run in runs] == ["fst-s7", "K-4-s7"]


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (sweep("K", "contexts.sise", "[3]"), "arm K-3: contexts.sise: no such setting; .* size?"),
        (sweep("K", "contexts.size", "[3]"), "arm K-3: .*contexts.size = 3 does not divide"),
        (sweep("tau", "slow.tau", "[-1]"), "arm tau--1: slow.tau: must be above 0, not -1"),
        (sweep("K", "contexts.size", "[4, 4]"), "two values of the sweep 'K' .* K-4; give"),
        (sweep("K", "contexts.size", "[4]") + sweep("K", "loop.cycle_steps", "[4]"),
         "two arms are named K-4; rename"),
        (sweep("K", "contexts.size", "[4]") + "[arms.K-4]\n", "two arms are named K-4; rename"),
        (sweep("K", "contexts.size", "[4]") + "[arms.k-4]\n", "two arms are named K-4; rename"),
        (sweep("s", "contexts.seed", '["a", "A"]'), "two values of the sweep 's' .* s-A; give"),
        (sweep("s", "contexts.seed", '["a\\n"]'), r"'s' would name an arm 's-a\\n', which"),
        (sweep("K", "contexts.size", "[]"), r"study\.sweeps\.0\.values: needs at least 1 entry"),
        (sweep("s", "contexts.seed", '["two words"]'), "would name an arm 's-two words', which"),
        (sweep("c", "contexts", "[{ size = 4 }]"), "'c' would name an arm .*a table with a"),
        (sweep("s", "seed", "[1, 2]"), "'s' cannot change seed, which tells runs apart"),
        (sweep("s", "study.jobs", "[1, 2]"), "'s' cannot change study.jobs"),
        ("[arms.K.study]\njobs = 2\n", r"\[arms.K\] cannot set study"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_told_in_one_sentence(
    tmp_path: Path, part: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        load_config(write(tmp_path, part))
    assert str(error.value).startswith(f"{tmp_path}") and "\n" not in str(error.value)


def test_an_unknown_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"study\.base names an unknown arm: nothing"):
        load_config(write(tmp_path, K), None, ["study.base=nothing"])


def test_labels_by_hand() -> None:
    assert label_of(4) == "4" and label_of(0.0005) == "0.0005" and label_of(True) == "true"
    assert label_of("leave_one_out") == "leave_one_out" and label_of({"type": "dump"}) == "dump"
    assert (
        label_of([{"type": "ewc"}, {"type": "replay"}]) == "ewc+replay" and label_of([]) == "none"
    )


def test_what_an_arm_changes_by_hand() -> None:
    swept = SweepConfig(name="T", key="loop.cycle_steps", values=(2, 5))
    assert swept_arms([swept], ["fst"]) == {
        "T-2": {"loop": {"cycle_steps": 2}},
        "T-5": {"loop": {"cycle_steps": 5}},
    }
