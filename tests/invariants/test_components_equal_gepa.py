"""Contexts of several components: a fast phase is `gepa.optimize` with round robin and merge.

The reference side (adapter, ledger, budget, seeding of the old population, reflection) is written
here over plain dicts of texts; see `test_fast_equals_gepa` for what the two share.
"""

from itertools import count

import gepa
import pytest
from gepa.core.adapter import EvaluationBatch
from gepa.core.state import ValsetEvaluation
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa.strategies.proposal_selection import BestImprovement

from fst_core.config.fast import GepaConfig
from fst_core.fast.components import MERGE
from fst_core.fast.frontier import top_of_frontier
from fst_core.fast.gepa import GepaFast
from fst_core.records import Context, Population, seed_of
from tests.invariants.test_fast_equals_gepa import (
    RUN_SEED,
    SIZE,
    Counted,
    Writer,
    play,
    problems_of,
    write,
)

TWO = {"role": "You are a helpful assistant.", "format": "Answer the question."}
THREE = {**TWO, "tone": "Be calm."}


def read(candidate):
    return "\n".join(text for text in candidate.values() if text)


class DirectAdapter:
    """Refuses a merge that is in the pool already, as both sides' reflections do with a child."""

    propose_new_texts = None

    def __init__(self, cycle, merge):
        self.numbers = count()
        self.cycle = cycle
        self.used = self.refused = 0
        self.merge, self.pool = merge, []

    def evaluate(self, batch, candidate, capture_traces=False):
        if self.merge and len(batch) == 5 and read(candidate) in map(read, self.pool):
            self.refused += 1
            return EvaluationBatch(outputs=[None] * 5, scores=[-1.0] * 5)
        seeds = [seed_of(RUN_SEED, "fast", self.cycle, next(self.numbers)) for _ in batch]
        played = [play(read(candidate), p, s) for p, s in zip(batch, seeds, strict=True)]
        self.used += len(batch)
        scores = [reward for reward, _ in played]
        return EvaluationBatch(outputs=played, scores=scores, trajectories=played)

    def make_reflective_dataset(self, candidate, eval_batch, components_to_update):
        records = [{"Feedback": list(f)} for _, f in eval_batch.trajectories]
        return dict.fromkeys(components_to_update, records)


class DirectReflection:
    def __init__(self):
        self.state = None
        self.iteration, self.written = -1, set()
        self.updated = []

    def reflect(self, candidate, reflective_dataset, components_to_update):
        state = self.state
        if state.i != self.iteration:
            self.iteration, self.written = state.i, set()
        (name,) = components_to_update
        self.updated.append(name)
        feedback = [s for record in reflective_dataset[name] for s in record["Feedback"]]
        text = write(candidate[name], feedback)
        child = None if text is None else read({**candidate, name: text})
        if child is None or child in {*map(read, state.program_candidates), *self.written}:
            return ReflectionProposal({}), self
        self.written.add(child)
        return ReflectionProposal({name: text}), self


def join(others, valset, adapter, state):
    """Score the rest of the old population and add it to the pool."""
    while others:
        candidate = others.pop(0)
        batch = adapter.evaluate(valset, candidate)
        state.increment_evals(len(valset))
        state.num_full_ds_evals += 1
        state.update_state_with_new_program(
            parent_program_idx=[],
            new_program=candidate,
            valset_evaluation=ValsetEvaluation(
                dict(enumerate(batch.outputs)), dict(enumerate(batch.scores))
            ),
            run_dir=None,
            num_metric_calls_by_discovery_of_new_program=state.total_num_evals,
        )


def direct(candidates, cycle, config):
    """One phase by `gepa.optimize`, from the distinct candidates of a population.

    Returns:
        gepa's result, the component of each reflection, and the rollouts used.
    """
    problems = problems_of(cycle)
    valset = problems[: config.anchors]
    adapter, reflection = DirectAdapter(cycle, config.merge), DirectReflection()
    others = list(candidates[1:])
    step = max(2 * config.minibatch * config.proposals, 5 * config.merge) + len(valset)

    def stop(state):
        reflection.state, adapter.pool = state, state.program_candidates
        join(others, valset, adapter, state)
        return adapter.used + step > config.metric_calls

    result = gepa.optimize(
        seed_candidate=candidates[0],
        trainset=problems,
        valset=valset,
        adapter=adapter,
        reflection_strategy=reflection,
        reflection_minibatch_size=config.minibatch,
        sampling_strategy=IndependentSampling(config.proposals),
        selection_strategy=BestImprovement(),
        stop_callbacks=stop,
        logger=type("Quiet", (), {"log": lambda self, message: None})(),
        seed=seed_of(RUN_SEED, "gepa", cycle),
        module_selector="round_robin",
        use_merge=config.merge,
        max_merge_invocations=config.max_merges,
    )
    assert result.total_metric_calls == adapter.used + 5 * adapter.refused
    return result, reflection.updated, adapter.used


def assert_same(evolution, result):
    contexts = [candidate.context for candidate in evolution.candidates]
    assert [dict(c.parts) for c in contexts] == result.candidates
    assert [c.text for c in contexts] == [read(c) for c in result.candidates]
    assert [c.scores for c in evolution.candidates] == [
        tuple(row.values()) for row in result.val_subscores
    ]
    for context, parents in zip(contexts, result.parents, strict=True):
        if parents not in ([None], []):
            assert context.parents == tuple(contexts[p].id for p in parents)
            assert (context.operator == MERGE) == (len(parents) == 2)


@pytest.mark.parametrize("parts", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize(
    ("settings", "merges"),
    [
        ({"metric_calls": 512}, 0),
        ({"metric_calls": 512, "merge": True}, 2),
        ({"metric_calls": 512, "merge": True, "max_merges": 1, "minibatch": 2, "proposals": 1}, 1),
    ],
    ids=["round robin", "merge", "one proposal"],
)
def test_cycles_equal_direct_gepa_calls_chained_by_the_top_k_rule(settings, merges, parts):
    config = GepaConfig(**settings)
    roll_out, writer = Counted(), Writer()
    part = GepaFast(config, roll_out, writer, RUN_SEED, SIZE, 1000, len)
    start = Context(read(parts), parts=tuple(parts.items()))
    population, candidates, accepted, merged = Population((start,) * SIZE), [parts], 0, 0
    for cycle in range(3):
        roll_out.rollouts = roll_out.calls = 0
        asked = len(writer.jobs)
        evolution = part.evolve(population, problems_of(cycle), cycle)
        distinct = list({read(candidate): candidate for candidate in candidates}.values())
        result, updated, used = direct(distinct, cycle, config)
        assert_same(evolution, result)
        assert [job.component for job in writer.jobs[asked:]] == updated
        assert evolution.metric_calls == used == roll_out.rollouts <= config.metric_calls
        assert evolution.generate_calls == roll_out.calls
        operators = [c.context.operator for c in evolution.candidates if c.context.cycle == cycle]
        assert evolution.accepted == len(operators) - operators.count(MERGE) - (cycle == 0)
        assert evolution.metrics.get("fast/merges_accepted", 0) == operators.count(MERGE)
        accepted += evolution.accepted
        merged += operators.count(MERGE)
        rows = [list(row.values()) for row in result.val_subscores]
        candidates = [result.candidates[i] for i in top_of_frontier(rows, SIZE)]
        population = evolution.population
        assert [dict(context.parts) for context in population.contexts] == candidates
    assert accepted > 3 and merged >= merges
    assert {job.component for job in writer.jobs} == set(parts)
