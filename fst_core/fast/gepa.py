"""GEPA (arXiv 2507.19457) as a fast part: one real `gepa.optimize` call per fast phase.

The search state is fresh in every phase, since the weights have moved and old scores are stale;
what lives on is the population. What this module adds around `gepa.optimize`:

* the adapter turns whatever gepa wants evaluated into one engine call, and is the ledger;
* `Reflector` hands gepa's reflection jobs to a `Reflection` and keeps unusable proposals out;
* `Watch`, a stopper, brings the rest of the population into the pool and keeps the budget.

gepa 0.1.4 swallows what reflection raises, so the adapter remembers it and the phase raises it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gepa
from gepa.core.result import GEPAResult
from gepa.core.state import GEPAState, ValsetEvaluation
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa.strategies.proposal_selection import BestImprovement

from fst_core.config.fast import GepaConfig
from fst_core.fast.adapter import Adapter, Recent, Shot
from fst_core.fast.base import Candidate, Evolution
from fst_core.fast.components import MERGE, Texts, candidate_of, lift, lowered, parts_of, text_of
from fst_core.fast.frontier import top_of_frontier
from fst_core.fast.reflection import (
    Example,
    Gate,
    Job,
    Peer,
    Proposal,
    Reflection,
    ReflectionError,
)
from fst_core.records import Context, Population, Problem, Rollout, seed_of
from fst_core.rollouts import RollOut

MOST_REWARDED = 16
"""Rewarded rollouts shown to a reflection job."""


class Silence:
    """gepa's logger: says nothing, since the journal holds what matters."""

    def log(self, message: str) -> None:
        """Drop a message."""


class Watch:
    """gepa's stopper; gepa asks it before each iteration and lets its errors through.

    On the first question it adds the rest of the old population to the pool, already scored and
    already in the ledger. It stops the search before an iteration that could pass the limit: the
    worst iteration evaluates `proposals` parents and as many children on a minibatch each, and then
    the one accepted child on every anchor. With a patience it also stops when so many iterations
    in a row found no better best score.
    """

    def __init__(self, adapter: Adapter, config: GepaConfig, reserve: int) -> None:
        self._adapter, self._limit, self._reserve = adapter, config.metric_calls, reserve
        self._patience, self._merge = config.patience, config.merge
        self._best, self._idle = -1.0, 0
        self.state: GEPAState[Rollout, int] | None = None

    def __call__(self, gepa_state: GEPAState[Rollout, int]) -> bool:
        """Whether the search ends here."""
        if self.state is None:
            self.state = gepa_state
            self._join(gepa_state)
        if self._merge:
            lift(gepa_state)
        best = max(gepa_state.program_full_scores_val_set)
        self._idle = 0 if best > self._best else self._idle + 1
        self._best = max(best, self._best)
        converged = self._patience is not None and self._idle >= self._patience
        spent = self._adapter.metric_calls + self._reserve > self._limit
        return spent or converged or self._adapter.failure.error is not None

    def _join(self, state: GEPAState[Rollout, int]) -> None:
        for context, batch in self._adapter.waiting:
            scores = dict(enumerate(batch.scores))
            discovered = state.total_num_evals
            state.increment_evals(len(scores))
            state.num_full_ds_evals += 1
            state.update_state_with_new_program(
                parent_program_idx=[],
                new_program=candidate_of(context),
                valset_evaluation=ValsetEvaluation(dict(enumerate(batch.outputs)), scores),
                run_dir=None,
                num_metric_calls_by_discovery_of_new_program=discovered,
            )

    def known(self) -> list[str]:
        """The text of every candidate so far."""
        return [text_of(texts) for texts in self.state.program_candidates] if self.state else []

    def pool(self, name: str) -> list[Peer]:
        """One component of every candidate so far, with the candidate's mean anchor score."""
        if self.state is None:
            return []
        means = self.state.program_full_scores_val_set
        return [
            Peer(texts[name], mean, text_of(texts))
            for texts, mean in zip(self.state.program_candidates, means, strict=True)
        ]


GepaJob = tuple[Texts, Mapping[str, Sequence[Mapping[str, Any]]], list[str]]


@dataclass
class Reflector:
    """gepa's reflection strategy: a refused proposal returns no text and costs no rollout."""

    reflection: Reflection
    adapter: Adapter
    watch: Watch
    gate: Gate
    seeds: Callable[[int], int]
    recent: Recent
    minibatch: int
    calls: int = 0
    jobs: int = 0
    born: dict[str, Proposal] = field(default_factory=dict)
    """How each admitted context came about."""

    def reflect(
        self,
        candidate: Texts,
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> tuple[ReflectionProposal, "Reflector"]:
        """One job; gepa 0.1.4 calls this only to retry after an error, which is then final."""
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: list[GepaJob]) -> list[tuple[ReflectionProposal, "Reflector"]]:
        """One proposal per job, through one call of the Reflection."""
        if not jobs or self.adapter.failure.error is not None:
            return [(ReflectionProposal({}), self) for _ in jobs]
        with self.adapter.failure:
            asked = [self._job(*job) for job in jobs]
            self.calls += 1
            proposals = self.reflection.propose(asked)
            texts = self._admit(asked, proposals)
            return [
                (ReflectionProposal({} if text is None else {name: text}), self)
                for text, (_, _, (name,)) in zip(texts, jobs, strict=True)
            ]

    def _job(
        self,
        candidate: Texts,
        dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        names: Sequence[str],
    ) -> Job:
        (name,) = names  # gepa's round robin updates one component at a time
        whole = text_of(candidate)
        examples = tuple(record["example"] for record in dataset[name])
        pool = tuple(peer for peer in self.watch.pool(name) if peer.context != whole)
        seed = self.seeds(self.jobs)
        self.jobs += 1
        failed = self.recent.failed(whole, self.minibatch, seed)
        rewarded, parts = self._rewarded(seed), parts_of(candidate)
        return Job(candidate[name], (*examples, *failed), rewarded, pool, seed, str(name), parts)

    def _rewarded(self, seed: int) -> tuple[Example, ...]:
        """The best rollouts so far; where many are equally good, a seeded sample of them."""
        examples = [*self.adapter.rewarded.values(), *self.recent.rewarded]
        random.Random(seed).shuffle(examples)
        return tuple(sorted(examples, key=lambda e: -e.reward)[:MOST_REWARDED])

    def _admit(self, jobs: Sequence[Job], proposals: Sequence[Proposal]) -> list[str | None]:
        known = set(self.watch.known())
        admitted: list[str | None] = []
        for job, proposal in zip(jobs, proposals, strict=True):
            text = self.gate.admit(proposal, known, job.whole)
            admitted.append(text)
            if text is not None:
                self.born[job.whole(text)] = proposal
                known.add(job.whole(text))
        return admitted


@dataclass(frozen=True, slots=True)
class Phase:
    """The parts of one fast phase."""

    cycle: int
    start: Sequence[Context]
    adapter: Adapter
    watch: Watch
    reflector: Reflector

    def check(self) -> None:
        """Raise what gepa swallowed.

        Raises:
            ReflectionError: if reflection failed, or gepa had reason to reflect and never did.
        """
        error = self.adapter.failure.error
        if isinstance(error, ReflectionError):
            raise error
        if error is not None:
            raise ReflectionError(f"reflection failed: {error!r}") from error
        jobs, imperfect = self.reflector.jobs, self.adapter.imperfect
        if jobs != self.adapter.datasets or (imperfect and not jobs):
            raise ReflectionError(
                f"gepa asked for {jobs} reflections although {self.adapter.datasets} were prepared "
                f"and {imperfect} minibatches were less than perfect"
            )

    def contexts(self, result: GEPAResult[Rollout, int]) -> list[Context]:
        """gepa's candidates as contexts; those of the old population keep their lineage."""
        contexts = list(self.start)
        for index in range(len(contexts), len(result.candidates)):
            candidate = result.candidates[index]
            text = text_of(candidate)
            own = [contexts[i].id for i in result.parents[index] if i is not None]
            merged = len(own) > 1
            proposal = Proposal(text, MERGE) if merged else self.reflector.born[text]
            parents = tuple(dict.fromkeys([*own, *proposal.parents]))
            made = Context(text, parents, self.cycle, proposal.operator, parts_of(candidate))
            contexts.append(made)
        return contexts


class GepaFast:
    """The fast part that searches with GEPA.

    A search step draws `proposals` (parent, minibatch) tasks, and costs two or three engine calls:
    all parents, all children, and the anchors of an accepted child.

    At most one child is accepted per step, the one with the largest gain (BestImprovement). A gain
    on a minibatch of a few sampled rewards is mostly luck, and scoring an accepted child on every
    anchor costs as much as several comparisons; taking the best of a step spends anchors where luck
    is least likely, and lets the limit reserve them once per step instead of once per proposal.
    """

    def __init__(
        self,
        config: GepaConfig,
        roll_out: RollOut,
        reflection: Reflection,
        run_seed: int,
        size: int,
        max_tokens: int,
        count_tokens: Callable[[str], int],
        solve: Callable[[Problem], str | None] | None = None,
    ) -> None:
        self._solve = solve
        self.config = config
        self._roll_out = roll_out
        self._reflection = reflection
        self._run_seed = run_seed
        self._size = size
        self._max_tokens = max_tokens
        self._count_tokens = count_tokens

    def evolve(
        self,
        population: Population,
        problems: Sequence[Problem],
        cycle: int,
        recent: Sequence[Rollout] = (),
    ) -> Evolution:
        """Evolve contexts on the coming cycle's train problems against the current weights.

        Reflection also reads the `recent` slow rollouts: rewarded ones beside this phase's, and a
        minibatch of failures under the very context it is to improve.

        A limit too small to score the population once leaves it as it is, without a rollout.

        Raises:
            ValueError: if there is no problem.
            ReflectionError: if reflection failed; whatever a roll-out raises comes through.
        """
        if not problems:
            raise ValueError("a fast phase needs at least one problem")
        config = self.config
        anchors = [Shot(p, config.samples_per_anchor) for p in problems[: config.anchors]]
        start = list({context.id: context for context in population.contexts}.values())
        anchor_calls = len(anchors) * config.samples_per_anchor
        if len(start) * anchor_calls > config.metric_calls:
            return Evolution(population)
        phase = self._phase(start, anchor_calls, cycle, Recent(recent))
        usage = dict(self._reflection.usage)
        result = self._search(phase, [Shot(p) for p in problems], anchors)
        phase.check()
        return self._evolution(phase, result, usage)

    def _phase(
        self, start: Sequence[Context], anchor_calls: int, cycle: int, recent: Recent
    ) -> Phase:
        def seeds(purpose: str) -> Callable[[int], int]:
            return lambda n: seed_of(self._run_seed, purpose, cycle, n)

        gate = Gate(self._max_tokens, self._count_tokens)
        adapter = Adapter(
            self._roll_out, start, seeds("fast"), gate, self.config.tie_break, self._solve
        )
        watch = Watch(adapter, self.config, self.config.reserve(anchor_calls))
        adapter.known = watch.known
        reflector = Reflector(
            self._reflection,
            adapter,
            watch,
            gate,
            seeds("reflection"),
            recent,
            self.config.minibatch,
        )
        return Phase(cycle, start, adapter, watch, reflector)

    def _search(
        self, phase: Phase, trainset: list[Shot], valset: list[Shot]
    ) -> GEPAResult[Rollout, int]:
        return gepa.optimize(
            seed_candidate=candidate_of(phase.start[0]),
            trainset=trainset,
            valset=valset,
            adapter=phase.adapter,
            reflection_strategy=phase.reflector,
            reflection_minibatch_size=self.config.minibatch,
            sampling_strategy=IndependentSampling(self.config.proposals),
            selection_strategy=BestImprovement(),
            stop_callbacks=phase.watch,
            seed=seed_of(self._run_seed, "gepa", phase.cycle),
            logger=Silence(),
            module_selector="round_robin",
            use_merge=self.config.merge,
            max_merge_invocations=self.config.max_merges,
            run_dir=None,
            track_best_outputs=False,
            cache_evaluation=False,
            raise_on_exception=True,
        )

    def _evolution(
        self, phase: Phase, result: GEPAResult[Rollout, int], usage: Mapping[str, float]
    ) -> Evolution:
        contexts = phase.contexts(result)
        scores = [tuple(lowered(row[i]) for i in sorted(row)) for row in result.val_subscores]
        slots = top_of_frontier(scores, self._size)
        adapter, reflector = phase.adapter, phase.reflector
        merged = sum(context.operator == MERGE for context in contexts[len(phase.start) :])
        counted = {"fast/merges_tried": adapter.merges, "fast/merges_accepted": merged}
        total = self._reflection.usage
        return Evolution(
            Population(tuple(contexts[i] for i in slots), tuple(scores[i] for i in slots)),
            tuple(Candidate(c, row) for c, row in zip(contexts, scores, strict=True)),
            metric_calls=adapter.metric_calls,
            generate_calls=adapter.generate_calls,
            reflection_calls=reflector.calls,
            proposals=reflector.jobs,
            accepted=len(contexts) - len(phase.start) - merged,
            rejected=dict(reflector.gate.rejected),
            reused=reflector.recent.count,
            reflection_usage={key: value - usage.get(key, 0) for key, value in total.items()},
            metrics=counted if self.config.merge else {},
        )
