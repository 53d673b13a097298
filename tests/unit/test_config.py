"""What a config refuses when it is read, and the sentence that says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fst_core.config import (
    DirectivesConfig,
    JsonlConfig,
    MixtureConfig,
    ReasoningGymConfig,
    RulesReflection,
    RunConfig,
    SequenceConfig,
    load_config,
)
from fst_core.config.loop import LoopConfig
from fst_core.config.model import ConfigError, ConfigModel, first_twin
from fst_core.config.overrides import override

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "configs/tiny/methods.toml"
TASK = {"type": "directives"}
TWO = [TASK, {**TASK, "name": "other"}]
NO_WEIGHT = {f"{name}_weight": 0 for name in ("lesson", "example", "drop", "replace", "merge")}

NO_FOLDER = ["", ".", "..", "./b", "../../x", "/tmp/x", "a/b", "a\\b", "a\n", "a b", "-a", "a\0"]


def refused(*changes: str) -> str:
    """The sentence that a file with these changes is refused with, without the file's name."""
    with pytest.raises(ConfigError) as error:
        load_config(DEMO, "fst", ["name=demo", *changes])
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{DEMO}: ")


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/**/*.toml")), ids=lambda p: p.stem)
def test_every_arm_of_every_config_here_is_read(path: Path) -> None:
    _, study = load_config(path)
    for arm in (*study.arms, study.base):
        load_config(path, arm)


@pytest.mark.parametrize("name", NO_FOLDER)
@pytest.mark.parametrize(
    ("model", "needed"),
    [
        (DirectivesConfig, {}),
        (ReasoningGymConfig, {"dataset": "sums"}),
        (JsonlConfig, {"path": "mine"}),
        (SequenceConfig, {"tasks": TWO, "task_steps": 1}),
        (MixtureConfig, {"tasks": TWO}),
    ],
)
def test_a_name_that_is_no_folder_is_refused(
    model: type[ConfigModel], needed: dict[str, Any], name: str
) -> None:
    assert model.model_validate({**needed, "name": "a-1.b_c+d"})
    with pytest.raises(ValidationError, match="name\n"):
        model.model_validate({**needed, "name": name})


@pytest.mark.parametrize("name", NO_FOLDER)
def test_a_generator_s_name_is_a_folder_too(name: str) -> None:
    with pytest.raises(ValidationError, match="dataset\n"):
        ReasoningGymConfig(dataset=name)


def test_the_sentence_on_a_name_says_what_may_stand_in_it() -> None:
    told = refused('environment.name="../x"')
    assert told == (
        "environment.name: '../x' is no folder name; use letters and digits, with . + - _ inside"
    )


@pytest.mark.parametrize("kind", ["mixture", "sequence"])
def test_tasks_whose_names_differ_in_case_alone_are_refused(kind: str) -> None:
    tasks = [{**TASK, "name": name} for name in ("straße", "STRASSE")]
    environment = {"type": kind, "tasks": tasks} | ({"task_steps": 1} if kind == "sequence" else {})
    with pytest.raises(ValidationError, match="two tasks are named 'STRASSE'"):
        RunConfig.model_validate({"environment": environment})


def test_a_suite_whose_name_is_a_task_s_but_for_case_is_refused() -> None:
    suite = {"name": "Directives", "axis": "cross domain", "environment": TASK}
    with pytest.raises(ValidationError, match="'Directives' names two sets of problems"):
        RunConfig.model_validate({"environment": TASK, "evaluation": {"suites": [suite]}})


def test_the_first_twin_by_hand() -> None:
    assert first_twin(["a", "b"]) is None
    assert first_twin(["b", "a", "A", "B"]) == "A"


def test_the_rows_of_a_run_are_bounded() -> None:
    """10^7 steps of 100 problems are the most; 65,536 problems leave 15,258 steps."""
    LoopConfig(steps=10_000_000, problems_per_step=100)
    LoopConfig(steps=15_258, problems_per_step=65_536)
    with pytest.raises(ValidationError, match=r"15259 times .* are 1000013824 rows"):
        LoopConfig(steps=15_259, problems_per_step=65_536)
    assert "must be 65536 or less" in refused("loop.problems_per_step=100000000000")


@pytest.mark.parametrize("step", [0, -1])
def test_no_evaluation_before_a_switch(step: int) -> None:
    told = refused(f"evaluation.after_switch=[1,{step}]")
    assert told.startswith("evaluation.after_switch.1: ")


@pytest.mark.parametrize("key", ["start_from", "contexts.start_from"])
@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ("", "is empty; name a run as NAME/ARM-sSEED"),
        (" ", "is empty; name a run as NAME/ARM-sSEED"),
        ("demo/fst-s0", "a run cannot start from itself"),
        ("./demo//fst-s{seed}", "a run cannot start from itself"),
    ],
)
def test_a_start_that_is_no_other_run_is_refused(key: str, start: str, sentence: str) -> None:
    told = refused(f"{key}={json.dumps(start)}")
    assert told.startswith(f"config: {key} ") and sentence in told


@pytest.mark.parametrize("key", ["start_from", "contexts.start_from"])
def test_a_run_may_start_from_another_seed_or_arm(key: str) -> None:
    for start in ("demo/fst-s1", "demo/rl-s{seed}", "other/fst-s0"):
        load_config(DEMO, "fst", ["name=demo", f"{key}={start}"])


def test_rules_that_can_propose_nothing_are_refused() -> None:
    assert RulesReflection.model_validate({**NO_WEIGHT, "merge_weight": 0.1})
    with pytest.raises(ValidationError, match="nothing could be proposed"):
        RulesReflection.model_validate(NO_WEIGHT)
    reflection = json.dumps({"type": "rules", **NO_WEIGHT})
    assert refused(f"fast.reflection={reflection}").startswith("fast.reflection: nothing could")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("slow.taau=3", "slow.taau: no such setting; did you mean tau?"),
        ("contexts.max_token=3", "contexts.max_token: no such setting; did you mean max_tokens?"),
        ("loop.micro_batch=3", "loop.micro_batch: no such setting; did you mean slow.micro_batch?"),
        (
            "loop.metric_calls=3",
            "loop.metric_calls: no such setting; did you mean fast.metric_calls?",
        ),
        (
            'fast={"type":"none","metric_calls":3}',
            "fast.metric_calls: type 'none' of fast has no such setting; it belongs to gepa",
        ),
        (
            'fast.reflection={"type":"policy","retries":1}',
            "fast.reflection.retries: type 'policy' of fast.reflection has no such setting; "
            "it belongs to litellm",
        ),
        (
            'retention=[{"type":"kl","fraction":0.5}]',
            "retention.0.fraction: type 'kl' of retention.0 has no such setting; "
            "it belongs to replay, reweight",
        ),
        ("study.jbos=2", "study.jbos: no such setting; did you mean jobs?"),
        ('curriculum="uniform"', 'curriculum: must be a table such as { type = "uniform" }'),
        ('curriculum="?"', 'curriculum: must be a table such as { type = "easy_to_hard" }'),
        ('fast.reflection="rules"', 'fast.reflection: must be a table such as { type = "rules" }'),
        ("retention=[{}]", 'retention.0: must be a table such as { type = "reweight" }'),
        ('policy="?"', 'policy: must be a table such as { type = "smollm2-135m" }'),
        ('retention=["kl"]', 'retention.0: must be a table such as { type = "kl" }'),
        ('retention="kl"', 'retention: must be a list of tables such as [{ type = "kl" }]'),
        (
            'retention={"type":"kl"}',
            'retention: must be a list of tables such as [{ type = "kl" }]',
        ),
        ("loop=3", "loop: must be a table of settings such as steps"),
        ("study=3", "study: must be a table of settings such as arms"),
        ('study.arms="rl"', 'study.arms: must be a list such as ["rl"]'),
        (
            'study.sweeps={"name":"K"}',
            "study.sweeps: must be a list of tables, each under [[study.sweeps]]",
        ),
        (
            'study.sweeps=[{"name":"K","key":"contexts.size","values":2}]',
            "study.sweeps.0.values: must be a list such as [2]",
        ),
    ],
)
def test_what_toml_wants_is_said_plainly(change: str, told: str) -> None:
    assert refused(change) == told


LONE = st.integers(0xD800, 0xDFFF).map(chr)


@given(
    LONE,
    st.sampled_from(
        ["{}", "a{}b", '"{}"', '["{}"]', '{{"format": "{}"}}', '{{"{}": "x"}}', '{{"a": ["{}"]}}']
    ),
    st.sampled_from(["contexts.seed", "contexts.components", "why", "data", "study.arms", "x{}"]),
    st.booleans(),
)
def test_text_that_no_file_could_hold_is_refused(
    lone: str, value: str, key: str, escaped: bool
) -> None:
    written = f"\\u{ord(lone):04x}" if escaped and '"' in value else lone
    change = f"{key.format(lone)}={value.format(written)}"
    told = refused(change)
    said = "holds a lone surrogate, which no text may; write it in UTF-8"
    assert told == f"override {change!r} {said}"
    told.encode()


def test_text_beyond_the_basic_plane_is_kept() -> None:
    for written in ("\U0001f600", "\\ud83d\\ude00"):
        config, _ = load_config(DEMO, "fst", [f'contexts.seed="{written}"'])
        assert config.contexts.seed == "\U0001f600"


def test_a_list_is_not_called_short_for_an_item_that_was_refused() -> None:
    nested = {"type": "mixture", "tasks": [TASK, {"type": "mixture", "tasks": TWO}]}
    told = refused(f"environment={json.dumps(nested)}")
    assert told.startswith('environment.tasks.1.type: must be one of "directives", ')
    assert "at least 2" not in told
    short = refused(f"environment={json.dumps({'type': 'mixture', 'tasks': [TASK]})}")
    assert "environment.tasks: " in short and "at least 2" in short


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("loop.steps=ten", 'loop.steps: must be a whole number, not "ten"'),
        ("loop.steps=1.5", "loop.steps: must be a whole number, not 1.5"),
        ("loop.steps=null", "loop.steps: must be a whole number, not null"),
        ("loop.steps=-1", "loop.steps: must be 0 or more, not -1"),
        ("slow.learning_rate=0", "slow.learning_rate: must be above 0, not 0"),
        ("slow.learning_rate=much", 'slow.learning_rate: must be a number, not "much"'),
        ("policy.temperature=nan", "policy.temperature: must be a finite number, not NaN"),
        ("policy.lora.dropout=1", "policy.lora.dropout: must be below 1, not 1"),
        ("threads=5000", "threads: must be 1024 or less, not 5000"),
        ("evaluation.kl=maybe", 'evaluation.kl: must be true or false, not "maybe"'),
        ("why=7", 'why: must be text in quotes, such as "7", not 7'),
        ("why=null", 'why: must be text in quotes, such as "text", not null'),
        ("study.seeds=[1.5]", "study.seeds.0: must be a whole number, not 1.5"),
        (
            "policy.dtype=float16",
            'policy.dtype: must be one of "float32", "bfloat16", not "float16"; did you mean '
            '"bfloat16"?',
        ),
        (
            "fast.type=gpea",
            'fast.type: must be one of "none", "gepa", "espl", "mutation", "playbook", not "gpea"; '
            'did you mean "gepa"?',
        ),
        (
            'policy={type="hub"}',
            "policy.model: is missing, and has no default; set it (Hub id or local folder)",
        ),
        (
            'environment={type="sequence", task_steps=3}',
            'environment.tasks: is missing; give it a list of tables such as [{ type = '
            '"directives" }]',
        ),
        ("environment=null", 'environment: must be a table such as { type = "directives" }'),
        ("policy.lora.targets=[]", "policy.lora.targets: needs at least 1 entry, and has 0"),
        (
            'contexts.components={"a b"="x"}',
            "contexts.components.a b: 'a b' is no name of a component; use letters and digits, "
            "with - and _ inside",
        ),
        ("environment.threads=2", "environment.threads: no such setting; did you mean threads?"),
        ("learning_rate=2", "learning_rate: no such setting; did you mean slow.learning_rate?"),
        ("contexts.colour=1", "contexts.colour: no such setting; there are components, max_tokens, "
         "seed, size, start_from"),
        (
            'policy.vllm={mode="server", url="http://127.0.0.1:1"}',
            'policy.vllm: mode = "server" needs weights_folder; set it to a folder that the run '
            "and the server see under the same path",
        ),
    ],
)  # fmt: skip
def test_a_refused_value_is_told_with_its_key_and_what_it_must_be(change: str, told: str) -> None:
    assert refused(change) == told


def test_a_long_value_is_cut() -> None:
    assert len(refused(f"loop.steps={'x' * 1000}")) < 150


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ('{type="espl", matches=3}', {"type": "espl", "matches": 3}),
        ('{"type": "espl", "matches": 3}', {"type": "espl", "matches": 3}),
        ("{type = 'espl', matches = 3}", {"type": "espl", "matches": 3}),
        ("['rl', \"fst\"]", ["rl", "fst"]),
        ('["rl", "fst"]', ["rl", "fst"]),
        ('[{type = "kl"}]', [{"type": "kl"}]),
        ("1_000", 1000),
        ("5e-4", 0.0005),
        ("true", True),
        ("null", None),
        ("'a text'", "a text"),
        ('"a text"', "a text"),
        (" a text ", "a text"),
        ("a = b", "a = b"),
        ("2026-11-28", "2026-11-28"),
        ("runs/demo/rl-s{seed}", "runs/demo/rl-s{seed}"),
        ("[think] then answer", "[think] then answer"),
        ("'[think]'", "[think]"),
        ("5\nother = 3", "5\nother = 3"),
        ("", ""),
    ],
)
def test_an_override_is_read_as_json_or_toml_or_text(value: str, read: Any) -> None:
    assert override({"a": {"b": 1}}, f"a.c={value}") == {"a": {"b": 1, "c": read}}
    assert override({}, f" a . c = {value}") == {"a": {"c": read}}


@pytest.mark.parametrize(
    ("value", "example"),
    [
        ("{type=gepa}", """--set 'fast={type = "gepa"}'"""),
        ('{type="gepa"', """--set 'fast={type = "gepa"}'"""),
        ("{'type': 'gepa'}", """--set 'fast={type = "gepa"}'"""),
        ("[kl]", """--set 'study.arms=["rl", "fst"]'"""),
        ('["rl", ', """--set 'study.arms=["rl", "fst"]'"""),
        ("[" * 100_000, """--set 'study.arms=["rl", "fst"]'"""),
    ],
)
def test_what_looks_like_a_table_or_a_list_and_is_none_is_told_so(value: str, example: str) -> None:
    told = refused(f"fast={value}")
    assert told.startswith("override ") and len(told) < 500
    assert "its value is neither TOML nor JSON" in told and example in told


def test_an_override_without_a_use_is_refused() -> None:
    for assignment in ("fast", "=x", ".=3", "fast.=3", "a..b=1"):
        assert "is not of the form key.path=value" in refused(assignment)
    for value in ("[2026-11-28]", "{a = 10:00:00}"):
        assert "holds a date or a time, which no setting takes" in refused(f"study.arms={value}")
    assert "must be a whole number of fewer digits" in refused(f"seed={'1' * 5000}")


FILE = '[environment]\ntype = "directives"\n'


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"", 'environment: is missing; give it a table such as { type = "directives" }'),
        (b"\0", "not valid TOML (Invalid statement"),
        ("why = 'é'".encode("latin1"), "no text in UTF-8"),
        (f"{FILE}seed = {'1' * 5000}".encode(), "not valid TOML (Exceeds the limit"),
        (f"a = {'[' * 100_000}".encode(), "not valid TOML (maximum recursion depth"),
        (f"{FILE}why = null".encode(), "text stands in quotes, and a setting that is null is left"),
        (f"{FILE}[loop]\nsteps = ten".encode(), "text stands in quotes, and a setting that is"),
        (f"arms = [1]\n{FILE}".encode(), "arms must be tables of settings, one for each arm"),
        (f"{FILE}[arms.x]\nseed = 3".encode(), "[arms.x] cannot set seed, which no arm changes"),
        (f"{FILE}[study]\narms = ['x']".encode(), "unknown arms: x; known arms: base, fst, gepa"),
        (f"{FILE}[study]\nbase = 'x'".encode(), "an unknown arm: x; known arms: base, fst, gepa"),
        (f"{FILE}steps = 3".encode(), "steps: no such setting; did you mean loop.steps?"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_config_is_told_in_one_sentence(
    written: bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(written)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value).startswith(f"{path}: ") and told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [".", "absent.toml", "a\0b"])
def test_what_is_no_file_is_told_in_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load_config(f"{tmp_path}/{name}")


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8-sig")
    assert load_config(path)[0].environment == DirectivesConfig()


@pytest.mark.parametrize("seed", [-1, 2**63, 10**20])
@pytest.mark.parametrize("key", ["seed={}", "study.seeds=[0, {}]"])
def test_a_seed_that_no_table_holds_is_refused(key: str, seed: int) -> None:
    with pytest.raises(ConfigError, match=rf"seed.*must be .*, not {seed}"):
        load_config(DEMO, "fst", [key.format(seed)])
    assert load_config(DEMO, "fst", [f"seed={2**63 - 1}"])[0].seed == 2**63 - 1


@pytest.mark.parametrize("depth", [33, 3000])
def test_a_key_of_very_many_tables_is_refused(depth: int) -> None:
    parts = ["environment", "options", *["a"] * (depth - 2)]
    with pytest.raises(ConfigError, match=rf"goes {depth} tables deep; 32 are enough"):
        override({}, f"{'.'.join(parts)}=1")
    assert override({}, f"{'.'.join(parts[:32])}=1")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("loop.steps=true", r"loop\.steps: must be a whole number, not true"),
        ("slow.learning_rate=false", r"slow\.learning_rate: must be a number, not false"),
        ("contexts.size=false", r"contexts\.size: must be a whole number, not false"),
        ("seed=true", r"seed: must be a whole number, not true"),
    ],
)
def test_a_truth_value_is_no_number(setting: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(DEMO, "fst", [setting])


def test_a_truth_value_is_one_where_it_is_wanted() -> None:
    assert load_config(DEMO, "fst", ["evaluation.kl=false"])[0].evaluation.kl is False


def test_a_name_that_no_folder_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"name: .*at most 100 characters"):
        load_config(DEMO, "fst", ["name=" + "a" * 101])
    assert load_config(DEMO, "fst", ["name=" + "a" * 100])
