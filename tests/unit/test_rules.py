from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fst_core.config.fast import GepaConfig, RulesReflection
from fst_core.environments.directives import DIRECTIVES
from fst_core.fast import rules
from fst_core.fast.gepa import GepaFast
from fst_core.fast.reflection import Example, Job, Peer
from fst_core.fast.rules import Rules, lesson_weights, text_of, units_of
from fst_core.records import Context, content_id, seed_of, seeded
from tests.unit.simulated import Simulated, count_words, random_words

SEED = "You are a helpful assistant."
NONE = {f"{name}_weight": 0 for name in ("lesson", "example", "drop", "replace", "merge")}


def only(name, fits=lambda text: True):
    return Rules(RulesReflection(**{**NONE, f"{name}_weight": 1}), fits)


def texts(reflection, job, tries=60):
    return [
        reflection.propose([replace(job, seed=seed)])[0].text.splitlines() for seed in range(tries)
    ]


def failed(*feedback, reward=0.0):
    return Example("What is it?", "that", reward, feedback)


def test_units_keep_the_two_lines_of_an_example_together():
    text = "One.\nExample input: a\nExample output: b\nExample output: alone\nTwo."
    assert units_of(text) == [
        ("One.",),
        ("Example input: a", "Example output: b"),
        ("Example output: alone",),
        ("Two.",),
    ]
    assert text_of(units_of(text)) == text
    assert units_of("") == units_of(" \n\n") == []


def test_a_sentence_weighs_by_the_rewards_missed_where_it_was_said():
    examples = [failed("A."), failed("A.", "A.", "B."), failed("C.", reward=0.5), failed("D.")]
    weights = lesson_weights([*examples, failed("E.", reward=1.0)], f"{SEED}\nD.")
    assert weights == {"A.": 4.0, "B.": 1.0, "C.": 0.25}


def test_lessons_are_feedback_sentences_the_repeated_ones_most():
    job = Job(SEED, (failed("Common."), failed("Common.", "Rare\nthing."), failed("Common.")))
    added = [line for text in texts(only("lesson"), job) for line in text[1:]]
    assert set(added) == {"Common.", "Rare thing."}
    assert added.count("Common.") > added.count("Rare thing.")


def test_all_that_one_rollout_was_told_is_often_added_at_once():
    job = Job(SEED, (failed("A.", "B.", "C."), failed("D.")))
    assert texts(only("lesson"), job).count([SEED, "A.", "B.", "C."]) > 10


def test_a_worked_example_is_two_lines_of_a_rewarded_rollout():
    good = Example("How\nmany?", "12\n34", 1.0)
    job = Job(SEED, (failed("A."),), (good, Example("Poor?", "bad", 0.2)))
    expected = [SEED, "Example input: How many?", "Example output: 12 34"]
    assert texts(only("example"), job) == [expected] * 60


def test_without_a_rewarded_rollout_there_are_only_lessons():
    reflection = Rules(RulesReflection(**{**NONE, "lesson_weight": 1, "example_weight": 9}), bool)
    for text in texts(reflection, Job(SEED, (failed("A."),))):
        assert text == [SEED, "A."]


def test_examples_are_swapped_once_there_are_enough():
    shown = "\n".join(f"Example input: q{n}\nExample output: r{n}" for n in range(3))
    job = Job(f"{SEED}\n{shown}", (failed("A."),), (Example("new", "better", 1.0),))
    for text in texts(only("example"), job):
        assert text.count("Example input: new") == 1
        assert sum(line.startswith("Example input: ") for line in text) == 3
        assert text[text.index("Example input: new") + 1] == "Example output: better"


def test_dropping_shortens_the_context_and_never_empties_it():
    job = Job(f"{SEED}\nFirst. Second.\nExample input: a\nExample output: b", (failed("A."),))
    outcomes = {tuple(text) for text in texts(only("drop"), job)}
    assert (SEED, "First.", "Example input: a", "Example output: b") in outcomes
    assert (SEED, "First. Second.") in outcomes
    assert all(0 < len("".join(o)) < len(job.context) for o in outcomes)
    assert texts(only("drop"), Job("One line", (failed("A."),)), 5) == [["One line"]] * 5


def test_replacing_keeps_the_number_of_lines():
    job = Job(f"{SEED}\nUseless line.", (failed("A."),))
    assert {tuple(t) for t in texts(only("replace"), job)} == {
        ("A.", "Useless line."),
        (SEED, "A."),
    }


def test_a_merge_is_the_union_of_both_and_names_the_other_parent():
    peer = Peer(f"{SEED}\nB.\nExample input: a\nExample output: b", 0.5)
    (proposal,) = only("merge").propose([Job(f"{SEED}\nA.", (failed("C."),), pool=(peer,))])
    assert proposal.operator == "merge" and proposal.parents == (content_id(peer.text),)
    expected = [SEED, "A.", "B.", "Example input: a", "Example output: b"]
    assert proposal.text.splitlines() == expected


def test_proposals_differ_from_the_pool_and_from_each_other():
    job = Job(SEED, (failed("A."), failed("B.", "C.")), pool=(Peer(f"{SEED}\nA.", 0.1),))
    jobs = [replace(job, seed=seed) for seed in range(3)]
    for _ in range(20):
        jobs = [replace(j, seed=seed_of(j.seed)) for j in jobs]
        proposed = [p.text for p in only("lesson").propose(jobs)]
        assert len({*proposed, SEED, f"{SEED}\nA."}) == 5


def test_a_text_that_does_not_fit_is_not_proposed():
    job = Job(SEED, (failed("Short."), failed("A sentence of very many words indeed.")))
    reflection = only("lesson", lambda text: count_words(text) <= 6)
    assert set(map(tuple, texts(reflection, job))) == {(SEED, "Short.")}


LINES = st.lists(st.sampled_from(["A.", "B. C.", "Example input: x", "Example output: y", "d"]))


@given(LINES, LINES, LINES, st.integers(0, 2**62))
def test_any_job_gives_the_same_clean_proposal_twice(lines, feedback, peer, seed):
    examples = (failed(*feedback), failed(reward=1.0))
    pool = (Peer("\n".join(peer), 0.0),)
    job = Job("\n".join(lines), examples, (Example("q", "r", 0.7),), pool, seed)
    first, second = (Rules(RulesReflection(), bool).propose([job]) for _ in range(2))
    assert first == second
    if first[0].operator != "none":
        assert first[0].text == text_of(units_of(first[0].text)) != job.context


@pytest.mark.parametrize("seed", range(4))
def test_evolution_finds_the_rules_of_an_unknown_language(seed):
    policy = Simulated(tuple(random_words(seed, 2)))
    config = GepaConfig()
    reflection = Rules(RulesReflection(), lambda text: True)
    part = GepaFast(config, policy, reflection, seed, 4, 200, count_words)
    population = seeded(SEED, 4)
    for cycle in range(2):
        problems = policy.problems(32, 32 * cycle)
        population = part.evolve(population, problems, cycle).population
    assert all(policy.line(word) in population.best.text for word in policy.words)
    fresh = [(c, p) for c in population.contexts for p in policy.problems(200, 1000)]
    rewards = [r.verdict.reward for r in policy(fresh, range(len(fresh)))]
    ceiling = policy.right * policy.obeys**2
    before = policy([(Context(SEED), p) for p in policy.problems(200)], range(200))
    assert mean(rewards) > 0.7 * ceiling and mean(r.verdict.reward for r in before) == 0


def test_the_rules_hold_no_environment_s_words():
    source = Path(rules.__file__).read_text().lower()
    lines = [line.lower() for d in DIRECTIVES for line in d.lines]
    assert "directive" not in source and not [line for line in lines if line in source]
