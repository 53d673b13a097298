"""Best-of-N mutation as a fast part: what reflection achieves without a search around it."""

import random
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fst_core.config.fast import PolicyReflection, ReflectionConfig, RulesReflection
from fst_core.config.method import FastSettings, Search
from fst_core.fast.base import Candidate, Evolution, FastPart, FastTools
from fst_core.fast.reflection import Example, Gate, Job, Peer, Reflection, example_of
from fst_core.records import Context, Population, Problem, Rollout, seed_of

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig

MOST_REWARDED = 16
"""Rewarded rollouts shown to a reflection job."""


class MutationConfig(FastSettings):
    """Best-of-N mutation, the simplest rival of GEPA (arXiv 2507.19457) at the same budget.

    A phase (1) scores the population on the anchors, the first problems of the coming cycle, under
    the current weights; (2) asks reflection for N proposals at once, all from the best context and
    each shown another minibatch of its rollouts; (3) scores every usable proposal on the same
    anchors; (4) keeps the K contexts of the highest mean reward, the older first where they tie.

    Cost: at most (K + N) x anchors x samples_per_anchor rollouts and N reflections a phase.
    """

    type: Literal["mutation"] = "mutation"
    proposals: int = Field(12, ge=1)
    """N: proposals in a phase."""
    anchors: int = Field(16, ge=1)
    """Problems every context is scored on, the first of the coming cycle's problems."""
    samples_per_anchor: int = Field(1, ge=1)
    """Rollouts averaged into one anchor score."""
    minibatch: int = Field(4, ge=1)
    """Anchors whose rollouts under the best context one proposal is written from."""
    reflection: ReflectionConfig = RulesReflection()
    """What writes the proposals."""

    @property
    def writer(self) -> ReflectionConfig:
        """See `FastSettings`."""
        return self.reflection

    def bounds(self, problems: int, run: "RunConfig") -> Search:
        """See `FastSettings`."""
        anchors = min(self.anchors, problems) * self.samples_per_anchor
        own = isinstance(self.reflection, PolicyReflection)  # its reflections are a call as well
        return Search((run.contexts.size + self.proposals) * anchors, 2 + own, self.proposals)


class Mutation:
    """The fast part of best-of-N mutation; it remembers nothing but the population."""

    def __init__(self, settings: MutationConfig, tools: FastTools, reflection: Reflection) -> None:
        self.settings, self.tools, self._reflection = settings, tools, reflection

    def evolve(
        self,
        population: Population,
        problems: Sequence[Problem],
        cycle: int,
        recent: Sequence[Rollout] = (),
    ) -> Evolution:
        """Score the old contexts, write and score new ones, and keep the K best.

        Raises:
            ValueError: if there is no problem.
            ReflectionError: if reflection failed; whatever a roll-out raises comes through.
        """
        if not problems:
            raise ValueError("a fast phase needs at least one problem")
        anchors = problems[: self.settings.anchors]
        usage = dict(self._reflection.usage)
        old = list({context.id: context for context in population.contexts}.values())
        tried = self._score(old, anchors, cycle, 0)
        jobs = self._jobs(old, tried, cycle)
        gate = Gate(self.tools.max_tokens, self.tools.count_tokens)
        new = self._propose(jobs, old, gate, cycle)
        contexts, rows = [*old, *new], [*tried]
        calls = 1
        if new:
            rows += self._score(new, anchors, cycle, len(old) * len(tried[0]))
            calls += 1
        scores = [self._means(row) for row in rows]
        ranked = sorted(range(len(contexts)), key=lambda n: -fmean(scores[n]))
        slots = [ranked[n % len(ranked)] for n in range(self.tools.size)]
        return Evolution(
            Population(tuple(contexts[n] for n in slots), tuple(scores[n] for n in slots)),
            tuple(Candidate(c, row) for c, row in zip(contexts, scores, strict=True)),
            metric_calls=sum(map(len, rows)),
            generate_calls=calls,
            reflection_calls=1,
            proposals=len(jobs),
            accepted=len(new),
            rejected=dict(gate.rejected),
            reflection_usage={k: v - usage.get(k, 0) for k, v in self._reflection.usage.items()},
        )

    def _score(
        self, contexts: Sequence[Context], anchors: Sequence[Problem], cycle: int, first: int
    ) -> list[list[Example]]:
        """Per context, its rollouts on the anchors, those of one anchor side by side; one call.

        The n-th rollout of a phase samples with `seed_of(run_seed, "fast", cycle, n)`.
        """
        shots = [problem for problem in anchors for _ in range(self.settings.samples_per_anchor)]
        pairs = [(context, problem) for context in contexts for problem in shots]
        seeds = [seed_of(self.tools.run_seed, "fast", cycle, first + n) for n in range(len(pairs))]
        rollouts = self.tools.roll_out(pairs, seeds)
        examples = [
            example_of(problem.text, rollout)
            for (_, problem), rollout in zip(pairs, rollouts, strict=True)
        ]
        return [examples[n : n + len(shots)] for n in range(0, len(examples), len(shots))]

    def _means(self, row: Sequence[Example]) -> tuple[float, ...]:
        """Mean reward on each anchor."""
        samples = self.settings.samples_per_anchor
        return tuple(
            fmean(example.reward for example in row[n : n + samples])
            for n in range(0, len(row), samples)
        )

    def _jobs(
        self, old: Sequence[Context], tried: Sequence[Sequence[Example]], cycle: int
    ) -> list[Job]:
        """N jobs for the best of the old contexts, each with a seeded minibatch of its rollouts."""
        means = [fmean(example.reward for example in row) for row in tried]
        best = max(range(len(old)), key=means.__getitem__)
        peers = tuple(Peer(c.text, means[n]) for n, c in enumerate(old) if n != best)
        rewarded = [example for row in tried for example in row if example.reward > 0]
        jobs = []
        for n in range(self.settings.proposals):
            seed = seed_of(self.tools.run_seed, "reflection", cycle, n)
            rng = random.Random(seed)
            seen = rng.sample(tried[best], min(self.settings.minibatch, len(tried[best])))
            rng.shuffle(rewarded)
            good = sorted(rewarded, key=lambda e: -e.reward)[:MOST_REWARDED]
            jobs.append(Job(old[best].text, (*seen,), (*good,), peers, seed))
        return jobs

    def _propose(
        self, jobs: Sequence[Job], old: Sequence[Context], gate: Gate, cycle: int
    ) -> list[Context]:
        """The usable proposals as contexts."""
        known = {context.text for context in old}
        new: list[Context] = []
        for job, proposal in zip(jobs, self._reflection.propose(jobs), strict=True):
            text = gate.admit(proposal, known)
            if text is not None:
                known.add(text)
                parents = tuple(dict.fromkeys([Context(job.context).id, *proposal.parents]))
                new.append(Context(text, parents, cycle, proposal.operator))
        return new


def make(settings: MutationConfig, tools: FastTools) -> FastPart:
    """Best-of-N mutation with the reflection its settings ask for."""
    # It loads torch, and settings load without it.
    from fst_core.fast.registry import make_reflection  # noqa: PLC0415

    return Mutation(settings, tools, make_reflection(settings.reflection, tools.chat, tools.fits))
