"""What a run measures beside its curve, what it starts from, and runs over several tasks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from fst_core.checkpoint import list_checkpoints
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.environments.tasks import Tasks, problems_read
from fst_core.interleave import EvaluatePhase, FastPhase, evaluation_steps, interleave, plan
from fst_core.journal import comparable
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import Context, Problem
from fst_core.rollouts import messages_for
from fst_core.session import Session
from tests.runs import run, tiny_config

SUITE: dict[str, Any] = {
    "name": "boxes",
    "axis": "cross domain",
    "contexts": ["none", "best"],
    "problems": 3,
    "samples": 2,
    "environment": {"type": "directives", "required": ["boxed"], "told": True},
}
TASK: dict[str, Any] = {"type": "directives", "task": "echo"}
SEQUENCE: dict[str, Any] = {
    "type": "sequence",
    "task_steps": 4,
    "tasks": [
        {**TASK, "name": "dashed", "required": ["dashes"]},
        {**TASK, "name": "boxed", "required": ["boxed"]},
    ],
}


def sequence_config(**changes: Any) -> RunConfig:
    """Two tasks of four steps each."""
    loop = {"steps": 8, "cycle_steps": 2, "problems_per_step": 4, "group_size": 4}
    environment = {**SEQUENCE, **changes.pop("environment", {})}
    return tiny_config(**{"loop": loop, "environment": environment, **changes})


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == kind]


def test_the_ends_of_a_run_see_more_and_train_the_same(tmp_path: Path) -> None:
    """No context, the base weights and suites: measured at the ends, without a trace in training.

    The run without them has the same weights, populations and rewards, bit for bit.
    """
    full = tiny_config(evaluation={"suites": [SUITE]})
    plain = tiny_config(evaluation={"ends": False, "kl": False, "every": 0})
    seen, bare = run(full, tmp_path / "a" / "full"), run(plain, tmp_path / "a" / "plain")
    labels = [(e["step"], e["context"]) for e in of(seen, "evaluation")]
    both = ("seed", "best")
    assert labels == [
        *((0, c) for c in (*both, "none")),
        *((2, c) for c in both),
        *((4, c) for c in (*both, "none")),
    ]
    assert [(e["step"], e["context"], e["weights"]) for e in of(seen, "quadrant")] == [
        (4, "seed", "base"),
        (4, "best", "base"),
    ]
    suites = [(e["step"], e["suite"], e["axis"], e["context"]) for e in of(seen, "suite")]
    assert suites == [(s, "boxes", "cross domain", c) for s in (0, 4) for c in ("none", "best")]
    assert all(len(e["rewards"]) == 3 and len(e["rewards"][0]) == 2 for e in of(seen, "suite"))
    assert not of(bare, "quadrant") and not of(bare, "suite")
    for kind, field in (("slow", "metrics"), ("fast", "evolution")):
        assert [timeless(e[field]) for e in of(seen, kind)] == [
            timeless(e[field]) for e in of(bare, kind)
        ]
    weights = [
        (list_checkpoints(tmp_path / "a" / name / "checkpoints")[-1] / "slow/model.safetensors")
        for name in ("full", "plain")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if "seconds" not in k and "rollouts_per" not in k}


def test_divergence_is_named_by_its_estimator(tmp_path: Path) -> None:
    events = of(run(tiny_config(), tmp_path), "evaluation")
    for event in events:
        metrics = event["metrics"]
        assert metrics["evaluation/kl_k3"] >= 0 <= metrics["evaluation/entropy"]
        assert metrics["evaluation/kl_exact"] >= -1e-6
    assert events[-1]["metrics"]["evaluation/kl_exact"] > 1e-4
    rounding = 1e-7  # of other kernels for another batch, on some CPUs
    assert events[0]["metrics"]["evaluation/kl_exact"] == pytest.approx(0, abs=rounding)


def test_an_empty_context_adds_no_system_message() -> None:
    own = {"role": "system", "content": "Use dots."}
    asked = {"role": "user", "content": "Say hi."}
    plain, told = (Problem("p", "e", messages, "hi") for messages in ((asked,), (own, asked)))
    assert messages_for(Context(""), plain) == [asked]
    assert messages_for(Context(""), told) == [own, asked]
    assert messages_for(Context("Be brief."), plain)[0]["content"] == "Be brief."
    assert messages_for(Context("Be brief."), told) == [
        {"role": "system", "content": "Be brief.\nUse dots."},
        asked,
    ]


def test_a_run_starts_from_anothers_final_weights(tmp_path: Path) -> None:
    learnable = {"type": "directives", "task": "echo", "required": []}
    first = tiny_config(name="first", fast={"type": "none"}, environment=learnable)
    run(first, tmp_path / "first" / "rl-s0")
    probe = tiny_config(
        name="probe", fast={"type": "none"}, start_from="first/rl-s0", evaluation={"every": 0}
    )
    with Session(probe, tmp_path / "probe" / "rl-s0") as session:
        saved = list_checkpoints(tmp_path / "first" / "rl-s0" / "checkpoints")[-1] / "slow"
        theirs = LanguageModelPolicy(first.policy, saved).model.state_dict()
        mine = session.policy.model.state_dict()
        base = session.policy.base.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert any(not torch.equal(mine[name], base[name]) for name in mine)
        interleave(session)
        assert session.step_done == 4


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: None, "there is no run in"),
        (lambda folder: begin(folder), "has not ended"),
        (lambda folder: finish_without_checkpoints(folder), "holds no checkpoint"),
    ],
)
def test_a_start_that_is_not_there_is_one_sentence(
    tmp_path: Path, break_it: Any, said: str
) -> None:
    break_it(tmp_path / "first" / "rl-s0")
    config = tiny_config(start_from="first/rl-s0")
    with pytest.raises(ConfigError, match=said), Session(config, tmp_path / "probe" / "fst-s0"):
        pass


def begin(folder: Path) -> None:
    with Session(tiny_config(), folder):
        pass


def finish_without_checkpoints(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text('{"seq": 0, "time": 0, "kind": "end"}\n')


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    other = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(other).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="another architecture than the policy"):
        LanguageModelPolicy(tiny_config().policy, tmp_path)
    with pytest.raises(ConfigError, match="holds no model"):
        LanguageModelPolicy(tiny_config().policy, tmp_path / "nothing")


def test_a_sequence_switches_its_task_and_measures_all(tmp_path: Path) -> None:
    config = sequence_config(evaluation={"every": 4, "after_switch": [1]})
    assert sorted(evaluation_steps(config)) == [4, 5, 8]
    events = run(config, tmp_path / "a")
    assert [e["task"] for e in of(events, "slow")] == ["dashed"] * 4 + ["boxed"] * 4
    for event in of(events, "evaluation"):
        assert set(event["tasks"]) == {"dashed", "boxed"}
        parts = [m["evaluation/reward"] for m in event["tasks"].values()]
        assert event["metrics"]["evaluation/reward"] == pytest.approx(sum(parts) / 2)
        assert len(event["rewards"]) == 2 * 4
    assert comparable(events) == comparable(run(config, tmp_path / "b"))


def test_the_training_stream_of_a_sequence_is_task_by_task() -> None:
    tasks = Tasks(sequence_config())
    names = [tasks.train(position).environment for position in range(8 * 4)]
    assert names == ["dashed"] * 16 + ["boxed"] * 16
    first, second = (Tasks(tiny_config(environment=SEQUENCE["tasks"][i])) for i in (0, 1))
    assert [tasks.train(i) for i in range(16)] == [first.train(i) for i in range(16)]
    assert [tasks.train(16 + i) for i in range(16)] == [second.train(i) for i in range(16)]


@pytest.mark.parametrize("told", [False, True])
def test_only_a_told_run_starts_its_contexts_again(tmp_path: Path, told: bool) -> None:
    config = sequence_config(environment={"told": told})
    with Session(config, tmp_path) as session:
        given: list[bool] = []
        evolve = session.fast.evolve  # type: ignore[union-attr]

        def watched(population: Any, problems: Any, cycle: int, recent: Any) -> Any:
            fresh = {c.text for c in population.contexts} == {config.contexts.seed}
            given.append(fresh)
            return evolve(population, problems, cycle, recent)

        session.fast.evolve = watched  # type: ignore[union-attr, method-assign, assignment]
        interleave(session)
    assert given == [True, False, told, False]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loop": {"steps": 6}}, "make 8"),
        ({"environment": {"tasks": [SEQUENCE["tasks"][0]] * 2}}, "two tasks are named 'dashed'"),
        (
            {"environment": {"told": True}, "loop": {"steps": 8, "cycle_steps": 3}},
            "span the switch",
        ),
        ({"evaluation": {"suites": [{**SUITE, "name": "boxed"}]}}, "names two sets of problems"),
    ],
)
def test_a_sequence_that_does_not_add_up_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        sequence_config(**changes)


def test_pools_hold_every_task_and_suite() -> None:
    config = sequence_config(evaluation={"suites": [SUITE]})
    read = {environment.name: counts for environment, counts in problems_read(config)}
    assert read == {
        "dashed": {"train": 16, "validation": 4, "test": 4},
        "boxed": {"train": 16, "validation": 4, "test": 4},
        "boxes": {"train": 0, "validation": 0, "test": 3},
    }


def test_a_suite_reads_the_test_split_alone(tmp_path: Path) -> None:
    config = tiny_config(evaluation={"suites": [SUITE]})
    with Session(config, tmp_path) as session:
        tasks = session.tasks
        suite = {p.id for p in tasks.held_out("boxes", "test", 3)}
        trained = {tasks.train(i).text for i in range(64)}
        assert len(suite) == 3
        assert not trained & {p.text for p in tasks.held_out("boxes", "test", 3)}


def test_the_plan_of_a_sequence_measures_around_switches() -> None:
    config = sequence_config(evaluation={"every": 0, "after_switch": [1, 2, 7]})
    looks = [p.start for p in plan(config) if isinstance(p, EvaluatePhase)]
    assert looks == [0, 4, 5, 6, 8]
    assert [p.start for p in plan(config) if isinstance(p, FastPhase)] == [0, 2, 4, 6]
