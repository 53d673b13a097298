"""E-SPL: one phase against hand-computed truth, its stages of reflection, its use in a run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fst_core.checkpoint import list_checkpoints, read_state
from fst_core.config.fast import RulesReflection
from fst_core.fast.base import Evolution, FastTools
from fst_core.fast.espl import Espl, EsplConfig, make
from fst_core.fast.language_model import FIELD_CHARACTERS
from fst_core.fast.operations import LEAST_CHARACTERS, apply, fewer, numbered, read_ops
from fst_core.fast.principles import ModelWriter, RulesWriter, Written
from fst_core.fast.ratings import Rating, of_crossover, of_mutation, rate
from fst_core.fast.reflection import Example, ReflectionError, Tried
from fst_core.journal import comparable
from fst_core.policy.base import ContextTooLong
from fst_core.records import (
    Completion,
    Context,
    Population,
    Rollout,
    StopReason,
    Verdict,
    population_from_json,
    seeded,
    to_json,
)
from tests.runs import run, tiny_config
from tests.unit.simulated import Simulated, count_words, random_words

A, B, C = (Context(text) for text in ("Be kind.", "Be brief.", "Be bold."))
NO_CHANCE = EsplConfig(crossover_prob=0)


def refused(*_: object) -> Any:
    raise AssertionError("E-SPL asked for a rollout of its own")


def tools(size: int = 3, **changes: Any) -> FastTools:
    plain = FastTools(refused, lambda problem: problem.reference, None, 7, size, 50, count_words)
    return replace(plain, **changes)


def slow(context: Context, problem: str, *rewards: float) -> list[Rollout]:
    return [
        Rollout(
            problem,
            context.id,
            Completion((), (), f"{problem} {n}", StopReason.STOP, 0),
            Verdict(reward, () if reward else ("Bow first.",)),
            0,
            f"What is {problem}?",
        )
        for n, reward in enumerate(rewards)
    ]


class Scripted:
    """A writer that gives what it is told to, and keeps what it was asked."""

    def __init__(self, mutant: str | None = "New.", crossed: str | None = "Crossed.") -> None:
        self.mutant, self.crossed = mutant, crossed
        self.usage: dict[str, float] = {}
        self.mutated: list[tuple[str, Sequence[Tried], Sequence[str]]] = []
        self.asked: list[dict[str, Sequence[str]]] = []

    def mutate(self, parent, tried, pool, seed) -> Written:
        self.mutated.append((parent, tried, pool))
        return Written(self.mutant, (), 1, 1)

    def cross(self, won, pool, seed) -> Written:
        self.asked.append(dict(won))
        return Written(self.crossed, (Context(list(won)[1]).id,), 1, 1)


MATCH = [  # mean rewards: A 0.5, B 0.75, C 0.25; A alone wins q, B alone wins p
    *slow(A, "p", 0, 0),
    *slow(A, "q", 1, 1),
    *slow(B, "p", 1, 1),
    *slow(B, "q", 1, 0),
    *slow(C, "p", 0.5, 0),
    *slow(C, "q", 0.5, 0),
]


def evolve(
    settings: EsplConfig = NO_CHANCE,
    writer: Any = None,
    population: Population = Population((A, B, C)),  # noqa: B008 - frozen
    recent: Sequence[Rollout] = MATCH,
    cycle: int = 3,
    **changes: Any,
) -> Evolution:
    part = Espl(settings, tools(**changes), writer or Scripted())
    return part.evolve(population, [], cycle, recent)


def pool_in(evolution: Evolution) -> dict[str, Rating]:
    rows = evolution.population.memory["pool"]
    return {row["context"]["text"]: Rating(row["mu"], row["sigma"]) for row in rows}


def test_one_match_rates_the_contexts_and_mutates_the_winner() -> None:
    writer = Scripted()
    evolution = evolve(writer=writer)
    a, b, c = rate([Rating()] * 3, (0.5, 0.75, 0.25))
    child = of_mutation(b)
    assert pool_in(evolution) == {A.text: a, B.text: b, C.text: c, "New.": child}
    assert b.lower > child.lower > a.lower  # slot 0 is what evaluation shows
    # lucb: the champion B, then the highest upper bound of the others: the child, then A
    assert [x.text for x in evolution.population.contexts] == [B.text, "New.", A.text]
    assert evolution.population.contexts[1] == Context("New.", (B.id,), 3, "mutation")
    assert evolution.population.scores == ((1.0, 0.5), (), (0.0, 1.0))
    ((parent, tried, pool),) = writer.mutated
    assert parent == B.text and list(pool) == [A.text, B.text, C.text]
    assert [(t.question, t.score) for t in tried] == [("What is p?", 1), ("What is q?", 0.5)]
    assert all(t.solution is None for t in tried)
    assert (evolution.metric_calls, evolution.generate_calls, evolution.reused) == (0, 0, 12)
    assert (evolution.proposals, evolution.accepted, evolution.reflection_calls) == (1, 1, 1)
    assert not writer.asked


def test_a_crossover_has_the_winner_and_others_with_wins_as_parents() -> None:
    writer = Scripted()
    evolution = evolve(EsplConfig(crossover_prob=1), writer)
    assert writer.asked == [{B.text: ("What is p?",), A.text: ("What is q?",)}]
    a, b, _ = rate([Rating()] * 3, (0.5, 0.75, 0.25))
    pool = pool_in(evolution)
    assert pool["Crossed."] == of_crossover([b, a]) and list(pool)[-2:] == ["Crossed.", "New."]
    crossed = next(c.context for c in evolution.candidates if c.context.text == "Crossed.")
    assert crossed == Context("Crossed.", (B.id, A.id), 3, "crossover")
    assert (evolution.proposals, evolution.accepted) == (2, 2)


def test_there_is_no_crossover_without_two_winners_of_problems() -> None:
    writer = Scripted()
    one_sided = [*slow(A, "p", 0, 0), *slow(B, "p", 1, 1), *slow(C, "p", 0, 0)]
    evolve(EsplConfig(crossover_prob=1), writer, recent=one_sided)
    tied = [*slow(A, "p", 1, 0), *slow(B, "p", 0, 1), *slow(C, "p", 0, 0)]
    evolve(EsplConfig(crossover_prob=1), writer, recent=tied)
    assert not writer.asked and len(writer.mutated) == 2


def test_equal_winners_give_way_to_the_newest() -> None:
    writer = Scripted()
    evolve(writer=writer, recent=[r for c in (A, B, C) for r in slow(c, "p", 0, 0)])
    assert writer.mutated[0][0] == C.text


def test_the_pool_drops_its_oldest_and_only_the_window_may_run() -> None:
    settings = EsplConfig(crossover_prob=0, max_pool_size=3, window=2)
    evolution = evolve(settings)
    assert list(pool_in(evolution)) == [B.text, C.text, "New."]
    assert {c.text for c in evolution.population.contexts} == {C.text, "New."}


def test_the_newest_child_always_runs() -> None:
    for selection in ("uniform", "ucb", "lucb", "softmax"):
        for cycle in range(20):
            settings = EsplConfig(crossover_prob=0, selection=selection)
            slots = evolve(settings, size=2, cycle=cycle).population.contexts
            assert "New." in {c.text for c in slots} and len(slots) == 2


@pytest.mark.parametrize(
    ("text", "reason"), [(A.text, "repeated"), (" ", "empty"), ("word " * 51, "too_long")]
)
def test_unusable_children_are_counted_and_join_no_pool(text: str, reason: str) -> None:
    evolution = evolve(writer=Scripted(text))
    assert evolution.rejected == {reason: 1} and evolution.accepted == 0
    assert list(pool_in(evolution)) == [A.text, B.text, C.text]


def test_a_child_that_was_not_written_is_none() -> None:
    evolution = evolve(writer=Scripted(None))
    assert (evolution.rejected, evolution.accepted) == ({}, 0)


def test_nothing_is_rated_before_the_first_rollouts() -> None:
    writer = Scripted()
    start = seeded("Help.", 3)
    evolution = evolve(writer=writer, population=start, recent=())
    assert evolution.population.contexts == start.contexts and not writer.mutated
    assert pool_in(evolution) == {"Help.": Rating()}


def test_a_context_in_several_slots_is_one_entry_and_alone_keeps_its_rating() -> None:
    only = Context("Help.")
    evolution = evolve(population=seeded("Help.", 3), recent=slow(only, "p", 1, 0, 0, 0))
    assert pool_in(evolution) == {"Help.": Rating(), "New.": of_mutation(Rating())}
    assert [c.text for c in evolution.population.contexts] == ["Help.", "New.", "New."]


def test_solutions_are_shown_only_where_asked_for() -> None:
    world = Simulated(("ho",))
    for shown, expected in ((False, None), (True, "a0 ho")):
        settings, writer = EsplConfig(crossover_prob=0, show_solutions=shown), Scripted()
        part = Espl(settings, tools(), writer)
        first = part.evolve(Population((A, B, C)), world.problems(1), 0)
        assert ("ho" in json.dumps(first.population.memory)) == shown
        part.evolve(first.population, [], 1, [*slow(A, "p0", 1, 0), *slow(B, "p0", 0)])
        assert [t.solution for t in writer.mutated[0][1]] == [expected]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"slow": {"type": "none"}}, "slow.type = 'none'"),
        ({"contexts": {"size": 1}}, "contexts.size"),
    ],
)
def test_a_run_in_which_nothing_is_compared_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        tiny_config(fast={"type": "espl"}, **changes)


def test_the_most_that_a_phase_uses() -> None:
    config = tiny_config(fast={"type": "espl"})
    bounds = config.fast.bounds(8, config)
    assert config.fast.reads is None and (bounds.rollouts, bounds.reflections) == (0, 2)
    model = {"type": "huggingface", "model": "x"}
    config = tiny_config(fast={"type": "espl", "reflection": model})
    # T x B = 8 problems, G = 4 summaries and a critique each, consolidation and crossover
    assert config.fast.bounds(8, config).reflections == 8 * 5 + 2


# The three stages


def answer_in(prompts: list[str], replies: dict[str, str]) -> Any:
    """A chat that finds its reply by a phrase of the prompt, and keeps the prompts of each call."""

    def chat(chats: Sequence[Any], seeds: Sequence[int]) -> list[str]:
        assert len(chats) == len(seeds) == len(set(seeds))
        contents = [c[-1]["content"] for c in chats]
        prompts.append("\n=====\n".join(contents))
        return [next(reply for key, reply in replies.items() if key in text) for text in contents]

    return chat


def tried(question: str, *rewards: float, solution: str | None = None) -> Tried:
    examples = [Example(question, f"answer {n}", r, ("Bow.",)) for n, r in enumerate(rewards)]
    return Tried(question, tuple(examples), solution)


REPLIES = {
    "Retell": "It forgot to bow.",
    "Why?": '[{"op": "add", "text": "Bow\\nfirst."}, {"op": "modify", "id": "G0", "text": "Be very '
    'kind."}, {"op": "add", "text": "A third one."}]',
    "How?": "I would not change a thing.",
    "Tidy": 'Merged [G1] and [C0]: [{"op": "merge", "ids": ["G1", "C0"], "text": "Bow, be brief."},'
    ' {"op": "modify", "id": "G0", "text": "Be very kind."}, {"op": "remove", "id": "G0"},'
    ' {"op": "modify", "id": "G9", "text": "Nobody."}]',
}


def test_mutation_by_a_language_model_has_three_stages() -> None:
    prompts: list[str] = []
    writer = ModelWriter(answer_in(prompts, REPLIES), dict, 2)
    batch = [tried("Why?", 1, 0, 0), tried("How?", 0.5), tried("All right?", 1, 1), tried("No?", 0)]
    written = writer.mutate("Be kind.\nBe brief.", batch, [], 5)
    summaries, critiques, consolidation = prompts
    assert summaries.count("Retell") == 4 and "All right?" not in summaries
    assert "No?" not in summaries and "[G1] Be brief." in summaries and "Remark" in summaries
    assert critiques.count("at most 2 changes") == 2 and critiques.count("It forgot to bow.") == 4
    assert "[C0] Bow first." in consolidation and "third" not in consolidation  # two ops at most
    assert "[G0] Be very kind." in consolidation and "merge" in consolidation
    assert written.text == "Be very kind.\nBow, be brief."
    assert (written.calls, written.texts) == (3, 4 + 2 + 1)
    # a critique without a list, a removal where none is allowed, a line that is not there
    assert written.malformed == 3


def test_no_solution_is_in_a_prompt_unless_it_was_given() -> None:
    for solution in (None, "forty-two"):
        prompts: list[str] = []
        writer = ModelWriter(answer_in(prompts, REPLIES), dict, 2)
        writer.mutate("Be kind.", [tried("Why?", 1, 0, solution=solution)], [], 5)
        assert prompts[0].count("forty-two") == (2 if solution else 0)
        assert prompts[1].count("forty-two") == (1 if solution else 0)


def test_without_mixed_outcomes_only_the_consolidation_is_asked() -> None:
    prompts: list[str] = []
    writer = ModelWriter(answer_in(prompts, {"Tidy": "[]"}), dict, 2)
    written = writer.mutate("Be kind.", [tried("Why?", 1, 1)], [], 5)
    assert (len(prompts), written.text, written.calls, written.malformed) == (1, "Be kind.", 1, 0)
    nothing = writer.mutate("", [tried("Why?", 0)], [], 5)
    assert (len(prompts), nothing.text, nothing.calls) == (1, None, 0)


def test_crossover_by_a_language_model_sees_principles_and_questions_won() -> None:
    prompts: list[str] = []
    reply = '```json\n[{"op": "remove", "id": "G0"}, {"op": "add", "text": "Be bold."}]\n```'
    writer = ModelWriter(answer_in(prompts, {"List A": reply}), dict, 2)
    won = {"Be kind.\nBe brief.": ["Why?"], "Bow.": ["How?", "When?"]}
    written = writer.cross(won, [], 5)
    assert written.text == "Be brief.\nBe bold."
    assert written.parents == (Context("Bow.").id,) and (written.calls, written.texts) == (1, 1)
    assert "List B:\n[G0] Bow.\nBetter on:\n- How?\n- When?" in prompts[0]
    none = ModelWriter(answer_in([], {"List A": "[]"}), dict, 2).cross(won, [], 5)
    assert (none.text, none.malformed) == (None, 0)


def test_malformed_replies_are_counted_in_the_phase() -> None:
    writer = ModelWriter(lambda chats, seeds: ["Let me think."] * len(chats), dict, 2)
    evolution = evolve(writer=writer)
    # one problem of B has mixed outcomes: its critique and the consolidation hold no list
    assert evolution.rejected == {"repeated": 1, "malformed": 2}
    assert evolution.metrics["fast/reflections"] == 2 + 1 + 1


def test_prompts_that_do_not_fit_are_cut_until_they_do_or_refused() -> None:
    def narrow(limit: int) -> Any:
        def chat(chats: Sequence[Any], seeds: Sequence[int]) -> list[str]:
            if max(len(c[0]["content"]) for c in chats) > limit:
                raise ContextTooLong("too long")
            return ["[]"] * len(chats)

        return chat

    batch = [Tried("Why?", (Example("Why?", "x" * 5000, 1.0), Example("Why?", "y", 0.0)))]
    assert ModelWriter(narrow(1500), dict, 2).mutate("Be kind.", batch, [], 5).text == "Be kind."
    with pytest.raises(ReflectionError, match="does not fit"):
        ModelWriter(narrow(100), dict, 2).mutate("Be kind.", batch, [], 5)


def test_lists_are_cut_with_the_fields() -> None:
    assert fewer("abcdefgh", FIELD_CHARACTERS) == "abcdefgh"
    assert fewer("abcdefgh", FIELD_CHARACTERS // 2) == "abcd"
    assert (fewer("abc", LEAST_CHARACTERS), fewer("", LEAST_CHARACTERS)) == ("a", "")


@pytest.mark.parametrize(
    ("reply", "kinds", "malformed"),
    [
        (None, [], 1),
        ("", [], 1),
        ("[", [], 1),
        ("[" * 100_000, [], 1),
        ("[]", [], 0),
        ('{"op": "add", "text": "x"}', [], 1),
        ('[{"op": "add"}, {"op": "add", "text": 3}, {"op": "fly", "text": "x"}, 7]', [], 1),
        ('[{"op": "add"}, {"op": "add", "text": 3}, {"op": "fly", "text": "x"}]', [], 3),
        ('[{"op": "merge", "ids": ["G0"], "text": "x"}, {"op": "add", "text": "y"}]', ["add"], 1),
        ('<think>[{"op": "add", "text": "x"}]</think>[{"op": "add", "text": "y"}]', ["add"], 0),
        ('See [G0].\n```json\n[{"op": "remove", "id": "G0"}]\n```', ["remove"], 0),
        ('[{"op": "add", "text": "a"}, {"op": "add", "text": "b"}, {"op": "add", "text": "c"}]',
         ["add", "add"], 0),
    ],
)  # fmt: skip
def test_operations_are_read_from_any_reply(reply, kinds, malformed) -> None:
    ops, broken = read_ops(reply, ("add", "modify", "merge", "remove"), 2)
    assert ([op.kind for op in ops], broken) == (kinds, malformed)


def test_operations_change_the_lines_they_name() -> None:
    reply = (
        '[{"op": "merge", "ids": ["G2", "G0"], "text": "ac"}, {"op": "remove", "id": "G1"},'
        '{"op": "add", "text": "e"}, {"op": "modify", "id": "G1", "text": "gone"},'
        '{"op": "add", "text": "d"}]'
    )
    ops, _ = read_ops(reply, ("add", "modify", "merge", "remove"))
    assert apply(ops, numbered(["a", "b", "c", "d"])) == (["ac", "d", "e"], 1)


# Rules


def test_rules_cross_by_joining_and_mutate_without_joining() -> None:
    writer = RulesWriter(RulesReflection(), lambda text: True)
    child = writer.cross({"Be kind.": ["Why?"], "Be bold.": ["How?"]}, [], 1)
    assert child.text == "Be kind.\nBe bold." and child.parents == (Context("Be bold.").id,)
    for seed in range(30):
        written = writer.mutate("Be kind.", [tried("Why?", 0, 0)], ["Be kind.", "Be bold."], seed)
        assert written.text == "Be kind.\nBow." or written.text == "Bow."


def phases(cycles: int, interrupted: bool, seed: int = 7) -> tuple[Simulated, list[Evolution]]:
    """E-SPL by rules, each phase followed by a slow step on six problems whose weights stay."""
    world = Simulated(tuple(random_words(3, 2)))
    settings = tools(4, run_seed=seed)
    part, population, found = make(EsplConfig(), settings), seeded("Help.", 4), []
    rollouts: list[Rollout] = []
    for cycle in range(cycles):
        if interrupted:
            part = make(EsplConfig(), settings)
            population = population_from_json(json.loads(json.dumps(to_json(population))))
        problems = world.problems(6, 6 * cycle)
        evolution = part.evolve(population, problems, cycle, rollouts)
        population = evolution.population
        found.append(evolution)
        pairs = [(c, p) for p in problems for c in population.contexts for _ in range(4)]
        rollouts = [
            replace(r, question=p.text)
            for (_, p), r in zip(pairs, world(pairs, range(len(pairs))), strict=True)
        ]
    return world, found


def test_same_seed_same_evolution_also_from_checkpoints() -> None:
    straight, resumed = phases(8, False)[1], phases(8, True)[1]
    as_json = [json.dumps(to_json(evolution)) for evolution in straight]
    assert as_json == [json.dumps(to_json(evolution)) for evolution in resumed]
    assert as_json != [json.dumps(to_json(e)) for e in phases(8, False, seed=8)[1]]


def test_rules_find_what_the_judge_requires() -> None:
    world, found = phases(30, False)
    best = found[-1].population.best.text.splitlines()
    assert all(world.line(word) in best for word in world.words)
    assert all(len(e.population.contexts) == 4 for e in found)


# In a run

POLICY = {"type": "policy", "max_new_tokens": 8}


@pytest.mark.parametrize(
    "fast",
    [
        {"type": "espl", "crossover_prob": 0.5},
        {"type": "espl", "reflection": POLICY, "crossover_prob": 0},
        {"type": "playbook", "anchors": 4},
    ],
    ids=["espl", "espl-policy", "playbook"],
)
def test_a_resumed_run_ends_as_if_undisturbed(tmp_path: Path, fast: dict[str, Any]) -> None:
    config = tiny_config(fast=fast, loop={"steps": 3, "cycle_steps": 1}, evaluation={"every": 0})

    class Died(Exception):
        pass

    def die_in_cycle_2(event: dict[str, Any]) -> None:
        if event["kind"] == "fast" and event["cycle"] == 2:
            raise Died

    straight = run(config, tmp_path / "straight")
    with pytest.raises(Died):
        run(config, tmp_path / "resumed", die_in_cycle_2)
    resumed = run(config, tmp_path / "resumed")
    assert comparable(resumed) == comparable(straight)
    ours, theirs = (
        read_state(list_checkpoints(tmp_path / name / "checkpoints")[-1]).population
        for name in ("resumed", "straight")
    )
    assert ours == theirs and ours.memory
    phases = [event for event in straight if event["kind"] == "fast"]
    asked = sum(event["evolution"]["metric_calls"] for event in phases)
    assert asked == phases[-1]["ledger"]["fast_rollouts"]
    assert all(len(event["evolution"]["population"]["contexts"]) == 2 for event in phases)
    bounds = config.fast.bounds(4, config)
    assert all(event["evolution"]["metric_calls"] <= bounds.rollouts for event in phases)


def test_of_many_proposed_lines_as_many_are_consolidated_as_fit() -> None:
    """And no line stays that the consolidation never saw."""
    asked: list[int] = []

    def chat(chats: Sequence[Any], seeds: Sequence[int]) -> list[str]:
        contents = [c[-1]["content"] for c in chats]
        if "Tidy" in contents[0]:
            asked.append(contents[0].count("Lesson"))
            if asked[-1] > 20:
                raise ContextTooLong("a prompt of many tokens passes the window; x")
            return ["[]"]
        return [json.dumps([{"op": "add", "text": f"Lesson {seed}."}]) for seed in seeds]

    batch = [tried(f"Question {n}?", 1, 0) for n in range(64)]
    written = ModelWriter(chat, dict, 2).mutate("Be kind.", batch, [], 5)
    assert asked == [64, 32, 16]
    assert written.text is not None and written.text.count("Lesson") == 16
    assert written.text.startswith("Be kind.") and written.malformed == 0


def test_half_a_character_in_an_operation_becomes_one_that_can_be_encoded() -> None:
    ops, malformed = read_ops(r'[{"op": "add", "text": "Be \ud83d brief \ud83d\ude00"}]', ["add"])
    assert ([op.text for op in ops], malformed) == (["Be \ufffd brief \U0001f600"], 0)
