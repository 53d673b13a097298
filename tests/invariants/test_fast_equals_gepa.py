"""A fast phase is `gepa.optimize`: the same search, called directly with an adapter written here.

Everything on the reference side (adapter, ledger, budget, seeding of the old population,
reflection) is independent of `fst_core.fast`; the two share the simulated policy, the text that a
reflection writes, and the rule that picks the next population.
"""

import random
from itertools import count

import gepa
import pytest
from gepa.core.adapter import EvaluationBatch
from gepa.core.state import ValsetEvaluation
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.candidate_selector import ParetoCandidateSelector
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa.strategies.proposal_selection import BestImprovement

from fst_core.config.fast import GepaConfig
from fst_core.fast.frontier import top_of_frontier
from fst_core.fast.gepa import GepaFast
from fst_core.fast.reflection import Proposal
from fst_core.records import Completion, Problem, Rollout, StopReason, Verdict, seed_of, seeded

SEED = "You are a helpful assistant."
RULES = ("Bow first.", "Speak last.", "Count twice.")
RUN_SEED = 11
SIZE = 3


def problems_of(cycle):
    return [
        Problem(f"{cycle}.{n}", "play", ({"role": "user", "content": f"Q{cycle}.{n}"},), f"R{n}")
        for n in range(24)
    ]


def play(text, problem, seed):
    """Reward and feedback: the share of rules kept; those in the context are kept more often."""
    rng = random.Random(seed_of(text, problem.id, seed))
    broken = [rule for rule in RULES if rng.random() > (0.7 if rule in text else 0.1)]
    return 1 - len(broken) / len(RULES), tuple(broken)


def write(text, feedback):
    """What both sides' reflections write: a rule that was broken, or now and then nothing."""
    draw = seed_of(text, *feedback)
    if draw % 5 == 0 or not feedback:
        return None
    return f"{text}\n{feedback[draw % len(feedback)]}"


class Counted:
    """The roll-out of the tested side, with a counter of its own."""

    def __init__(self):
        self.rollouts = self.calls = 0

    def __call__(self, pairs, seeds):
        self.calls += 1
        self.rollouts += len(pairs)
        done = []
        for (context, problem), seed in zip(pairs, seeds, strict=True):
            reward, feedback = play(context.text, problem, seed)
            completion = Completion((), (), "", StopReason.STOP, 0)
            verdict = Verdict(reward, feedback)
            done.append(Rollout(problem.id, context.id, completion, verdict, 0))
        return done


class Writer:
    usage: dict[str, float] = {}  # noqa: RUF012

    def __init__(self):
        self.jobs = []

    def propose(self, jobs):
        self.jobs += jobs
        feedback = [[s for e in job.examples for s in e.feedback] for job in jobs]
        return [
            Proposal(write(job.context, f), "write") for job, f in zip(jobs, feedback, strict=True)
        ]


class DirectAdapter:
    propose_new_texts = None

    def __init__(self, cycle):
        self.numbers = count()
        self.cycle = cycle
        self.used = 0

    def evaluate(self, batch, candidate, capture_traces=False):
        seeds = [seed_of(RUN_SEED, "fast", self.cycle, next(self.numbers)) for _ in batch]
        played = [play(candidate["context"], p, s) for p, s in zip(batch, seeds, strict=True)]
        self.used += len(batch)
        scores = [reward for reward, _ in played]
        return EvaluationBatch(outputs=played, scores=scores, trajectories=played)

    def make_reflective_dataset(self, candidate, eval_batch, components_to_update):
        return {"context": [{"Feedback": list(f)} for _, f in eval_batch.trajectories]}


class DirectSelector:
    """Scores the rest of the old population on its first call, then picks as gepa does."""

    def __init__(self, others, valset, adapter, rng):
        self.others = others  # shared with the stopper
        self.valset = valset
        self.adapter = adapter
        self.inner = ParetoCandidateSelector(rng)

    def select_candidate_idx(self, state):
        while self.others:
            candidate = {"context": self.others.pop(0)}
            batch = self.adapter.evaluate(self.valset, candidate)
            state.increment_evals(len(self.valset))
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
        return self.inner.select_candidate_idx(state)


class DirectReflection:
    def __init__(self):
        self.state = None
        self.iteration, self.written = -1, set()

    def reflect(self, candidate, reflective_dataset, components_to_update):
        state = self.state
        if state.i != self.iteration:
            self.iteration, self.written = state.i, set()
        feedback = [s for record in reflective_dataset["context"] for s in record["Feedback"]]
        text = write(candidate["context"], feedback)
        pool = {c["context"] for c in state.program_candidates}
        if text is None or text in pool | self.written:
            return ReflectionProposal({}), self
        self.written.add(text)
        return ReflectionProposal({"context": text}), self


def direct(texts, cycle, config, own_selector=True):
    """One phase by `gepa.optimize`, from the distinct texts of a population.

    Without a selector of its own, gepa's "pareto" picks the parents (one text only).
    """
    problems, seed = problems_of(cycle), seed_of(RUN_SEED, "gepa", cycle)
    valset = problems[: config.anchors]
    adapter, reflection, rng = DirectAdapter(cycle), DirectReflection(), random.Random(seed)
    others = list(texts[1:])
    step = 2 * config.minibatch * config.proposals + len(valset)

    def stop(state):
        reflection.state = state
        return state.total_num_evals + len(others) * len(valset) + step > config.metric_calls

    strategies = {
        "candidate_selection_strategy": DirectSelector(others, valset, adapter, rng),
        "batch_sampler": EpochShuffledBatchSampler(config.minibatch, rng),
    }
    if not own_selector:
        strategies = {"reflection_minibatch_size": config.minibatch, "seed": seed}
    result = gepa.optimize(
        seed_candidate={"context": texts[0]},
        trainset=problems,
        valset=valset,
        adapter=adapter,
        reflection_strategy=reflection,
        sampling_strategy=IndependentSampling(config.proposals),
        selection_strategy=BestImprovement(),
        stop_callbacks=stop,
        logger=type("Quiet", (), {"log": lambda self, message: None})(),
        **strategies,
    )
    assert result.total_metric_calls == adapter.used
    return result


def assert_same(evolution, result):
    contexts = [candidate.context for candidate in evolution.candidates]
    assert [c.text for c in contexts] == [c["context"] for c in result.candidates]
    assert [c.scores for c in evolution.candidates] == [
        tuple(row.values()) for row in result.val_subscores
    ]
    for context, parents in zip(contexts, result.parents, strict=True):
        if parents not in ([None], []):
            assert context.parents == tuple(contexts[p].id for p in parents)
    assert evolution.metric_calls == result.total_metric_calls


@pytest.mark.parametrize("settings", [{}, {"proposals": 1}, {"minibatch": 3, "anchors": 9}])
def test_cycles_equal_direct_gepa_calls_chained_by_the_top_k_rule(settings):
    config = GepaConfig(**settings)
    roll_out, writer = Counted(), Writer()
    part = GepaFast(config, roll_out, writer, RUN_SEED, SIZE, 1000, len)
    population, texts, accepted = seeded(SEED, SIZE), [SEED], 0
    for cycle in range(3):
        roll_out.rollouts = roll_out.calls = 0
        evolution = part.evolve(population, problems_of(cycle), cycle)
        result = direct(list(dict.fromkeys(texts)), cycle, config)
        assert_same(evolution, result)
        assert evolution.metric_calls == roll_out.rollouts <= config.metric_calls
        assert evolution.generate_calls == roll_out.calls
        accepted += evolution.accepted
        rows = [list(row.values()) for row in result.val_subscores]
        texts = [result.candidates[i]["context"] for i in top_of_frontier(rows, SIZE)]
        population = evolution.population
        assert [context.text for context in population.contexts] == texts
    assert accepted > 3
    asked = {e.problem for job in writer.jobs for e in job.examples}
    assert asked <= {problem.text for cycle in range(3) for problem in problems_of(cycle)}


def test_the_first_phase_equals_gepa_s_own_pareto_strategy():
    config = GepaConfig()
    evolution = GepaFast(config, Counted(), Writer(), RUN_SEED, SIZE, 1000, len).evolve(
        seeded(SEED, SIZE), problems_of(0), 0
    )
    assert_same(evolution, direct([SEED], 0, config, own_selector=False))


def test_fronts_are_those_of_gepa():
    result = direct([SEED], 0, GepaConfig(metric_calls=600))
    rows = [list(row.values()) for row in result.val_subscores]
    best = [max(column) for column in zip(*rows, strict=True)]
    fronts = {
        anchor: {i for i, row in enumerate(rows) if row[anchor] == best[anchor]}
        for anchor in range(len(best))
    }
    assert len(rows) > 3 and fronts == result.per_val_instance_best_candidates


def test_a_zero_budget_is_no_search():
    roll_out, start = Counted(), seeded(SEED, SIZE)
    part = GepaFast(GepaConfig(metric_calls=0), roll_out, Writer(), RUN_SEED, SIZE, 1000, len)
    assert part.evolve(start, problems_of(0), 0).population == start
    assert roll_out.calls == 0
