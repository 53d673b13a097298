"""How gepa sees the lab: contexts scored on problems through one roll-out call, and the ledger."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any

from gepa.core.adapter import EvaluationBatch, ProposalFn

from fst_core.fast.components import MERGE, Texts, candidate_of, text_of
from fst_core.fast.reflection import Example, Gate, Proposal, example_of
from fst_core.records import Context, Problem, Rollout, Verdict
from fst_core.rollouts import RollOut

Batch = EvaluationBatch[Example, Rollout]


@dataclass(frozen=True, slots=True)
class Shot:
    """A data instance of gepa: a problem and the rollouts to average into its score."""

    problem: Problem
    samples: int = 1


@dataclass
class Failure:
    """Remembers the first error raised inside its `with` block, and lets it through."""

    error: Exception | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.error is None and isinstance(error, Exception):
            self.error = error


class Adapter:
    """What gepa evaluates through, and the ledger: one metric call is one rollout.

    The n-th rollout of a phase samples with `seed_of(run_seed, "fast", cycle, n)`.
    """

    propose_new_texts: ProposalFn | None = None
    """gepa 0.1.4 never calls the reflection of an adapter that lacks this attribute."""

    def __init__(
        self,
        roll_out: RollOut,
        start: Sequence[Context],
        seeds: Callable[[int], int],
        gate: Gate,
        tie_break: float = 0.0,
        solve: Callable[[Problem], str | None] | None = None,
    ) -> None:
        self._solve = solve
        self._roll_out = roll_out
        self._tie_break = tie_break
        self._seeds = seeds
        self._start = start
        self._gate = gate
        self.known: Callable[[], Sequence[str]] = tuple
        """The text of every candidate so far."""
        self.waiting: list[tuple[Context, Batch]] = []
        self.failure = Failure()
        self.rewarded: dict[tuple[str, str], Example] = {}
        self.metric_calls = self.generate_calls = self.datasets = self.merges = 0
        self.imperfect = 0
        """Minibatches with a score below 1 so far, each of them a reason to reflect."""

    def evaluate(self, batch: list[Shot], candidate: Texts, capture_traces: bool = False) -> Batch:
        """Score the first context on the anchors, or a merge on some; gepa 0.1.4 asks no more.

        The rest of the population is scored in the same engine call as the first, and waits to join
        the pool. A merge that is refused (too long, or a context of the pool: gepa 0.1.4 often
        joins two into one of them) scores below any other, at no cost.
        """
        if self.generate_calls:
            return self._merged(batch, candidate)
        others = [c for c in self._start if c.text != text_of(candidate)]
        texts = [candidate, *map(candidate_of, others)]
        first, *rest = self.batch_evaluate([(text, batch) for text in texts])
        self.waiting = list(zip(others, rest, strict=True))
        self.imperfect = 0
        return first

    def _merged(self, batch: list[Shot], candidate: Texts) -> Batch:
        self.merges += 1
        if self._gate.admit(Proposal(text_of(candidate), MERGE), self.known()) is None:
            nothing: list[Any] = [None] * len(batch)
            return EvaluationBatch(outputs=nothing, scores=[-1.0] * len(batch))
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(
        self, items: list[tuple[Texts, list[Shot]]], *, capture_traces: bool = True
    ) -> list[Batch]:
        """Score every (candidate, shots) item through one roll-out call."""
        pairs = [
            (Context(text_of(candidate)), shot.problem)
            for candidate, shots in items
            for shot in shots
            for _ in range(shot.samples)
        ]
        seeds = [self._seeds(self.metric_calls + n) for n in range(len(pairs))]
        rollouts = self._roll_out(pairs, seeds)
        self.metric_calls += len(pairs)
        self.generate_calls += 1
        if len(rollouts) != len(pairs):
            raise ValueError(f"{len(pairs)} roll-outs asked for, {len(rollouts)} came back")
        judged = iter(rollouts)
        return [self._batch(shots, judged) for _, shots in items]

    def _batch(self, shots: Sequence[Shot], judged: Iterator[Rollout]) -> Batch:
        outputs, scores, traces = [], [], []
        for shot in shots:
            rollouts = list(islice(judged, shot.samples))
            points = [score_of(rollout.verdict, self._tie_break) for rollout in rollouts]
            examples = [example_of(shot.problem.text, rollout) for rollout in rollouts]
            self._remember([*examples, *self._solved(shot.problem)])
            outputs.append(rollouts[0])
            scores.append(sum(points) / len(points))
            traces.append(examples[0])
        self.imperfect += any(score < 1 for score in scores)
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)

    def _solved(self, problem: Problem) -> list[Example]:
        """The problem's solution as a rewarded rollout, where reflection may see it."""
        solution = self._solve(problem) if self._solve else None
        return [] if solution is None else [Example(problem.text, solution, 1.0)]

    def _remember(self, examples: Sequence[Example]) -> None:
        for example in examples:
            if example.reward > 0:
                self.rewarded[example.problem, example.response] = example

    def make_reflective_dataset(
        self, candidate: Texts, eval_batch: Batch, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The minibatch's examples, as the records gepa passes on to reflection.

        A completion answers all components at once, so each is shown the same.
        """
        with self.failure:
            self.datasets += 1
            records = [{"example": example} for example in eval_batch.trajectories or []]
            return dict.fromkeys(components_to_update, records)


def score_of(verdict: Verdict, tie_break: float) -> float:
    """A rollout's score: its reward, and `tie_break` times the mean of its subscores."""
    if not tie_break or not verdict.subscores:
        return verdict.reward
    return verdict.reward + tie_break * sum(verdict.subscores.values()) / len(verdict.subscores)


class Recent:
    """Rollouts of the slow phase, for reflection alone: rewarded ones, and failures by context."""

    def __init__(self, rollouts: Sequence[Rollout] = ()) -> None:
        self.count = len(rollouts)
        self.rewarded: list[Example] = []
        self._failed: defaultdict[str, list[Example]] = defaultdict(list)
        for rollout in rollouts:
            example = example_of(rollout.question, rollout)
            if example.reward > 0:
                self.rewarded.append(example)
            if example.reward < 1:
                self._failed[rollout.context_id].append(example)

    def failed(self, context: str, most: int, seed: int) -> list[Example]:
        """Up to `most` rollouts below full reward under a context, a seeded sample of them."""
        found = self._failed.get(Context(context).id, [])
        return random.Random(seed).sample(found, min(most, len(found)))
