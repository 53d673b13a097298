"""reasoning-gym environments: gold answers, splits, tags, scores, errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fst_core.config import DirectivesConfig, JsonlConfig, ReasoningGymConfig
from fst_core.config.model import ConfigError
from fst_core.environments.errors import DataError
from fst_core.environments.generators import Generator
from fst_core.environments.reading import read_anywhere, read_tag
from fst_core.environments.reasoning_gym import ReasoningGymEnvironment
from fst_core.environments.registry import make_environment
from fst_core.environments.safety import harmless
from fst_core.environments.splits import SplitStream, split_of
from fst_core.records import SPLITS, Problem, content_id

GENERATORS = (
    "ab acre aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_matrix caesar_cipher "
    "calendar_arithmetic chain_sum coin_flip complex_arithmetic count_bits countdown "
    "decimal_chain_sum dice family_relationships fraction_simplification gcd group_anagrams "
    "gsm_symbolic intermediate_integration knights_knaves lcm leg_counting letter_counting maze "
    "mini_sudoku n_queens number_filtering number_sequence number_sorting path_star "
    "polynomial_equations prime_factorization products rearc rotate_matrix "
    "sentence_reordering shortest_path simple_equations simple_integration spell_backward "
    "spiral_matrix string_insertion string_manipulation syllogism time_intervals "
    "word_sequence_reversal word_sorting"
)
SUMS = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}


def gym(dataset: str, **settings: object) -> ReasoningGymEnvironment:
    config = ReasoningGymConfig.model_validate({"dataset": dataset, **settings})
    return ReasoningGymEnvironment(config)


def tagged(answer: str) -> str:
    return f"Let me see. <answer>{answer}</answer>"


@pytest.mark.parametrize("dataset", GENERATORS.split())
def test_gold_answers_score_one(dataset: str) -> None:
    environment = gym(dataset)
    for split in ("train", "test"):
        for index in range(2):
            problem = environment.problem(split, index)
            verdict = environment.judge(problem, tagged(problem.reference))
            assert verdict.reward == 1.0, problem
            assert verdict.feedback == ("Correct.",)
            assert environment.judge(problem, "").reward == 0.0


def test_codeio_runs_its_programs_and_scores_gold() -> None:
    environment = gym("codeio")
    problems = [environment.problem("train", index) for index in range(20)]
    assert all(environment.judge(p, tagged(p.reference)).reward == 1.0 for p in problems)
    assert len({p.id for p in problems}) > 15


def test_two_codeio_instances_do_not_share_programs() -> None:
    wanted = [gym("codeio").problem("train", i).id for i in range(5)]
    first, second = gym("codeio"), gym("codeio", options={"difficulty": 7})
    mixed = [(first.problem("train", i).id, second.problem("train", i).id) for i in range(5)]
    assert [a for a, _ in mixed] == wanted


def test_splits_are_disjoint_and_held_out_ones_do_not_repeat() -> None:
    environment = gym("chain_sum", options=SUMS, held_out_problems=100)
    texts = {s: [environment.problem(s, i).text for i in range(100)] for s in SPLITS}
    assert environment.size("validation") == environment.size("test") == 100
    assert environment.size("train") is None
    for held_out in ("validation", "test"):
        assert len(set(texts[held_out])) == 100
        assert not set(texts[held_out]) & set(texts["train"])
    assert not set(texts["validation"]) & set(texts["test"])


def test_another_seed_never_moves_a_problem_to_another_split() -> None:
    tests = gym("chain_sum", options={**SUMS, "max_terms": 2, "max_digits": 1}, seed=1)
    trains = gym("chain_sum", options={**SUMS, "max_terms": 2, "max_digits": 1}, seed=2)
    size = tests.size("test")
    assert size is not None and 5 < size < 60
    held_out = {tests.problem("test", i).text for i in range(size)}
    assert not held_out & {trains.problem("train", i).text for i in range(500)}
    with pytest.raises(IndexError, match=f"has {size} test problems, and problem number"):
        tests.problem("test", size)


def test_problems_do_not_depend_on_the_order_of_access() -> None:
    settings = {"options": {**SUMS, "max_terms": 2, "max_digits": 1}}
    forward, backward = gym("chain_sum", **settings), gym("chain_sum", **settings)
    straight = [forward.problem(s, i) for s in SPLITS for i in range(8)]
    forward_size = forward.size("test")
    backward.problem("train", 5000)
    reverse = [backward.problem(s, i) for s in reversed(SPLITS) for i in reversed(range(8))]
    assert straight == reverse[::-1]
    assert forward_size == backward.size("test")
    assert forward.problem("train", 3) != gym("chain_sum", seed=9).problem("train", 3)


def test_problems_are_the_same_in_processes_with_other_hash_seeds() -> None:
    code = (
        "from fst_core.environments.generators import Generator\n"
        "for name in ('chain_sum', 'word_sorting', 'codeio', 'syllogism'):\n"
        "    g = Generator(name, {}, 3)\n"
        "    print([(g.entry(i) or {}).get('answer') for i in range(15)])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


def test_generators_that_depend_on_hashing_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(DataError, match="PYTHONHASHSEED=0"):
        gym("word_ladder").problem("train", 0)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert gym("word_ladder").problem("train", 0).reference


def test_the_note_changes_neither_split_nor_id() -> None:
    bare, noted = gym("gcd"), gym("gcd", question_note="Be brief.")
    for index in range(5):
        a, b = bare.problem("test", index), noted.problem("test", index)
        assert a.id == b.id and b.text == f"{a.text}\n\nBe brief."


def test_a_missing_tag_gives_zero_and_feedback_names_the_tag() -> None:
    environment = gym("chain_sum", tag="final")
    problem = environment.problem("train", 0)
    verdict = environment.judge(problem, problem.reference)
    assert verdict.reward == 0.0
    assert verdict.subscores == {"format": 0.0, "answer": 1.0, "readable": 1.0}
    assert "Give the final answer inside <final></final> tags." in verdict.feedback
    assert "The answer itself is right, only its form is not." in verdict.feedback
    assert "tag" not in problem.text


def test_answers_are_read_anywhere_when_the_config_says_so() -> None:
    environment = gym("chain_sum", answer="anywhere")
    problem = environment.problem("train", 0)
    assert environment.judge(problem, f"1 + 1 = {problem.reference}.").reward == 1.0
    assert environment.judge(problem, "I do not know").feedback[0].startswith("No answer")


def test_partial_credit_can_be_switched_off() -> None:
    lenient, strict = gym("spell_backward"), gym("spell_backward", partial_credit=False)
    problem = lenient.problem("train", 0)
    almost = tagged(problem.reference[:-1])
    assert 0 < lenient.judge(problem, almost).reward < 1
    assert strict.judge(problem, almost).reward == 0.0
    assert strict.judge(problem, tagged(problem.reference)).reward == 1.0


def test_a_scorer_that_accepts_anything_is_replaced() -> None:
    environment = gym("game_of_life_halting")
    problem = environment.problem("train", 0)
    assert environment.judge(problem, tagged("zzz")).reward == 0.0
    assert environment.judge(problem, tagged(problem.reference.lower())).reward == 1.0


def test_an_answer_the_scorer_cannot_read_is_counted() -> None:
    environment = gym("prime_factorization")
    verdict = environment.judge(environment.problem("train", 0), tagged("two times three"))
    assert verdict.reward == 0.0 and verdict.subscores["readable"] == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9**9",
        "((9**99)**99)**99",
        "9**(99*99*99)",
        "__import__('os')",
        "x.__class__",
        "2**999",
        "1e-999999999",
    ],
)
def test_formulas_that_could_run_code_or_forever_are_refused(answer: str) -> None:
    assert not harmless("simple_integration", answer)
    assert not harmless("countdown", answer)
    generator = Generator("simple_integration", {}, 0)
    entry = generator.entry(0)
    assert entry and generator.score(entry, answer) is None


@pytest.mark.parametrize("answer", ["exec('1')", "['a']*10**10", "[1 for x in y]", "().__class__"])
def test_python_is_not_evaluated(answer: str) -> None:
    assert not harmless("n_queens", answer)
    assert harmless("n_queens", "[['_', 'Q'], ['Q', '_']]")


@pytest.mark.parametrize(
    "answer", ["-34*x**8/15 - 5*x/4 + C", "-4*(-2*x - 8)**(3/2)/3 + C", "sin(x)"]
)
def test_plain_formulas_are_scored(answer: str) -> None:
    assert harmless("simple_integration", answer)


def test_an_unknown_generator_names_close_ones() -> None:
    with pytest.raises(ConfigError, match="no generator 'chainsum'; did you mean chain_sum"):
        gym("chainsum")
    with pytest.raises(ConfigError, match="no generator 'qqqqq'; see reasoning-gym"):
        gym("qqqqq")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_term": 2}, "refuses .* unexpected keyword argument 'min_term'"),
        ({"min_terms": 9, "max_terms": 2}, "max_terms must be >= min_terms"),
        ({"seed": 1}, "options.seed: is set by the lab"),
    ],
)
def test_refused_options_are_config_errors(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gym("chain_sum", options=options)


def test_a_composite_is_explained_by_the_family_of_each_problem() -> None:
    parts = [
        {"name": "chain_sum", "weight": 1.0, "config": {}},
        {"name": "spell_backward", "weight": 1.0, "config": {}},
    ]
    environment = gym("composite", options={"datasets": parts}, name="mix")
    problems = [environment.problem("train", i) for i in range(12)]
    assert {p.metadata["source_dataset"] for p in problems} == {"chain_sum", "spell_backward"}
    assert all(environment.judge(p, tagged(p.reference)).reward == 1.0 for p in problems)
    told = {environment.judge(p, tagged("zzz")).feedback[-1] for p in problems}
    assert len(told) == 2


def test_a_stream_without_train_problems_stops_with_a_reason() -> None:
    stream = SplitStream("none", lambda index: None, lambda problem: problem.text)
    with pytest.raises(DataError, match="'none' made no train problem out of 20000 candidates"):
        stream.problem("train", 0)
    with pytest.raises(IndexError, match="negative"):
        stream.problem("train", -1)


def test_shares_of_a_stream_are_about_80_10_10() -> None:
    splits = [split_of(f"question {i}") for i in range(4000)]
    assert abs(splits.count("validation") / 4000 - 0.1) < 0.02
    assert abs(splits.count("test") / 4000 - 0.1) < 0.02
    assert split_of("a  b\n") == split_of("a b")
    assert [split_of(f"q{i}", 0.4, 0.4) for i in range(2000)].count("train") < 500


def test_a_small_space_exhausts_its_held_out_splits() -> None:
    def candidate(index: int) -> Problem:
        text = f"question {index % 50}"
        return Problem(content_id(text), "small", ({"role": "user", "content": text},), "1")

    stream = SplitStream("small", candidate, lambda problem: problem.text)
    expected = len({f"question {i}" for i in range(50) if split_of(f"question {i}") == "test"})
    assert stream.size("test") == expected


@pytest.mark.parametrize(
    ("completion", "reference", "answer"),
    [
        ("I add 3 and 4, so 7.", "12", "7"),
        ("It is 1,234", "1234", "1234"),
        ("x2 is -5", "3", "-5"),
        ("no number", "3", ""),
        ("Thinking...\n\nThe answer is Paris", "Rome", "Paris"),
        ('Sure: {"a": [1]} done', '{"a": 1}', '{"a": [1]}'),
        ("1 2\n3 4", "5 6\n7 8", "1 2\n3 4"),
    ],
)
def test_reading_anywhere(completion: str, reference: str, answer: str) -> None:
    assert read_anywhere(completion, reference) == answer


@pytest.mark.parametrize(
    ("completion", "wrong"),
    [
        ("", "The response is empty."),
        ("7", "The response has no <answer></answer> tags."),
        ("<answer>7", "opened but never closed"),
        ("7</answer>", "closed but never opened"),
        ("<answer> </answer>", "nothing inside"),
    ],
)
def test_reading_a_tag_says_what_is_missing(completion: str, wrong: str) -> None:
    reading = read_tag(completion, "answer")
    assert reading.answer is None and wrong in reading.feedback[0]
    assert reading.feedback[1] == "Give the final answer inside <answer></answer> tags."
    assert read_tag("<answer>1</answer> or <answer> 2 </answer>", "answer").answer == "2"


def test_the_registry_builds_every_kind(tmp_path: object) -> None:
    assert make_environment(ReasoningGymConfig(dataset="gcd", name="g")).name == "g"
    directives = make_environment(DirectivesConfig())
    problem = directives.problem("train", 0)
    assert directives.judge(problem, problem.reference).reward == 1.0
    with pytest.raises(ConfigError, match="no_such"):
        make_environment(DirectivesConfig(required=("no_such",)))
    with pytest.raises(DataError, match="no such file"):
        make_environment(JsonlConfig(path=f"{tmp_path}/none.jsonl"))


def test_programs_of_codeio_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = gym("codeio")
    for index in range(40):
        environment.problem("train", index)
    assert list(tmp_path.iterdir()) == []
