"""Feedback: says what was wrong, repeats its requirement, and never holds the reference."""

import re

import pytest

from fst_core.config import ReasoningGymConfig
from fst_core.environments.feedback import Case, explain, requirement
from fst_core.environments.feedback.guard import holds, without_reference
from fst_core.environments.feedback.kinds import kind_of, parsed
from fst_core.environments.reasoning_gym import ReasoningGymEnvironment
from fst_core.rollouts import judge

GENERATORS = (
    "acre base_conversion basic_arithmetic binary_matrix caesar_cipher calendar_arithmetic "
    "chain_sum codeio count_bits decimal_chain_sum dice family_relationships "
    "fraction_simplification game_of_life gcd graph_color group_anagrams gsm_symbolic "
    "knights_knaves leg_counting letter_counting mini_sudoku number_filtering number_sorting "
    "path_star rotate_matrix sentence_reordering shortest_path simple_equations spell_backward "
    "spiral_matrix string_insertion string_manipulation syllogism time_intervals "
    "word_sequence_reversal word_sorting zebra_puzzles"
)


def environment_of(dataset: str, **settings: object) -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment(
        ReasoningGymConfig.model_validate({"dataset": dataset, **settings})
    )


def case(reference: str, answer: str, family: str = "", question: str = "?") -> Case:
    return Case(family, question, reference, {}, answer, answer, 0.0)


def wrong_answers(reference: str) -> list[str]:
    """Answers that are wrong in many ways, near and far."""
    near = [reference[:-1], reference[1:], reference.swapcase(), reference[::-1], reference * 2]
    if re.fullmatch(r"-?\d+", reference):
        near += [str(int(reference) + d) for d in (-1, 1, 10)] + [str(-int(reference)), "12 13"]
    items = reference.split()
    near += [" ".join(items[::-1]), " ".join(items[1:]), f"{reference} and more"]
    far = [
        "",
        "zzz",
        "[1, 2]",
        '{"a": 1',
        "{'a': True}",
        "3.5",
        "1 2\n3 4",
        "a, b",
        "1/2",
        "5 apples",
    ]
    return near + far


@pytest.mark.parametrize("dataset", GENERATORS.split())
def test_feedback_is_never_empty_and_never_holds_the_reference(dataset: str) -> None:
    environment = environment_of(dataset)
    for split in ("train", "validation", "test"):
        problem = environment.problem(split, 0)
        for answer in wrong_answers(problem.reference):
            for completion in (answer, f"<answer>{answer}</answer>", f"<answer>{answer}"):
                verdict = environment.judge(problem, completion)
                assert verdict.feedback and all(verdict.feedback)
                assert len(set(verdict.feedback)) == len(verdict.feedback)
                known = f"{problem.text} {completion}"
                if problem.reference and not holds(known, problem.reference):
                    assert not any(holds(s, problem.reference) for s in verdict.feedback)


@pytest.mark.parametrize("dataset", ["path_star", "chain_sum", "letter_counting", "codeio"])
def test_the_requirement_is_the_same_for_every_problem(dataset: str) -> None:
    environment = environment_of(dataset)
    verdicts = [
        environment.judge(environment.problem("train", i), "<answer>zzz</answer>") for i in range(6)
    ]
    assert len({v.feedback[-1] for v in verdicts}) == 1


def test_a_right_answer_gets_one_short_sentence() -> None:
    right = Case("chain_sum", "?", "5", {}, "5", "5", 1.0)
    assert explain(right) == ("Correct.",)


@pytest.mark.parametrize(
    ("reference", "answer", "family", "sentence"),
    [
        ("12", "13", "chain_sum", "The number is off by only one."),
        ("12", "-12", "chain_sum", "The sign of the number is wrong."),
        ("12", "90", "chain_sum", "The number is too large."),
        ("12", "1", "chain_sum", "The number has the wrong number of digits."),
        (
            "12",
            "7 + 6 = 13",
            "chain_sum",
            "The calculation is repeated; only its result is wanted.",
        ),
        ("12", "15 apples", "gsm_symbolic", "There is other text beside the number."),
        ("12", "dunno", "gsm_symbolic", "There is no number in the answer."),
        ("12", "3.5", "", "The answer has decimals where a whole number was asked for."),
        ('{"a": 1}', "{'a': 2}", "codeio", "JSON puts strings and keys in double quotes."),
        ('{"a": 1}', '{"b": 2}', "codeio", "The key 'b' is not wanted."),
        (
            '{"a": 1}',
            '{"a": "x"}',
            "codeio",
            "The value of 'a' is a string where a number was required.",
        ),
        ('{"a": [1, 2]}', '{"a": [1]}', "codeio", "The value of 'a' has too few entries."),
        ('{"a": true}', "{'a': True", "codeio", "JSON writes true, false and null in lower case."),
        ('{"a": 1}', '{"a": ', "codeio", "The answer looks cut off; leave room to finish it."),
        ("[1, 2]", "[2, 2]", "", "The answer goes wrong at position 1."),
        (
            "['1.0', '2.0']",
            "['2', '1']",
            "number_sorting",
            "The entries are in the opposite order.",
        ),
        ("['1.0', '2.0']", "['2']", "number_sorting", "The entry 1.0 of the question is missing."),
        (
            "['1.0', '2.0']",
            "1, 2",
            "number_sorting",
            "The answer is not a list in square brackets.",
        ),
        ("a, b, c", "a, c, b", "word_sorting", "The list is not in order at position 2."),
        ("a, b, c", "a b c", "word_sorting", "The words are not separated by commas."),
        ("abc", "abd", "string_manipulation", "The answer goes wrong at character 3."),
        (
            "abc",
            "a b c",
            "string_manipulation",
            "The answer must be a single string without spaces.",
        ),
        ("1 2\n3 4", "1 2", "", "The answer has too few lines."),
        ("1 2\n3 4", "1 2\n3", "", "Line 2 has the wrong number of entries."),
        ("1 2\n3 4", "1 2\n4 3", "", "Line 2 is the first with a mistake."),
        ("Yes", "maybe", "", "The answer is not one of the two words that were asked for."),
        ("1/2", "0.5", "", "The answer is not written as a fraction with a slash."),
        ("apple", "Apple", "", "Only upper and lower case are wrong."),
        ("apple", "a red apple", "", "The answer has more than a single word."),
        ("a red apple", "apple a red", "", "The words are right but their order is wrong."),
        ("x y", "", "", "The answer is empty."),
    ],
)
def test_faults_are_named(reference: str, answer: str, family: str, sentence: str) -> None:
    assert sentence in explain(case(reference, answer, family, question="1.0 is a number"))


def test_a_path_is_checked_against_the_graph() -> None:
    question = "Solve the task:\n|1 2|1 3|2 4|3 5/1 5 = \n"
    wrong = explain(case("1 3 5", "2 3 4", "path_star", question))
    assert "The path must start at node 1." in wrong
    assert "The path must end at node 5." in wrong
    assert "There is no edge between 2 and 3 in the graph." in wrong
    text = explain(case("1 3 5", "1 -> 3", "path_star", question))
    assert "The answer holds other text than node labels and spaces." in text


def test_missing_keys_are_named_only_where_the_question_names_them() -> None:
    named = case('{"root": 1}', "{}", "codeio", "Return `root` (float).")
    assert "The key 'root' is missing." in explain(named)
    assert "A key is missing." in explain(case('{"e2": 1}', "{}", "codeio"))


def test_a_repeated_word_is_told_from_a_wrong_one() -> None:
    repeated = Case("spell_backward", "?", "nus", {"word": "sun"}, "sun", "sun", 0.0)
    assert "The word is repeated as it is, not backwards." in explain(repeated)


def test_the_guard_drops_sentences_with_the_reference() -> None:
    told = ["It is 7.", "It is 17.", "Look again."]
    assert without_reference(told, case("7", "8")) == ("It is 17.", "Look again.")
    assert without_reference(told, case("7", "7 or 8")) == tuple(told)
    assert holds("say abc def!", "ABC-def") and not holds("start", "art")
    assert holds("so [[1,2],[3,4]]", "[[1, 2], [3, 4]]") and holds("x ✅ ❌", "✅❌")


def test_even_the_requirement_gives_way_to_the_guard() -> None:
    assert requirement(case("count", "7", "letter_counting")) == ()
    assert explain(case("wrong", "right")) != ()


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("-4", "integer"), ("1,000", "integer"), ("0.5", "number"), ("3/4", "fraction"),
        ("True", "boolean"), ("[1]", "list"), ('{"a": 1}', "object"), ("1 2\n3 4", "grid"),
        ("a, b", "entries"), ("word", "word"), ("two words", "text"), ("", "text"),
    ],
)  # fmt: skip
def test_kinds(reference: str, kind: str) -> None:
    assert kind_of(reference) == kind


ODD = ["{{}}", '{{"a": 1}}', "{[1]: 2}", "[{[]}]", "{{1}: 2}", "[" * 5000, "9" * 5000, "-", "\\x"]


@pytest.mark.parametrize("answer", ODD, ids=range(len(ODD)))
def test_what_no_parser_takes_is_no_literal(answer: str) -> None:
    assert parsed(answer) is None or answer.isdigit()


@pytest.mark.parametrize("dataset", GENERATORS.split())
def test_no_answer_breaks_a_judge(dataset: str) -> None:
    environment = environment_of(dataset)
    problem = environment.problem("train", 0)
    for answer in ODD:
        assert 0 <= judge(environment, problem, f"<answer>{answer}</answer>").reward <= 1
