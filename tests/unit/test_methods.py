"""The registry, what `fst methods` says of it, and the walk through a new method."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fst_core.catalogue import TABLES, catalogue, markdown, settings_in
from fst_core.cli import app
from fst_core.cli_methods import reflowed
from fst_core.config import load_config
from fst_core.config.model import ConfigError
from fst_core.cost import estimate
from fst_core.methods import CURRICULUM, FAST, RETENTION, SLOW, load

ROOT = Path(__file__).resolve().parents[2]
METHODS = ROOT / "configs/tiny/methods.toml"
BUDGET = 15_360

WITH_LINE = """\
import sys
import fst_core.methods as methods
methods.FAST = {**methods.FAST, "echo": methods.Method("echo:EchoConfig", "echo:Echo")}
from fst_core.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("kind", [FAST, SLOW, CURRICULUM, RETENTION])
def test_every_line_names_settings_of_its_own_type_and_a_part(kind):
    for name, method in kind.items():
        settings = load(method.settings)
        assert settings.model_fields["type"].default == name
        assert callable(load(method.make))


def test_reading_a_config_loads_no_method_s_libraries():
    code = (
        "import sys; from fst_core.config import load_config; "
        f"load_config({str(METHODS)!r}); "
        "sys.exit(', '.join({'torch', 'trl', 'gepa', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_method_is_documented_with_its_cost_and_settings():
    for entry in catalogue():
        assert entry.title and entry.cost, entry.name
        assert all(setting.about for setting in entry.settings), entry.name


def test_the_page_of_methods_is_what_the_docstrings_say():
    assert (ROOT / "docs/methods.md").read_text() == markdown()


def test_the_page_of_settings_is_what_the_models_say():
    page = CliRunner().invoke(app, ["settings"]).output
    assert (ROOT / "docs/settings.md").read_text() == page
    for table in ("`[[study.sweeps]]`", '`environment = { type = "mixture" }`', "`[loop]`"):
        assert f"## {table}" in page
    assert "| `weights` |" in page and "| `group_size` | `8` |" in page


def test_every_setting_is_described():
    for title, model in TABLES:
        assert all(setting.about for setting in settings_in(model)), title


def test_the_list_names_every_method_and_its_paper():
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["methods"]).output
    for entry in catalogue():
        assert entry.name in shown
    assert "arXiv 2602.14697" in shown


def test_one_method_is_shown_in_full():
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["methods", "espl"]).output
    assert "TrueSkill" in shown
    assert "crossover_prob" in shown
    assert "0.2" in shown


@pytest.mark.parametrize("name", sorted({entry.name for entry in catalogue()}))
def test_a_method_stays_within_the_terminal(name: str):
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["methods", name]).output
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("paragraph", "told"),
    [
        ("one\ntwo three\nfour", "one two three four"),
        ("- one\n- two", "- one\n- two"),
        ("A list:\n    one\n    two", "A list:\n    one\n    two"),
    ],
)
def test_the_terminal_breaks_the_lines_of_a_paragraph_and_no_list(paragraph: str, told: str):
    assert reflowed(paragraph) == told


def test_an_unknown_method_is_refused_with_the_known_ones():
    result = CliRunner().invoke(app, ["methods", "esp"])
    assert isinstance(result.exception, ConfigError)
    assert "espl" in str(result.exception)


def test_arms_of_the_comparison_may_use_the_same_rollouts():
    _, study = load_config(METHODS)
    for arm in study.arms:
        cost = estimate(load_config(METHODS, arm)[0])
        assert cost.slow_rollouts + cost.fast_rollouts == BUDGET, arm


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["contexts.size=3"], "contexts.size"),
        (['slow={"type":"distill"}', 'fast={"type":"none"}'], "no contexts to teach"),
        (['retention=[{"type":"replay"}]'], "sequence"),
        (['retention=[{"type":"ewc"}]'], "sequence"),
        (['curriculum={"type":"dump"}'], "mixture"),
        (['fast={"type":"espl"}', 'slow={"type":"none"}'], "slow"),
        (['fast={"type":"espl"}', 'slow={"type":"distill"}'], "gepa"),
        (['slow={"type":"grpo","baseline":"context"}', "contexts.size=16"], "baseline"),
        (['fast={"type":"nonsense"}'], "fast"),
    ],
)
def test_what_cannot_work_together_is_refused_when_the_config_is_read(settings, told):
    with pytest.raises(ConfigError, match=told) as refused:
        load_config(METHODS, overrides=settings)
    assert len(str(refused.value)) < 600


def test_the_walk_through_a_new_method_runs(tmp_path):
    page = (ROOT / "docs/how-to/add-a-method.md").read_text()
    example, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert line.strip().startswith('"echo": Method(')
    (tmp_path / "echo.py").write_text(example)
    (tmp_path / "lab.py").write_text(WITH_LINE)
    words = ["run", str(ROOT / "configs/tiny/smoke.toml"), "--runs", str(tmp_path), "--no-track"]
    words += ["--set", 'fast={"type":"echo","anchors":4}', "--set", "name=echo"]
    command = [sys.executable, str(tmp_path / "lab.py"), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "echo/fst-s0/journal.jsonl").read_text().splitlines()
    phases = [event for event in map(json.loads, lines) if event["kind"] == "fast"]
    assert [phase["evolution"]["metric_calls"] for phase in phases] == [8, 8]
    assert phases[-1]["ledger"]["fast_rollouts"] == 16
