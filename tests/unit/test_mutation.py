"""Best-of-N mutation: what is scored, what is kept, what it costs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from fst_core.fast.base import Evolution, FastTools
from fst_core.fast.mutation import Mutation, MutationConfig, make
from fst_core.fast.reflection import Job, Proposal
from fst_core.records import Context, Population, Rollout, seed_of, seeded, to_json
from tests.runs import tiny_config
from tests.unit.simulated import Simulated, count_words, random_words


def tools(world: Any, **changes: Any) -> FastTools:
    return replace(FastTools(world, lambda problem: None, None, 7, 3, 60, count_words), **changes)


class Texts:
    """A reflection that proposes what it is told to, and keeps the jobs."""

    def __init__(self, *texts: str | None) -> None:
        self.texts, self.usage = texts, {"usd": 0.0}
        self.jobs: list[Job] = []

    def propose(self, jobs: Sequence[Job]) -> list[Proposal]:
        self.jobs += jobs
        self.usage = {"usd": self.usage["usd"] + 0.5}
        return [Proposal(text, "told", ("peer",)) for text in self.texts]


class Sure(Simulated):
    """Rewards are the share of the words that a context asks for; nothing is left to chance."""

    def rollout(self, context: Context, problem: Any, seed: int) -> Rollout:
        plain = super().rollout(context, problem, seed)
        share = fmean(self.line(word) in context.text for word in self.words)
        return replace(plain, verdict=replace(plain.verdict, reward=share))


def test_the_best_of_old_and_new_are_kept_on_the_same_anchors() -> None:
    world = Sure(("ho", "hi", "hu"))
    ho, hi = world.line("ho"), world.line("hi")
    old = Population((Context("Help."), Context(ho), Context("Help.")))
    reflection = Texts("Nothing.", f"{ho}\n{hi}", None, ho, hi)
    settings = MutationConfig(proposals=5, anchors=4, samples_per_anchor=2, minibatch=3)
    evolution = Mutation(settings, tools(world), reflection).evolve(old, world.problems(9), 2)
    kept = evolution.population
    # a third of the words each: the older comes first, though the proposal `hi` ties with it
    assert [c.text for c in kept.contexts] == [f"{ho}\n{hi}", ho, hi]
    assert kept.scores == ((2 / 3,) * 4, (1 / 3,) * 4, (1 / 3,) * 4)
    assert kept.contexts[0] == Context(f"{ho}\n{hi}", (Context(ho).id, "peer"), 2, "told")
    assert [c.context.text for c in evolution.candidates] == [
        "Help.",
        ho,
        "Nothing.",
        f"{ho}\n{hi}",
        hi,
    ]
    assert evolution.metric_calls == world.rollouts == (2 + 3) * 4 * 2
    assert evolution.generate_calls == world.calls == 2
    assert world.seeds == [seed_of(7, "fast", 2, n) for n in range(40)]
    assert (evolution.proposals, evolution.accepted) == (5, 3)
    assert evolution.rejected == {"unparsable": 1, "repeated": 1}
    assert evolution.reflection_usage == {"usd": 0.5}
    assert {job.context for job in reflection.jobs} == {ho}  # the best of the old ones
    assert all(len(job.examples) == 3 and len(job.rewarded) == 8 for job in reflection.jobs)
    assert len({job.examples for job in reflection.jobs}) > 1
    assert [peer.text for peer in reflection.jobs[0].pool] == ["Help."]


def test_too_few_contexts_repeat_and_no_usable_proposal_costs_no_second_call() -> None:
    world = Sure(("ho",))
    evolution = Mutation(MutationConfig(anchors=2), tools(world), Texts(*[None] * 12)).evolve(
        seeded("Help.", 3), world.problems(2), 0
    )
    assert [c.text for c in evolution.population.contexts] == ["Help."] * 3
    assert (evolution.metric_calls, evolution.generate_calls, world.calls) == (2, 1, 1)
    with pytest.raises(ValueError, match="at least one problem"):
        Mutation(MutationConfig(), tools(world), Texts()).evolve(seeded("Help.", 3), [], 0)


def searched(cycles: int, run_seed: int = 7) -> tuple[Simulated, list[Evolution]]:
    world = Simulated(tuple(random_words(5, 2)))
    part = make(MutationConfig(), tools(world, run_seed=run_seed))
    population, found = seeded("Help.", 3), []
    for cycle in range(cycles):
        found.append(part.evolve(population, world.problems(20, 20 * cycle), cycle))
        population = found[-1].population
    return world, found


def test_rules_find_what_the_judge_requires_the_same_way_every_time() -> None:
    world, found = searched(6)
    lines = found[-1].population.best.text.splitlines()
    assert all(world.line(word) in lines for word in world.words)
    assert world.rollouts == sum(e.metric_calls for e in found) <= 6 * (3 + 12) * 16
    first, again, other = (
        [json.dumps(to_json(e)) for e in found],
        [json.dumps(to_json(e)) for e in searched(6)[1]],
        [json.dumps(to_json(e)) for e in searched(6, 8)[1]],
    )
    assert first == again != other


def test_the_most_that_a_phase_uses() -> None:
    run = tiny_config(fast={"type": "mutation", "proposals": 5, "anchors": 16})
    assert run.fast.bounds(8, run).rollouts == (2 + 5) * 8
    assert (run.fast.bounds(8, run).calls, run.fast.bounds(8, run).reflections) == (2, 5)
    own = {"type": "mutation", "reflection": {"type": "policy"}}
    run = tiny_config(fast=own)
    assert run.fast.bounds(8, run).calls == 3 and run.fast.reads == 0
