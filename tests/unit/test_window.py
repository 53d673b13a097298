"""What a run begins with must fit its model's window; the run and its plan say the same of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.fast.window import room_for_context
from fst_core.policy.base import ContextTooLong
from fst_core.policy.chats import Chats, load_tokenizer
from fst_core.policy.locate import TINY
from fst_core.records import Context, Problem
from fst_core.rollouts import messages_for
from fst_core.session import Session
from fst_core.starts import refuse_bad_start
from tests.runs import tiny_config
from tests.unit.commands import call, write_config

OWN = {"type": "policy"}


def refusals(config: RunConfig, folder: Path) -> list[str]:
    """What the plan and the run say, before the run has generated anything."""
    told = []
    with pytest.raises((ConfigError, ContextTooLong)) as planned:
        refuse_bad_start(config, folder)
    told.append(str(planned.value))
    with pytest.raises((ConfigError, ContextTooLong)) as opened, Session(config, folder):
        pass
    assert not (folder / "journal.jsonl").exists()
    return [*told, str(opened.value)]


@pytest.mark.parametrize("fast", ["gepa", "mutation", "playbook", "espl"])
def test_a_reflection_that_cannot_fit_the_policy_is_refused(fast: str, tmp_path: Path) -> None:
    config = tiny_config(fast={"type": fast, "reflection": OWN})
    planned, opened = refusals(config, tmp_path / "test" / "fst-s0")
    assert planned == opened
    assert "fast.reflection.max_new_tokens = 256 pass the model's window of 512" in planned
    assert "set fast.reflection.type to" in planned


def test_a_reflection_that_could_fit_names_how_long_it_may_be(tmp_path: Path) -> None:
    fast = {"type": "espl", "crossover_prob": 0, "reflection": OWN}
    planned, opened = refusals(tiny_config(fast=fast), tmp_path / "test" / "fst-s0")
    assert planned == opened
    most = int(planned.split("lower fast.reflection.max_new_tokens to ")[1].split()[0])
    fast["reflection"] = {**OWN, "max_new_tokens": most}
    refuse_bad_start(tiny_config(fast=fast), tmp_path / "test" / "fst-s0")


@pytest.mark.parametrize(
    ("contexts", "remedy"),
    [
        ({"seed": "You are a helpful assistant."}, "or shorten contexts.seed"),
        (
            {"components": {"role": "be brief", "form": "use dashes and upper case"}},
            "or shorten contexts.components.form",
        ),
    ],
)
def test_contexts_that_no_proposal_may_be_as_long_as_are_refused(
    contexts: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    config = tiny_config(contexts={**contexts, "max_tokens": 3})
    planned, opened = refusals(config, tmp_path / "test" / "fst-s0")
    assert planned == opened
    assert "contexts.max_tokens = 3 is below the" in planned and planned.endswith(remedy)


def test_where_nothing_is_proposed_the_limit_is_not_read(tmp_path: Path) -> None:
    config = tiny_config(contexts={"max_tokens": 3}, fast={"type": "none"})
    refuse_bad_start(config, tmp_path / "test" / "rl-s0")


@pytest.mark.parametrize(
    "change",
    [
        {"policy": {"type": "tiny", "max_new_tokens": 600}},
        {"contexts": {"seed": "dashes " * 600}},
        {"start_from": "no/such-s0"},
        {"contexts": {"start_from": "no/such-s0"}},
    ],
    ids=["max_new_tokens", "seed", "start_from", "contexts.start_from"],
)
def test_a_plan_refuses_what_the_run_refuses(change: dict[str, Any], tmp_path: Path) -> None:
    planned, opened = refusals(tiny_config(**change), tmp_path / "test" / "fst-s0")
    assert planned == opened


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('start_from="no/such-s0"', "no/such-s0: there is no run in it; run it first"),
        ("policy.max_new_tokens=600", "lower policy.max_new_tokens, or shorten contexts.seed"),
        ("contexts.max_tokens=3", "contexts.max_tokens = 3 is below"),
        ('fast.reflection={"type":"policy"}', "set fast.reflection.type to"),
    ],
)
def test_the_command_says_so_in_one_sentence(change: str, told: str, tmp_path: Path) -> None:
    config, runs = write_config(tmp_path), tmp_path / "runs"
    answer = call("run", config, "--dry-run", "--runs", runs, "--set", change)
    assert answer.code == 1 and not runs.exists()
    assert answer.err.startswith("error: ") and told in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_plan_without_the_model_here_is_still_a_plan(tmp_path: Path) -> None:
    hub = '{"type":"hub","model":"nobody/has-this","parameters":1000}'
    answer = call("run", write_config(tmp_path), "--dry-run", "--set", f"policy={hub}")
    assert answer.code == 0
    assert "not here yet: policy.model = 'nobody/has-this'" in answer.err


@pytest.mark.parametrize("own", [False, True])
def test_the_room_for_a_context_counts_what_its_role_costs(own: bool) -> None:
    """A context as long as the room fits, whether a problem has a system message of its own."""
    chats = Chats(load_tokenizer(str(TINY), None))
    config = tiny_config()
    problem = Problem("0", "x", ({"role": "user", "content": "Say b."},), "b")
    if own:
        system = {"role": "system", "content": "Be kind."}
        problem = replace(problem, messages=(system, *problem.messages))
    tasks = SimpleNamespace(train=lambda _: problem)
    room = room_for_context(config, tasks, [problem], chats, 512)  # type: ignore[arg-type]
    text = "a" * room
    assert chats.count_tokens(text) == room
    prompt = chats.prompt_ids(messages_for(Context(text), problem))
    assert len(prompt) + config.policy.max_new_tokens == 512
