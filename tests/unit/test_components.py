"""Contexts of several named components: records, config, search, and where they are shown."""

import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from gepa.proposer.merge import find_common_ancestor_pair
from mlflow import MlflowClient
from pydantic import ValidationError
from rich.console import Console

from fst_core.checkpoint import State, read_state, write_checkpoint
from fst_core.config.contexts import ContextsConfig
from fst_core.config.fast import GepaConfig, RulesReflection
from fst_core.config.model import ConfigError
from fst_core.context_view import read_lineage, slot_panels
from fst_core.fast.adapter import Adapter, Shot
from fst_core.fast.components import MERGE, candidate_of, lift, lowered, parts_of, text_of
from fst_core.fast.gepa import GepaFast
from fst_core.fast.language_model import prompt_for
from fst_core.fast.reflection import Example, Gate, Job, Peer, Proposal
from fst_core.fast.rules import Rules
from fst_core.policy.base import ContextTooLong
from fst_core.records import (
    Context,
    content_id,
    context_from_json,
    joined,
    population_from_json,
    seeded,
    to_json,
)
from fst_core.report.contexts import run_contexts
from fst_core.report.runs import read_run
from fst_core.session import Session, first_population
from fst_core.tracking import sync
from tests.journals import end
from tests.journals import start as begin
from tests.runs import tiny_config
from tests.unit.simulated import Simulated, count_words, random_words

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"role": "You are a helpful assistant.", "format": "Answer the question."}
TEXT = "You are a helpful assistant.\nAnswer the question."
LONG = {"metric_calls": 600, "merge": True}


def context(**parts: str) -> Context:
    return Context(joined(parts.values()), parts=tuple(parts.items()))


def start(size: int = 4):
    return seeded(TEXT, size, tuple(PARTS.items()))


@pytest.fixture
def policy() -> Simulated:
    return Simulated(tuple(random_words(1, 3)))


def fast(policy, run_seed=3, max_tokens=200, reflection=None, **settings):
    reflection = reflection or Rules(RulesReflection(), lambda text: True)
    return GepaFast(
        GepaConfig(**settings), policy, reflection, run_seed, 4, max_tokens, count_words
    )


# Records


def test_the_policy_reads_components_one_below_the_other():
    assert joined(PARTS.values()) == TEXT
    assert joined(["a", "", "b"]) == "a\nb" and joined(["a"]) == "a" and joined([""]) == ""


def test_components_survive_json_in_order():
    made = context(role="A", format="", tone="B")
    data = json.loads(json.dumps(to_json(made)))
    assert list(data["parts"].items()) == [("role", "A"), ("format", ""), ("tone", "B")]
    assert context_from_json(data) == made and made.id == content_id("A\nB")
    population = start()
    assert population_from_json(json.loads(json.dumps(to_json(population)))) == population


def test_a_context_of_one_text_is_written_as_ever():
    assert list(to_json(Context("a"))) == ["text", "parents", "cycle", "operator"]


def test_a_checkpoint_keeps_components(tmp_path):
    state = State(0, 1, 2, start(), {}, "hash")
    assert read_state(write_checkpoint(tmp_path, state, None, keep=1)) == state


# Config


def test_components_make_the_seed_and_a_config_without_them_is_what_it_was():
    config = ContextsConfig(components=PARTS)
    assert config.seed == TEXT and config.parts == tuple(PARTS.items())
    assert ContextsConfig.model_validate(config.model_dump()) == config
    assert "components" not in ContextsConfig().model_dump() and ContextsConfig().parts == ()
    assert not {"merge", "max_merges"} & GepaConfig().model_dump().keys()
    settings = GepaConfig(merge=True, max_merges=2)
    assert GepaConfig.model_validate(settings.model_dump()) == settings


MERGING = {"merge": True, "anchors": 5}


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"contexts": {"seed": "x", "components": PARTS}}, "both seed and components .*leave one"),
        ({"contexts": {"components": {}}}, "at least 1 item"),
        ({"contexts": {"components": {"a b": "x"}}}, "pattern"),
        ({"contexts": {"components": {"a": 3}}}, "valid string"),
        ({"contexts": {"components": {"type": "x"}}}, "called type; give it another name"),
        *(
            (
                {"contexts": {"components": PARTS}, "fast": {"type": name}},
                f"'{name}' evolves a context as one text, .* set fast.type = 'gepa'",
            )
            for name in ("espl", "mutation", "playbook")
        ),
        ({"fast": MERGING}, "name two or more in contexts.components"),
        ({"fast": MERGING, "contexts": {"components": {"a": "x"}}}, "name two or more"),
        ({"fast": {"merge": True}, "contexts": {"components": PARTS}}, "has 4; raise fast.anchors"),
        (
            {
                "fast": MERGING,
                "contexts": {"components": PARTS},
                "loop": {"cycle_steps": 1, "problems_per_step": 2},
            },
            "has 2; raise .*loop.problems_per_step",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(tables, told):
    with pytest.raises(ValidationError, match=told):
        tiny_config(**tables)


@pytest.mark.parametrize(
    ("contexts", "named", "shorten"),
    [
        ({"seed": "word " * 900}, "contexts.seed", "contexts.seed"),
        (
            {"components": {"role": "word " * 9, "format": "word " * 900}},
            "contexts.components",
            "contexts.components.format",
        ),
    ],
)
def test_a_start_beyond_the_window_is_named(contexts, named, shorten, tmp_path):
    told = rf"^{named} has \d+ tokens, .*, or shorten {shorten} or the problems$"
    config = tiny_config(contexts=contexts)
    with pytest.raises(ContextTooLong, match=told), Session(config, tmp_path / "run"):
        """It does not open."""


def test_what_can_work_is_not_refused():
    tiny_config(contexts={"components": PARTS}, fast=MERGING)
    tiny_config(contexts={"components": PARTS}, fast={"type": "none"})


@pytest.mark.parametrize("other", [Context(TEXT), context(role="a", tone="b")])
def test_a_population_of_other_components_is_refused(other, tmp_path):
    first = tmp_path / "first" / "fst-s0"
    end(begin(first, "fst", 0), 0)
    state = State(0, 1, 0, seeded(other.text, 2, other.parts), {}, "h")
    write_checkpoint(first / "checkpoints", state, None, 1)
    contexts = {"components": PARTS, "start_from": "first/fst-s0"}
    with pytest.raises(ConfigError, match=r"names role, format, but .* leave contexts.components"):
        first_population(tiny_config(contexts=contexts), tmp_path / "second" / "fst-s0")
    kept = first_population(
        tiny_config(contexts={"start_from": "first/fst-s0"}), tmp_path / "second" / "fst-s0"
    )
    assert kept.best == other


# Candidates


def test_a_candidate_is_the_context_and_back():
    made = context(role="A", format="B")
    assert parts_of(candidate_of(made)) == made.parts and text_of(candidate_of(made)) == "A\nB"
    assert candidate_of(Context("A")) == {"context": "A"} and parts_of({"context": "A"}) == ()
    assert parts_of(candidate_of(context(context="A"))) == (("context", "A"),)


def test_gepa_s_merge_fails_on_an_ancestor_without_reward_and_lifting_it_helps():
    scores = [{0: 0.0, 1: 0.0}, {0: 0.0, 1: 1.0}, {0: 1.0, 1: 0.0}]
    state = SimpleNamespace(prog_candidate_val_subscores=scores)

    def pair():
        means = [sum(row.values()) / 2 for row in scores]
        candidates = [{"a": "0", "b": "0"}, {"a": "1", "b": "0"}, {"a": "0", "b": "1"}]
        rng = SimpleNamespace(sample=lambda *_: [1, 2], choices=random.choices)
        return find_common_ancestor_pair(rng, [[], [0], [0]], [1, 2], ([], []), means, candidates)

    with pytest.raises(ValueError, match="greater than zero"):
        pair()
    lift(state)
    assert pair() == (1, 2, 0)
    assert [[lowered(s) for s in row.values()] for row in scores] == [[0, 0], [0, 1], [1, 0]]


# Search


def test_a_merge_search_from_a_seed_without_reward(policy):
    evolution = fast(policy, **LONG).evolve(start(), policy.problems(64), 0)
    assert evolution.candidates[0].scores == (0.0,) * 16
    made = [c.context for c in evolution.candidates[1:]]
    merged = [c for c in made if c.operator == MERGE]
    assert merged and len(merged) == evolution.metrics["fast/merges_accepted"]
    assert len(made) == evolution.accepted + len(merged)
    parts = {c.context.id: dict(c.context.parts) for c in evolution.candidates}
    for child in merged:
        one, two = (parts[parent] for parent in child.parents)
        for name, text in child.parts:
            assert text in (one[name], two[name])
        assert dict(child.parts) not in (one, two)
    assert len(parts) == len(evolution.candidates)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("limit", [*range(60, 300, 23), 700])
def test_the_ledger_counts_merges_and_stays_below_the_limit(policy, limit, samples):
    settings = {"anchors": 6, "proposals": 1, "minibatch": 2, "samples_per_anchor": samples}
    part = fast(policy, metric_calls=limit, merge=True, **settings)
    population, run = start(), tiny_config(contexts={"components": PARTS})
    for cycle in range(2):
        policy.rollouts = policy.calls = 0
        evolution = part.evolve(population, policy.problems(30), cycle)
        population = evolution.population
        assert evolution.metric_calls == policy.rollouts <= limit
        assert evolution.generate_calls == policy.calls
        bounds = part.config.bounds(30, run)
        assert policy.calls <= bounds.calls and evolution.proposals <= bounds.reflections


def test_every_child_changes_one_component_and_they_take_turns(policy):
    evolution = fast(policy, metric_calls=600).evolve(start(), policy.problems(64), 0)
    by_id = {c.context.id: c.context for c in evolution.candidates}
    changed = Counter()
    for child in list(by_id.values())[1:]:
        old = dict(by_id[child.parents[0]].parts)
        (name,) = [name for name, text in child.parts if text != old[name]]
        changed[name] += 1
        assert child.text == joined(dict(child.parts).values())
    assert set(changed) == set(PARTS)


def test_every_component_s_reflection_sees_the_whole(policy):
    class Asked(Rules):
        jobs: list[Job] = []  # noqa: RUF012

        def propose(self, jobs):
            self.jobs += jobs
            return super().propose(jobs)

    reflection = Asked(RulesReflection(), lambda text: True)
    fast(policy, reflection=reflection).evolve(start(), policy.problems(64), 0)
    names = [job.component for job in reflection.jobs[:4]]
    assert names == ["role", "format", "role", "format"]
    for job in reflection.jobs:
        assert dict(job.parts)[job.component] == job.context
        assert job.whole(job.context) not in [peer.context for peer in job.pool]
        assert all(example.problem for example in job.examples)


def test_a_merge_that_is_refused_costs_nothing_and_loses(policy):
    """A later question of gepa's to the adapter is a merge."""
    gate, first = Gate(10, count_words), context(**PARTS)
    adapter = Adapter(policy, [first], lambda n: n, gate)
    shots = [Shot(problem) for problem in policy.problems(5)]
    assert adapter.evaluate(shots, candidate_of(first)).scores == [0.0] * 5
    adapter.known = lambda: [TEXT]
    for made in (first, context(role="word " * 9, format="Two words.")):
        assert adapter.evaluate(shots, candidate_of(made)).scores == [-1.0] * 5
    assert gate.rejected == {"repeated": 1, "too_long": 1}
    assert (adapter.merges, adapter.metric_calls, policy.rollouts) == (2, 5, 5)
    adapter.evaluate(shots, candidate_of(context(role="Hi.", format="Ho.")))
    assert (adapter.merges, adapter.metric_calls, policy.rollouts) == (3, 10, 10)


TIED = """
import random
from gepa.proposer.merge import sample_and_attempt_merge_programs_by_common_predictors as merge
from fst_core.fast.components import Name
for kind in (str, Name):
    programs = [{kind(c): f"{c}{n}" for c in "abcdefghijklmnop"} for n in range(3)]
    programs[2][kind("a")] = "a0"
    made = merge([1, 2, 2], random.Random(0), [1, 2], ([], []), programs, [[], [0], [0]])
    print(*made[0].values())
"""


def test_a_merge_is_the_same_in_every_process():
    """gepa draws a parent for each component that both changed, while it walks a set of names."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", TIED],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]
    (plain, named), (other, again) = outputs
    assert plain != other and named == again


# Reflection


def job(component: str, **more) -> Job:
    return Job(PARTS[component], component=component, parts=tuple(PARTS.items()), **more)


def test_a_model_is_told_which_part_it_edits_and_what_the_others_say():
    example = Example("Q?", "a", 0.0, ("Wrong.",))
    (message,) = prompt_for(job("format", examples=(example,)))
    assert "```\nAnswer the question.\n```" in message["content"]
    assert 'called "format"' in message["content"]
    assert f"role: {PARTS['role']}" in message["content"]
    (plain,) = prompt_for(Job(TEXT, (example,)))
    assert f"```\n{TEXT}\n```\n\nWith them" in plain["content"]


def test_the_gate_looks_at_the_whole():
    gate = Gate(5, count_words)
    whole = job("role", examples=()).whole
    assert gate.admit(Proposal("Hi.", "x"), {"Hi."}, whole) == "Hi."
    assert gate.admit(Proposal("Hi.", "x"), {"Hi.\nAnswer the question."}, whole) is None
    assert gate.admit(Proposal("One two three.", "x"), (), whole) is None
    assert gate.admit(Proposal(" ", "x"), (), whole) is None
    assert gate.rejected == {"repeated": 1, "too_long": 1, "empty": 1}


def test_rules_repeat_nothing_that_another_component_says():
    said = Example("Q?", "a", 0.0, ("Answer the question.", "Bow."))
    none = {f"{n}_weight": 0 for n in ("example", "drop", "replace", "merge")}
    rules = Rules(RulesReflection(**none), lambda text: True)
    for seed in range(20):
        (proposal,) = rules.propose([job("role", examples=(said,), seed=seed)])
        assert proposal.text == f"{PARTS['role']}\nBow."


def test_rules_merge_a_component_with_a_peer_s_and_name_its_context():
    peer = Peer("Be brief.", 0.5, "Whole.\nBe brief.")
    none = {f"{n}_weight": 0 for n in ("example", "drop", "replace", "lesson")}
    rules = Rules(RulesReflection(**none), lambda text: "Answer the question." in text)
    (proposal,) = rules.propose([job("role", examples=(), pool=(peer,))])
    assert proposal.text == f"{PARTS['role']}\nBe brief."
    assert proposal.parents == (content_id("Whole.\nBe brief."),)


# Where they are shown


@pytest.fixture
def shown(tmp_path, policy):
    """A run folder whose one fast phase evolved two components, and the best context."""
    folder = tmp_path / "fst-s0"
    writer = begin(folder, "fst", 0, contexts={"components": PARTS, "size": 4})
    evolution = fast(policy).evolve(start(), policy.problems(64), 0)
    ledger = writer.use("fast", evolution.metric_calls)
    writer.add("fast", cycle=0, step=0, evolution=to_json(evolution), seconds=1.0, ledger=ledger)
    writer.add("checkpoint", step=0, name="0001", next_phase=1)
    return folder, evolution.population.best


def test_a_terminal_shows_each_component(shown):
    folder, best = shown
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*slot_panels(read_lineage(folder)))
    text = console.export_text()
    for name, part in best.parts:
        assert f"{name}: {part.splitlines()[0]}" in text


def test_the_report_shows_each_component(shown):
    folder, best = shown
    page = str(run_contexts(read_run(folder)))
    for name, part in best.parts:
        assert f"<p>{name}</p><pre>{part}</pre>" in page


def test_a_prompt_s_version_has_each_component_as_a_tag(shown, uri):
    folder, best = shown
    sync(folder, uri)
    client = MlflowClient(tracking_uri=uri)
    (prompt,) = client.search_prompts()
    version = client.get_prompt_version_by_alias(prompt.name, "best")
    assert version.template == best.text
    assert {name: version.tags[f"fst.component.{name}"] for name in PARTS} == dict(best.parts)
