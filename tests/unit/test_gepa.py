import math
from collections.abc import Sequence

import pytest
from gepa.proposer.reflective_mutation.reflective_mutation import ReflectiveMutationProposer

from fst_core.config.fast import GepaConfig, RulesReflection
from fst_core.fast.adapter import score_of
from fst_core.fast.gepa import GepaFast
from fst_core.fast.reflection import Job, Proposal, ReflectionError
from fst_core.fast.rules import Rules
from fst_core.records import Context, Population, Verdict, seed_of, seeded
from tests.unit.simulated import Simulated, count_words, random_words

SEED = "You are a helpful assistant."


class Scripted:
    """Proposes what `write` makes of each job, and keeps the jobs."""

    def __init__(self, write):
        self.write = write
        self.jobs: list[Job] = []
        self.calls = 0
        self.usage: dict[str, float] = {}

    def propose(self, jobs: Sequence[Job]) -> list[Proposal]:
        self.calls += 1
        self.jobs += jobs
        return [self.write(job) for job in jobs]


def add_required(job):
    told = dict.fromkeys(s for e in job.examples for s in e.feedback if s not in job.context)
    return Proposal("\n".join([job.context, *told]), "add")


@pytest.fixture
def policy():
    return Simulated(tuple(random_words(1, 2)))


def fast(policy, reflection=None, run_seed=3, size=4, max_tokens=200, **settings):
    reflection = reflection or Rules(RulesReflection(), lambda text: True)
    config = GepaConfig(**settings)
    return GepaFast(config, policy, reflection, run_seed, size, max_tokens, count_words)


def several(policy):
    texts = [SEED, *(f"{SEED}\n{policy.line(w)}" for w in policy.words), "Be brief.", "Be brief."]
    return Population(tuple(Context(text, operator="made") for text in texts))


def test_no_budget_leaves_the_population_and_generates_nothing(policy):
    start = several(policy)
    evolution = fast(policy, metric_calls=0).evolve(start, policy.problems(20), 0)
    assert evolution.population is start and evolution.metric_calls == 0
    assert policy.calls == 0


def test_a_limit_below_one_scoring_of_the_population_generates_nothing(policy):
    evolution = fast(policy, metric_calls=63).evolve(several(policy), policy.problems(20), 0)
    assert evolution.population == several(policy) and policy.rollouts == 0


def test_a_limit_for_one_scoring_scores_and_orders_the_population(policy):
    both = Context("\n".join(map(policy.line, policy.words)))
    start = Population((Context(SEED), both))
    evolution = fast(policy, metric_calls=32, size=2).evolve(start, policy.problems(20), 0)
    assert evolution.metric_calls == policy.rollouts == 32 and policy.calls == 1
    assert evolution.population.contexts == (both, Context(SEED))
    assert sum(evolution.population.scores[0]) > 0 == sum(evolution.population.scores[1])
    assert evolution.proposals == 0


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("limit", [*range(60, 140, 7), 256])
def test_the_ledger_is_what_was_generated_and_stays_below_the_limit(policy, limit, samples):
    part = fast(policy, metric_calls=limit, anchors=6, samples_per_anchor=samples)
    for cycle, start in enumerate([seeded(SEED, 4), several(policy)]):
        policy.rollouts = policy.calls = 0
        evolution = part.evolve(start, policy.problems(30), cycle)
        assert evolution.metric_calls == policy.rollouts <= limit
        assert evolution.generate_calls == policy.calls


def test_a_search_step_makes_two_or_three_engine_calls(policy):
    evolution = fast(policy).evolve(seeded(SEED, 4), policy.problems(64), 0)
    steps = evolution.reflection_calls
    assert steps >= 5 and evolution.accepted > 0
    assert evolution.generate_calls == 1 + 2 * steps + evolution.accepted
    assert evolution.proposals <= 4 * steps


def test_rollout_seeds_count_the_metric_calls_of_the_phase(policy):
    evolution = fast(policy, run_seed=9).evolve(several(policy), policy.problems(20), 5)
    assert policy.seeds == [seed_of(9, "fast", 5, n) for n in range(evolution.metric_calls)]


def test_the_same_seed_gives_the_same_phase(policy):
    problems = policy.problems(40)
    first, second, other = (
        fast(policy, run_seed=s).evolve(several(policy), problems, 2) for s in (7, 7, 8)
    )
    assert first == second
    assert first.candidates != other.candidates


def test_anchor_scores_average_several_rollouts(policy):
    evolution = fast(policy, samples_per_anchor=4, anchors=5).evolve(
        several(policy), policy.problems(20), 0
    )
    scores = [score for candidate in evolution.candidates for score in candidate.scores]
    assert all(math.isclose(score * 4, round(score * 4)) for score in scores)
    assert any(0 < score < 1 for score in scores)


def test_old_contexts_keep_their_lineage_and_new_ones_name_their_parents(policy):
    start = several(policy)
    evolution = fast(policy, Scripted(add_required)).evolve(start, policy.problems(40), 3)
    contexts = [candidate.context for candidate in evolution.candidates]
    assert contexts[:4] == list(dict.fromkeys(start.contexts))
    assert len(contexts) == 4 + evolution.accepted and evolution.accepted > 0
    ids = [context.id for context in contexts]
    for place, context in enumerate(contexts[4:], 4):
        assert (context.cycle, context.operator) == (3, "add")
        assert len(context.parents) == 1 and ids.index(context.parents[0]) < place
    chosen = evolution.population
    by_id = {c.context.id: c for c in evolution.candidates}
    assert len(chosen.contexts) == 4
    for context, scores in zip(chosen.contexts, chosen.scores, strict=True):
        assert by_id[context.id].context == context and by_id[context.id].scores == scores


def test_a_merge_names_both_parents(policy):
    a, b = (Context(policy.line(word)) for word in policy.words)

    def join(job):
        other = job.pool[0].text
        return Proposal(f"{job.context}\n{other}", "merge", (Context(other).id,))

    part = fast(policy, Scripted(join), metric_calls=400)
    evolution = part.evolve(Population((a, b)), policy.problems(40), 1)
    merged = evolution.candidates[2].context
    assert merged.operator == "merge" and set(merged.parents) == {a.id, b.id}


def test_refused_proposals_cost_no_rollout_and_are_counted(policy):
    texts = {0: None, 1: " \n", 2: "word " * 300, 3: SEED}
    reasons = {"unparsable", "empty", "too_long", "repeated"}
    counter = iter(range(10**6))
    reflection = Scripted(lambda job: Proposal(texts[next(counter) % 4], "bad"))
    evolution = fast(policy, reflection).evolve(seeded(SEED, 4), policy.problems(64), 0)
    steps = evolution.reflection_calls
    assert set(evolution.rejected) == reasons
    assert sum(evolution.rejected.values()) == evolution.proposals == 4 * steps
    assert evolution.metric_calls == 16 + 16 * steps == policy.rollouts
    assert evolution.population == Population(seeded(SEED, 4).contexts, evolution.population.scores)


def test_two_equal_proposals_of_one_step_are_evaluated_once(policy):
    reflection = Scripted(lambda job: Proposal("Always the same.", "same"))
    evolution = fast(policy, reflection).evolve(seeded(SEED, 4), policy.problems(64), 0)
    steps = evolution.reflection_calls
    assert evolution.rejected == {"repeated": 3 * steps}
    assert evolution.metric_calls == 16 + (16 + 4) * steps


def test_only_the_phase_s_problems_reach_reflection_and_never_a_reference(policy):
    reflection = Scripted(add_required)
    problems = policy.problems(12)
    evolution = fast(policy, reflection).evolve(several(policy), problems, 0)
    assert len(reflection.jobs) == evolution.proposals > 0
    asked = {e.problem for job in reflection.jobs for e in (*job.examples, *job.rewarded)}
    assert asked <= {problem.text for problem in problems}
    for job in reflection.jobs:
        assert all(e.reward > 0 for e in job.rewarded) and len(job.examples) == 4
        assert job.context not in [peer.text for peer in job.pool]
        assert all(p.reference not in str(e.feedback) for e in job.examples for p in problems)


def test_what_a_roll_out_raises_comes_through(policy):
    class Broken(Simulated):
        def __call__(self, pairs, seeds):
            if self.calls == 3:
                raise FloatingPointError("engine")
            return super().__call__(pairs, seeds)

    broken = Broken(policy.words)
    with pytest.raises(FloatingPointError, match="engine"):
        fast(broken).evolve(seeded(SEED, 4), broken.problems(20), 0)
    assert broken.calls == 3


def test_a_roll_out_that_loses_rollouts_is_an_error(policy):
    part = fast(lambda pairs, seeds: policy(pairs, seeds)[1:])
    with pytest.raises(ValueError, match="16 roll-outs asked for, 15 came back"):
        part.evolve(seeded(SEED, 4), policy.problems(20), 0)


@pytest.mark.parametrize("error", [ReflectionError("server down"), KeyError("bug")])
def test_a_failing_reflection_stops_the_search_and_is_raised(policy, error):
    def fail(job):
        raise error

    reflection = Scripted(fail)
    with pytest.raises(ReflectionError, match=r"server down|bug") as caught:
        fast(policy, reflection).evolve(seeded(SEED, 4), policy.problems(20), 0)
    assert reflection.calls == 1 and policy.calls == 2
    assert error in (caught.value, caught.value.__cause__)


def test_too_few_proposals_are_an_error(policy):
    reflection = Scripted(add_required)
    reflection.propose = lambda jobs: []
    with pytest.raises(ReflectionError, match="reflection failed"):
        fast(policy, reflection).evolve(seeded(SEED, 4), policy.problems(20), 0)


def test_a_search_that_never_reflects_is_an_error(policy, monkeypatch):
    monkeypatch.setattr(
        ReflectiveMutationProposer,
        "_propose_texts_batch_safe",
        lambda self, jobs: [None for _ in jobs],
    )
    with pytest.raises(ReflectionError, match="asked for 0 reflections"):
        fast(policy).evolve(seeded(SEED, 4), policy.problems(20), 0)


def test_perfect_rollouts_need_no_reflection():
    policy = Simulated((), right=1.0)
    evolution = fast(policy).evolve(seeded(SEED, 2), policy.problems(20), 0)
    assert evolution.proposals == 0 and evolution.population.contexts[0] == Context(SEED)


def test_fewer_problems_than_anchors_or_minibatch_is_fine(policy):
    evolution = fast(policy).evolve(seeded(SEED, 4), policy.problems(3), 0)
    assert len(evolution.population.scores[0]) == 3
    assert evolution.metric_calls == policy.rollouts <= 256
    with pytest.raises(ValueError, match="at least one problem"):
        fast(policy).evolve(seeded(SEED, 4), [], 0)


def test_usage_of_the_phase_is_the_difference(policy):
    reflection = Scripted(add_required)
    reflection.usage["usd"] = 5.0

    def spend(job):
        reflection.usage["usd"] += 0.25
        return add_required(job)

    reflection.write = spend
    evolution = fast(policy, reflection).evolve(seeded(SEED, 4), policy.problems(20), 0)
    assert evolution.reflection_usage == {"usd": 0.25 * evolution.proposals}


def test_gepa_prints_nothing(policy, capfd):
    fast(policy).evolve(seeded(SEED, 4), policy.problems(20), 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shown", [True, False])
def test_solutions_reach_reflection_only_where_the_search_is_given_them(policy, shown):
    """Every solution shown is of a problem of this phase; without `solve` none is."""
    reflection, problems = Scripted(add_required), policy.problems(20)
    solve = (lambda problem: f"solution of {problem.id}") if shown else None
    settings = GepaConfig(metric_calls=200, anchors=4, minibatch=2, proposals=2)
    part = GepaFast(settings, policy, reflection, 3, 4, 200, count_words, solve)
    part.evolve(seeded(SEED, 4), problems, 0)
    examples = [example for job in reflection.jobs for example in job.rewarded]
    solutions = {e.response for e in examples if e.response.startswith("solution of ")}
    assert solutions <= {f"solution of {p.id}" for p in problems}
    assert bool(solutions) is shown


def test_subscores_break_ties_only_as_far_as_the_config_says():
    verdict = Verdict(0.5, (), {"format": 1.0, "answer": 0.0})
    assert score_of(verdict, 0.0) == 0.5
    assert score_of(verdict, 0.01) == pytest.approx(0.505)
    assert score_of(Verdict(1.0), 0.01) == 1.0


@pytest.mark.parametrize("patience", [1, 3])
def test_a_search_without_a_better_best_ends_after_its_patience(policy, patience):
    useless = Scripted(lambda job: Proposal(f"{job.context}\nBe brief {job.seed}.", "add"))
    fast(policy, useless, patience=patience, metric_calls=4000).evolve(
        seeded(SEED, 4), policy.problems(20), 0
    )
    assert useless.calls == patience


def test_patience_begins_anew_with_every_better_best(policy):
    patient = fast(policy, Scripted(add_required), patience=2, metric_calls=4000)
    evolution = patient.evolve(seeded(SEED, 4), policy.problems(20), 0)
    endless = fast(policy, Scripted(add_required), metric_calls=4000)
    same = endless.evolve(seeded(SEED, 4), policy.problems(20), 0)
    assert evolution.accepted >= 1
    assert max(map(sum, evolution.population.scores)) == max(map(sum, same.population.scores))
    assert evolution.metric_calls < same.metric_calls
