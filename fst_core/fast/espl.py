"""E-SPL as a fast part: contexts rated by the slow phase's own rollouts, the winner mutated."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fst_core.config.fast import PolicyReflection, ReflectionConfig, RulesReflection
from fst_core.config.method import FastSettings, Search
from fst_core.fast.base import Candidate, Evolution, FastPart, FastTools
from fst_core.fast.ratings import Rating, Strategy, choose, of_crossover, of_mutation, rate, wins
from fst_core.fast.reflection import Example, Gate, Proposal, Tried, example_of
from fst_core.records import (
    Context,
    Population,
    Problem,
    Rollout,
    context_from_json,
    seed_of,
    to_json,
)

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig
    from fst_core.fast.principles import Writer, Written


class EsplConfig(FastSettings):
    """E-SPL, evolutionary system prompt learning (arXiv 2602.14697).

    A phase reads the slow rollouts since the phase before, as one match among the K contexts that
    ran: (1) their mean rewards rank them, and TrueSkill updates their ratings (ties within 0.01);
    (2) with `crossover_prob`, the match's winner is crossed with the others that alone did best on
    some problem; (3) the winner is mutated; (4) children join a pool that drops its oldest; (5) K
    of the newest `window` are chosen by rating for the coming steps, the newest child among them.
    A context is a list of principles, one a line, and the seed context's lines are the first. With
    a language model, mutation is summaries of the rollouts of problems with mixed outcomes, one
    critique per problem, and one consolidation; with rules, it is one rule.

    Cost: no rollouts of its own; up to two children a phase, each by one rule, or by a language
    model in one reflection per rollout and problem with mixed outcomes and two more.

    Set loop.cycle_steps = 1 for the paper's one match per step. Different here: the principles are
    the system message, not part of the user's; the policy reflects with its current weights, where
    the authors' frozen base model is a `huggingface` reflection; slots that repeat a context are
    one entry; equal winners give way to the newest; rules see the judge's feedback. Evaluation
    shows the slot with the highest mu - 2 sigma, where the authors' code tests the newest child.
    """

    type: Literal["espl"] = "espl"
    selection: Strategy = "lucb"
    """How K contexts are chosen by rating; lucb in the authors' full command, else uniform."""
    window: int = Field(10, ge=1)
    """Newest contexts of the pool that may be chosen (choose_from_most_recent)."""
    max_pool_size: int = Field(200, ge=1)
    """Contexts the pool holds; the oldest leave it first."""
    crossover_prob: float = Field(0.2, ge=0, le=1)
    """Probability of a crossover in a phase."""
    max_update_operations: int = Field(2, ge=1)
    """Changes a language model may propose per problem."""
    show_solutions: bool = False
    """A mutation also sees the TRAIN problems' solutions, as in the authors' code; the slow loop
    never does: say so where arms are compared."""
    reflection: ReflectionConfig = RulesReflection()
    """What writes the children."""

    @property
    def reads(self) -> None:
        """See `FastSettings`."""
        return None

    @property
    def writer(self) -> ReflectionConfig:
        """See `FastSettings`."""
        return self.reflection

    def bounds(self, problems: int, run: "RunConfig") -> Search:
        """See `FastSettings`; the rollouts read are those of the cycle before, all of one winner's
        where its context fills every slot."""
        if isinstance(self.reflection, RulesReflection):
            return Search(0, 0, 2)
        read = run.loop.cycle_steps * run.loop.problems_per_step
        own = isinstance(self.reflection, PolicyReflection)  # three stages and a crossover
        return Search(0, 4 * own, read * (run.loop.group_size + 1) + 2)

    def refuse(self, run: "RunConfig") -> None:
        """See `MethodSettings`."""
        if run.slow.rollouts(run) == 0:
            raise ValueError(
                "fast.type = 'espl' rates contexts by the slow phase's rollouts, and slow.type = "
                f"{run.slow.type!r} makes none; use a slow part that rolls out, or fast.type = "
                "'gepa' or 'mutation'"
            )
        if run.contexts.size < 2:
            raise ValueError(
                "fast.type = 'espl' compares contexts; set contexts.size to at least 2"
            )


@dataclass(frozen=True, slots=True)
class Member:
    """A context of the pool and its rating."""

    context: Context
    rating: Rating


def pool_of(population: Population) -> list[Member]:
    """The pool that a population remembers, oldest first; at first its contexts, unrated."""
    rows = population.memory.get("pool")
    if rows is None:
        return [Member(c, Rating()) for c in {c.id: c for c in population.contexts}.values()]
    return [
        Member(context_from_json(row["context"]), Rating(row["mu"], row["sigma"])) for row in rows
    ]


def as_memory(pool: Sequence[Member], solutions: Mapping[str, str]) -> dict[str, Any]:
    """A pool, and solutions by problem id, as plain JSON."""
    rows = [
        {"context": to_json(m.context), "mu": m.rating.mu, "sigma": m.rating.sigma} for m in pool
    ]
    return {"pool": rows, "solutions": dict(solutions)}


Trials = dict[str, dict[str, list[Example]]]
"""Rollouts of a match by context id and problem id."""


def trials_of(rollouts: Sequence[Rollout], pool: Sequence[Member]) -> Trials:
    """The rollouts under contexts of the pool."""
    trials: Trials = {m.context.id: defaultdict(list) for m in pool}
    for rollout in rollouts:
        if rollout.context_id in trials:
            example = example_of(rollout.question, rollout)
            trials[rollout.context_id][rollout.problem_id].append(example)
    return {name: problems for name, problems in trials.items() if problems}


def mean_rewards(problems: Mapping[str, Sequence[Example]]) -> dict[str, float]:
    """Mean reward by problem id."""
    return {name: fmean(e.reward for e in examples) for name, examples in problems.items()}


def batch_score(problems: Mapping[str, Sequence[Example]]) -> float:
    """Mean reward over all rollouts (pass@1)."""
    return fmean(e.reward for examples in problems.values() for e in examples)


def rated(pool: Sequence[Member], trials: Trials) -> list[Member]:
    """The pool after the match of the contexts that ran."""
    ran = [n for n, member in enumerate(pool) if member.context.id in trials]
    scores = [batch_score(trials[pool[n].context.id]) for n in ran]
    ratings = rate([pool[n].rating for n in ran], scores)
    new = dict(zip(ran, ratings, strict=True))
    return [replace(m, rating=new.get(n, m.rating)) for n, m in enumerate(pool)]


@dataclass(frozen=True, slots=True)
class Child:
    """What was written of which parents, by which operator."""

    operator: str
    parents: tuple[Member, ...]
    written: "Written"

    @property
    def rating(self) -> Rating:
        """See `ratings`."""
        ratings = [parent.rating for parent in self.parents]
        return of_mutation(ratings[0]) if self.operator == "mutation" else of_crossover(ratings)


class Espl:
    """The fast part of E-SPL; the pool lives in the population's memory."""

    def __init__(self, settings: EsplConfig, tools: FastTools, writer: "Writer") -> None:
        self.settings, self.tools, self._writer = settings, tools, writer

    def evolve(
        self,
        population: Population,
        problems: Sequence[Problem],
        cycle: int,
        recent: Sequence[Rollout] = (),
    ) -> Evolution:
        """Rate what ran, breed, and choose what runs next; without rollouts all stays as it is.

        Raises:
            ReflectionError: if reflection failed.
        """
        pool = pool_of(population)
        trials = trials_of(recent, pool)
        solutions = self._solutions(problems)
        if not trials:
            return Evolution(replace(population, memory=as_memory(pool, solutions)))
        pool = rated(pool, trials)
        usage = dict(self._writer.usage)
        gate = Gate(self.tools.max_tokens, self.tools.count_tokens)
        rng = random.Random(seed_of(self.tools.run_seed, "espl", cycle))
        children = self._breed(pool, trials, population.memory.get("solutions", {}), cycle, rng)
        born = admitted(children, pool, gate, cycle)
        pool = [*pool, *born][-self.settings.max_pool_size :]
        slots = self._choose(pool, rng)
        rows = {name: (*mean_rewards(trial).values(),) for name, trial in trials.items()}
        shown = [m.context for m in pool if m.context.id in rows] + [m.context for m in born]
        malformed = sum(child.written.malformed for child in children)
        return Evolution(
            Population(
                tuple(m.context for m in slots),
                tuple(rows.get(m.context.id, ()) for m in slots),
                as_memory(pool, solutions),
            ),
            tuple(Candidate(c, rows.get(c.id, ())) for c in shown),
            reflection_calls=sum(child.written.calls for child in children),
            proposals=len(children),
            accepted=len(born),
            rejected={**gate.rejected, **({"malformed": malformed} if malformed else {})},
            reused=len(recent),
            reflection_usage={k: v - usage.get(k, 0) for k, v in self._writer.usage.items()},
            metrics={
                "fast/pool": len(pool),
                "fast/rating_best": slots[0].rating.lower,
                "fast/reflections": sum(child.written.texts for child in children),
            },
        )

    def _solutions(self, problems: Sequence[Problem]) -> dict[str, str]:
        """Solutions of the coming problems, for the phase that reads their rollouts."""
        if not self.settings.show_solutions:
            return {}
        found = {problem.id: self.tools.solve(problem) for problem in problems}
        return {name: solution for name, solution in found.items() if solution is not None}

    def _breed(
        self,
        pool: Sequence[Member],
        trials: Trials,
        solutions: Mapping[str, str],
        cycle: int,
        rng: random.Random,
    ) -> list[Child]:
        """The children of a match: a crossover by chance, and always a mutation, the newest."""
        by_id = {m.context.id: m for m in pool if m.context.id in trials}
        texts = [m.context.text for m in pool]
        winner = max(reversed(by_id), key=lambda name: batch_score(trials[name]))
        seed = seed_of(self.tools.run_seed, "reflection", cycle)
        children: list[Child] = []
        if rng.random() < self.settings.crossover_prob:
            children += self._cross(by_id, winner, trials, texts, seed)
        tried = [
            Tried(examples[0].problem, tuple(examples), solutions.get(problem))
            for problem, examples in trials[winner].items()
        ]
        parent = by_id[winner]
        written = self._writer.mutate(parent.context.text, tried, texts, seed)
        return [*children, Child("mutation", (parent,), written)]

    def _cross(
        self,
        by_id: Mapping[str, Member],
        winner: str,
        trials: Trials,
        texts: Sequence[str],
        seed: int,
    ) -> list[Child]:
        won = wins({name: mean_rewards(trial) for name, trial in trials.items()})
        others = [name for name in by_id if name != winner and won[name]]
        if not won[winner] or not others:
            return []
        asked = {
            by_id[name].context.text: tuple(trials[name][p][0].problem for p in won[name])
            for name in (winner, *others)
        }
        written = self._writer.cross(asked, texts, seed)
        parents = tuple(
            by_id[name] for name in (winner, *others) if name in (winner, *written.parents)
        )
        return [Child("crossover", parents, written)]

    def _choose(self, pool: Sequence[Member], rng: random.Random) -> list[Member]:
        """The slots of the coming steps, the best by mu - 2 sigma first."""
        window = pool[-self.settings.window :]
        ratings = [m.rating for m in window]
        chosen = choose(ratings, self.tools.size, self.settings.selection, rng)
        return sorted((window[n] for n in chosen), key=lambda m: -m.rating.lower)


def admitted(
    children: Sequence[Child], pool: Sequence[Member], gate: Gate, cycle: int
) -> list[Member]:
    """The children that may join the pool, with their ratings."""
    known = {m.context.text for m in pool}
    born: list[Member] = []
    for child in children:
        text = child.written.text
        if text is None:
            continue
        text = gate.admit(Proposal(text, child.operator), known)
        if text is not None:
            known.add(text)
            parents = tuple(m.context.id for m in child.parents)
            born.append(Member(Context(text, parents, cycle, child.operator), child.rating))
    return born


def make(settings: EsplConfig, tools: FastTools) -> FastPart:
    """E-SPL with the writer its reflection asks for."""
    # Both load torch, and settings load without it.
    from fst_core.fast.principles import ModelWriter, RulesWriter  # noqa: PLC0415
    from fst_core.fast.registry import make_chat  # noqa: PLC0415

    if isinstance(settings.reflection, RulesReflection):
        return Espl(settings, tools, RulesWriter(settings.reflection, tools.fits))
    chat, usage = make_chat(settings.reflection, tools.chat)
    return Espl(settings, tools, ModelWriter(chat, usage, settings.max_update_operations))
