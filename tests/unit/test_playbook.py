"""The playbook: counters against hand-computed truth, edits, leave-one-out slots, cost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from fst_core.config.fast import RulesReflection
from fst_core.fast.base import Evolution, FastTools
from fst_core.fast.editors import ModelEditor, RulesEditor
from fst_core.fast.lessons import Line, Op, Playbook, counted, edited, proven, pruned
from fst_core.fast.playbook import PlaybookConfig, PlaybookFast, make
from fst_core.fast.reflection import Example
from fst_core.records import (
    Completion,
    Context,
    Population,
    Rollout,
    StopReason,
    Verdict,
    population_from_json,
    seed_of,
    seeded,
    to_json,
)
from fst_core.report.figures import draw_populations
from tests.runs import tiny_config
from tests.unit.simulated import Simulated, count_words, random_words

BOOK = Playbook("Help.", (Line("L0", "Bow.", 3, 1), Line("L1", "Hop."), Line("L4", "Run.")), {}, 5)
PLAIN = PlaybookConfig(anchors=0)


def tools(roll_out: Any = None, size: int = 3, **changes: Any) -> FastTools:
    plain = FastTools(roll_out, lambda problem: None, None, 7, size, 60, count_words)
    return replace(plain, **changes)


def slow(context: Context, problem: str, *rewards: float) -> list[Rollout]:
    done = Completion((), (), "So.", StopReason.STOP, 0)
    return [
        Rollout(problem, context.id, done, Verdict(reward, ("Bow first.",)), 0, f"{problem}?")
        for reward in rewards
    ]


class Told:
    """An editor that makes the edits it is told to, and keeps what it was shown."""

    def __init__(self, *ops: Op, malformed: int = 0) -> None:
        self.ops, self.malformed = ops, malformed
        self.usage: dict[str, float] = {}
        self.shown: list[Any] = []

    def edit(self, playbook, examples, rewarded, most, seed):
        self.shown.append((playbook, examples, rewarded, most))
        return self.ops, self.malformed


def add(text: str) -> Op:
    return Op("add", (), text)


def test_a_line_helps_or_harms_by_each_problem_that_tells() -> None:
    lines = (Line("a", "A.", 1, 1), Line("b", "B."), Line("c", "C.", 2, 0))
    rewards = {
        "whole": {"p": [1, 0], "q": [1, 1], "r": [0, 0], "s": [1]},
        "no a": {"p": [0, 0], "q": [0, 1], "r": [1, 0], "unseen": [1]},
        "no b": {"p": [1, 0], "s": [1, 1]},
    }
    after = counted(lines, "whole", {"no a": "a", "no b": "b", "gone": "c"}, rewards)
    # a: p 0.5 > 0, q 1 > 0.5, r 0 < 0.5; b: no problem tells
    assert after == (
        Line("a", "A.", 3, 2, 1),
        Line("b", "B.", 0, 0, 1),
        Line("c", "C.", 2, 0, 0),
    )


def test_lines_that_harm_are_retired_and_one_that_chance_explains() -> None:
    harms, worse, doubtful, proved, untold = (
        Line("a", "A.", 1, 2, 1),
        Line("b", "B.", 5, 4, 1),  # 1 / 3 of a standard deviation
        Line("c", "C.", 9, 7, 1),  # 1 / 2
        Line("d", "D.", 10, 6, 1),  # 1
        Line("e", "E.", 0, 0, 3),
    )
    lines = (harms, worse, doubtful, proved, untold)
    assert proven(lines, 1.0) == (doubtful, proved, untold)
    assert proven((doubtful, proved, untold), 1.0) == (proved, untold)
    assert proven((proved, untold), 1.0) == (proved, untold)
    assert proven(lines, 0.0) == (worse, doubtful, proved, untold)


def test_edits_add_revise_and_retire() -> None:
    ops = [add("Sit."), Op("modify", ("L0",), "Bow low."), Op("remove", ("L1",)), add("Fly.")]
    book, refused = edited(BOOK, ops, lambda text: True)
    assert book.lines == (
        Line("L0", "Bow low."),  # a new text, counted from nothing
        Line("L4", "Run."),
        Line("L5", "Sit."),
        Line("L6", "Fly."),
    )
    assert (book.born, not refused) == (7, True)
    assert book.text() == "Help.\nBow low.\nRun.\nSit.\nFly."
    assert book.text("L4") == "Help.\nBow low.\nSit.\nFly."


def test_edits_that_cannot_be_made_are_counted() -> None:
    ops = [
        add("Hop."),
        add("Help."),
        Op("remove", ("L9",)),
        Op("modify", ("L1",), "Run."),
        add("far too many words"),
        add("Sit."),
    ]
    book, refused = edited(BOOK, ops, lambda text: count_words(text) <= 5)
    assert [line.text for line in book.lines] == ["Bow.", "Hop.", "Run.", "Sit."]
    assert refused == {"repeated": 3, "malformed": 1, "too_long": 1}


def test_too_many_lines_lose_the_least_helpful_the_oldest_first() -> None:
    lines = (Line("a", "A."), Line("b", "B.", 5, 1), Line("c", "C."), Line("d", "D.", 1, 2))
    assert [x.id for x in pruned(Playbook("H.", lines), 3).lines] == ["a", "b", "c"]
    assert [x.id for x in pruned(Playbook("H.", lines), 2).lines] == ["b", "c"]
    assert pruned(Playbook("H.", lines), 4).lines == lines


def test_a_phase_counts_retires_edits_and_leaves_out_the_least_tested() -> None:
    part = PlaybookFast(PLAIN, tools(size=4), Told(add("Bow."), add("Hop."), add("Sit.")))
    first = part.evolve(seeded("Help.", 4), [], 0)
    whole, no_bow, no_hop, rest = first.population.contexts
    assert whole == Context("Help.\nBow.\nHop.\nSit.", (Context("Help.").id,), 0, "edit")
    assert no_bow == Context("Help.\nHop.\nSit.", (whole.id,), 0, "leave-out")
    assert (no_hop.text, rest) == ("Help.\nBow.\nSit.", whole)
    recent = [
        *(r for p in "pq" for r in slow(whole, p, 1, 0)),
        *slow(no_bow, "p", 1, 1),
        *slow(no_bow, "q", 1, 0),
        *(r for p in "pq" for r in slow(no_hop, p, 0, 0)),
        *slow(rest, "r", 1, 1),
    ]
    editor = Told(malformed=2)
    second = PlaybookFast(PLAIN, tools(size=4), editor).evolve(first.population, [], 1, recent)
    lines = [Line(**row) for row in second.population.memory["lines"]]
    assert lines == [Line("L1", "Hop.", 2, 0, 1), Line("L2", "Sit.")]  # Bow. harmed: retired
    whole, no_sit, no_hop, rest = second.population.contexts  # the untested one first
    assert (whole.text, no_sit.text) == ("Help.\nHop.\nSit.", "Help.\nHop.")
    assert (no_hop.text, rest) == ("Help.\nSit.", whole)
    assert second.rejected == {"malformed": 2} and second.reused == len(recent)
    assert second.metrics == {
        "fast/lines": 2,
        "fast/retired": 1,
        "fast/helpful": 2,
        "fast/harmful": 0,
    }
    ((seen, examples, rewarded, most),) = editor.shown
    assert [line.text for line in seen.lines] == ["Hop.", "Sit."]
    assert [e.reward for e in examples] == [0, 0, 1, 1, 1, 1]  # the whole one's, failures first
    assert len(rewarded) == 4 + 3 and {e.reward for e in rewarded} == {1}
    assert most == 4 - 1  # Sit. waits for its test


def test_no_edit_is_asked_for_while_too_many_lines_wait_for_a_test() -> None:
    settings, editor = PlaybookConfig(anchors=0, untested=2), Told(*map(add, ("A.", "B.", "C.")))
    part = PlaybookFast(settings, tools(), editor)
    first = part.evolve(seeded("Help.", 3), [], 0)
    assert [row["text"] for row in first.population.memory["lines"]] == ["A.", "B."]
    second = part.evolve(first.population, [], 1)
    assert len(editor.shown) == 1 and second.population == first.population
    assert (first.reflection_calls, second.reflection_calls) == (1, 0)
    silent = [r for c in first.population.contexts for r in slow(c, "p", 0)]
    third = part.evolve(first.population, [], 1, silent)  # tested, though no problem told
    assert third.reflection_calls == 1 and third.rejected == {"repeated": 2}


def test_an_unchanged_playbook_keeps_its_place_in_the_lineage() -> None:
    start = Population((Context("Help.", ("x",), 4, "crossover"),) * 3)
    evolution = PlaybookFast(PLAIN, tools(), Told()).evolve(start, [], 9)
    assert evolution.population.contexts == start.contexts


def test_own_rollouts_are_counted_and_cover_what_is_compared() -> None:
    world = Simulated(("ho",))
    settings = PlaybookConfig(anchors=5, tests=1)
    part = PlaybookFast(settings, tools(world, size=4), Told(add("A."), add("B.")))
    first = part.evolve(seeded("Help.", 4), world.problems(9), 0)
    assert (first.metric_calls, first.generate_calls) == (world.rollouts, world.calls) == (5, 1)
    second = part.evolve(first.population, world.problems(9), 1)
    assert second.metric_calls == world.rollouts - 5 == 2 * 5
    assert world.seeds[5:] == [seed_of(7, "fast", 1, n) for n in range(10)]
    assert len(second.population.scores) == 4


def test_a_language_model_sees_counters_and_answers_with_operations() -> None:
    asked: list[str] = []

    def chat(chats: Sequence[Any], seeds: Sequence[int]) -> list[str]:
        asked.extend(c[0]["content"] for c in chats)
        return ['[{"op": "add", "text": "Sit."}, {"op": "modify", "id": "L1", "text": "Hop on."}]']

    failed = Example("What?", "That.", 0.0, ("Bow first.",))
    good = Example("Who?", "Ho.", 1.0)
    ops, malformed = ModelEditor(chat, dict).edit(BOOK, [failed], [good], 4, 3)
    assert (ops, malformed) == ([add("Sit."), Op("modify", ("L1",), "Hop on.")], 0)
    assert ModelEditor(lambda c, s: ["Well."], dict).edit(BOOK, [], [], 4, 3) == ([], 1)
    (prompt,) = asked
    assert "[L0] Bow. (helped 3, harmed 1)" in prompt and "Remark: Bow first." in prompt
    assert "at most 4 changes" in prompt and "Question: Who?" in prompt


def test_rules_only_add() -> None:
    editor = RulesEditor(RulesReflection(), lambda text: True)
    failed = Example("What?", "That.", 0.0, ("Bow first.", "Hop."))
    good = Example("Who?", "Ho.", 1.0)
    seen = set()
    for seed in range(20):
        ops, malformed = editor.edit(BOOK, [failed], [good], 4, seed)
        assert malformed == 0 and len(ops) <= 4 and {op.kind for op in ops} == {"add"}
        seen |= {op.text for op in ops}
    assert seen == {"Bow first.", "Example input: Who?\nExample output: Ho."}


def phases(
    cycles: int, interrupted: bool = False, seed: int = 7
) -> tuple[Simulated, list[Evolution]]:
    world = Simulated(tuple(random_words(3, 2)))
    settings = tools(world, 4, run_seed=seed)
    part, population, found = make(PlaybookConfig(), settings), seeded("Help.", 4), []
    for cycle in range(cycles):
        if interrupted:
            part = make(PlaybookConfig(), settings)
            population = population_from_json(json.loads(json.dumps(to_json(population))))
        found.append(part.evolve(population, world.problems(16, 16 * cycle), cycle))
        population = found[-1].population
    return world, found


def test_same_seed_same_playbook_also_from_checkpoints() -> None:
    straight = [json.dumps(to_json(e)) for e in phases(6)[1]]
    assert straight == [json.dumps(to_json(e)) for e in phases(6, True)[1]]
    assert straight != [json.dumps(to_json(e)) for e in phases(6, seed=8)[1]]


def test_rules_and_counters_find_and_keep_what_the_judge_requires() -> None:
    world, found = phases(15)
    book = found[-1].population.memory["lines"]
    needed = [row for row in book if row["text"] in map(world.line, world.words)]
    assert len(needed) == 2 and all(row["helpful"] > row["harmful"] for row in needed)
    assert world.rollouts == sum(e.metric_calls for e in found)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"contexts": {"size": 1}}, "contexts.size"),
        ({"slow": {"type": "none"}, "fast": {"type": "playbook", "anchors": 0}}, "fast.anchors"),
    ],
)
def test_a_run_in_which_nothing_can_be_compared_is_refused(changes: Any, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        tiny_config(**{"fast": {"type": "playbook"}, **changes})


def test_the_most_that_a_phase_uses() -> None:
    run = tiny_config(fast={"type": "playbook", "tests": 3, "anchors": 6})  # K = 2
    bounds = run.fast.bounds(8, run)
    assert (bounds.rollouts, bounds.calls, bounds.reflections) == (2 * 6, 1, 4)
    own = {"type": "playbook", "anchors": 0, "reflection": {"type": "policy"}}
    run = tiny_config(fast=own)
    bounds = run.fast.bounds(8, run)
    assert (bounds.rollouts, bounds.calls, bounds.reflections) == (0, 1, 1)


def test_the_report_draws_runs_whose_contexts_have_no_anchor_scores() -> None:
    row = {"run": "r", "operator": "edit", "context_id": "a", "parents": ""}
    rows = [
        {**row, "cycle": n, "slot": 0, "anchor_mean": mean} for n, mean in enumerate((None, 0.5))
    ]
    scored = draw_populations(pd.DataFrame(rows)).axes[0].lines
    assert len(scored) == 1
    assert not draw_populations(pd.DataFrame(rows[:1])).axes[0].lines
