"""Problems from JSON lines: graders, splits, and one clear sentence for every bad input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fst_core.config import JsonlConfig
from fst_core.environments.errors import DataAbsent, DataError
from fst_core.environments.graders import GRADERS, choice_of, find_answer
from fst_core.environments.jsonl import JsonlEnvironment, load_problems
from fst_core.environments.reading import read_anywhere, read_tag
from fst_core.records import SPLITS

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def rows(name: str, *lines: Any) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
        return path

    return rows


def questions(count: int, answer: Any = "7", **extra: Any) -> list[dict[str, Any]]:
    return [{"question": f"Question {i}?", "answer": answer, **extra} for i in range(count)]


def load(path: Path, **settings: Any) -> JsonlEnvironment:
    return JsonlEnvironment(JsonlConfig.model_validate({"path": str(path), **settings}))


def test_one_file_is_split_by_question_and_keeps_extra_keys(write: Write) -> None:
    rows = questions(60, source="mine")
    environment = load(write("all.jsonl", *rows))
    split = {s: [environment.problem(s, i) for i in range(environment.size(s))] for s in SPLITS}
    assert sum(map(len, split.values())) == 60 and all(split.values())
    assert len({p.id for problems in split.values() for p in problems}) == 60
    assert split["train"][0].metadata == {"source": "mine"}
    reordered = load(write("reordered.jsonl", *rows[::-1]))
    assert reordered.size("test") == environment.size("test")
    with pytest.raises(IndexError, match=r"has \d+ test problems, and problem number 61"):
        environment.problem("test", 60)


def test_shares_come_from_the_config(write: Write) -> None:
    environment = load(write("all.jsonl", *questions(200)), validation=0.4, test=0.4)
    assert environment.size("validation") > 50 and environment.size("test") > 50


def test_a_folder_keeps_its_own_splits_and_ids(write: Write, tmp_path: Path) -> None:
    for n, split in enumerate(SPLITS):
        write(f"{split}.jsonl", {"question": f"q{n}", "answer": n, "id": f"id{n}"}, "")
    environment = load(tmp_path)
    assert [environment.problem(s, 0).id for s in SPLITS] == ["id0", "id1", "id2"]
    assert environment.problem("test", 0).reference == "2"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{not json"], r"bad\.jsonl:1: is no JSON"),
        (["[1]"], r"bad\.jsonl:1: the row is no object but list"),
        ([{"question": "a", "answer": "1"}, {"question": "b"}], r":2: the row has no 'answer'"),
        ([{"answer": "1"}], r":1: the row has no 'question'"),
        ([{"question": " ", "answer": "1"}], r":1: 'question' must be text that is not empty"),
        ([{"question": "a", "answer": ""}], r":1: 'answer' is empty"),
        (
            [{"question": "a b", "answer": "1"}, "", {"question": "a  b", "answer": "2"}],
            r":3: the same question already stands at .*bad\.jsonl:1",
        ),
        (
            [{"question": "a", "answer": "1", "id": 5}, {"question": "b", "answer": "1", "id": 5}],
            r":2: the same id already stands at .*bad\.jsonl:1",
        ),
        (
            [{"question": "a", "answer": "1", "id": ""}],
            ":1: 'id' must be text that is not empty, or",
        ),
        ([{"question": "a", "answer": "1", "id": None}], r":1: 'id' must be text"),
        ([{"question": "a", "answer": "1", "feedback": 5}], r":1: 'feedback' must be text"),
        ([], r"bad\.jsonl: split train has no problems out of 0"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(write: Write, lines: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(write("bad.jsonl", *lines))


def test_a_question_in_two_split_files_is_an_error(write: Write, tmp_path: Path) -> None:
    for split in SPLITS:
        write(f"{split}.jsonl", {"question": "same?", "answer": "1"})
    with pytest.raises(DataError, match=r"validation\.jsonl:1: the same question .*train\.jsonl:1"):
        load(tmp_path)


def test_missing_and_empty_split_files_are_errors(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataAbsent, match=r"none\.jsonl: no such file; put it there"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(DataAbsent, match=r"no such file .*null"):
        load(tmp_path / "a\0b.jsonl")
    write("train.jsonl", {"question": "a", "answer": "1"})
    write("validation.jsonl", {"question": "b", "answer": "1"})
    with pytest.raises(DataAbsent, match=r"test\.jsonl: no such file"):
        load(tmp_path)
    write("test.jsonl", "")
    with pytest.raises(DataError, match="split test has no problems"):
        load(tmp_path)


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        load(tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("grader", "answer"),
    [("choice", "many words"), ("numeric", "x" * 300), ("numeric", "1e" + "9" * 20)],
)
def test_a_reference_its_grader_cannot_read_is_an_error(
    write: Write, grader: str, answer: str
) -> None:
    with pytest.raises(DataError, match=f":1: grader '{grader}' cannot read the answer"):
        load(write("all.jsonl", *questions(60, answer)), grader=grader)


@pytest.mark.parametrize(
    ("grader", "answer", "reference", "right"),
    [
        ("exact", " two  words ", "two words", True),
        ("exact", "Two words", "two words", False),
        ("numeric", "1,000", "1000.0", True),
        ("numeric", "\\frac{1}{2}", "0.5", True),
        ("numeric", "1/2", "0.5", True),
        ("numeric", "2\\sqrt{2}", "\\sqrt{8}", True),
        ("numeric", "0.51", "0.5", False),
        ("numeric", "9^{9^{9^9}}", "5", False),
        ("numeric", "2**999999999", "5", False),
        ("numeric", "2^{99*99*99*99*99}", "5", False),
        ("numeric", "(((9^{99})^{99})^{99})^{99}", "5", False),
        ("numeric", "1e999999999", "5", False),
        ("numeric", "1e" + "9" * 20, "5", False),
        ("numeric", "1e-" + "9" * 20, "5", False),
        ("choice", "(b) Paris", "B", True),
        ("choice", "The answer is C because A is wrong.", "C", True),
        ("choice", "\\boxed{D}", "D", True),
        ("choice", "None of them", "A", False),
        ("json", '{"b": [1, 2], "a": 1.0}', '{"a": 1, "b": [1, 2]}', True),
        ("json", '{"a": true}', '{"a": 1}', False),
        ("json", "{'a': 1}", '{"a": 1}', False),
        ("json", "[1, 2]", "[2, 1]", False),
    ],
)
def test_graders(grader: str, answer: str, reference: str, right: bool) -> None:
    assert GRADERS[grader](answer, reference) is right
    assert GRADERS[grader](reference, reference)


def test_choices_and_answers_are_found_in_free_text() -> None:
    assert [choice_of(t) for t in ("I think D", "A", "B) no", "hm")] == ["D", "A", "B", ""]
    assert find_answer("numeric", "3 and 4 make 7.", "7") == "7"
    assert find_answer("numeric", "so \\boxed{\\frac{1}{2}} it is", "1/2") == "\\frac{1}{2}"
    assert find_answer("json", 'it is {"a": 1}.', '{"a": 2}') == '{"a": 1}'
    assert find_answer("exact", "hm\nAnswer: Rome", "Rome") == "Rome"


def test_judging_with_and_without_tags(write: Write) -> None:
    path = write("all.jsonl", *questions(60, 7, feedback="Think of primes."))
    tags, anywhere = load(path, grader="numeric", answer="tag"), load(path, grader="numeric")
    problem = tags.problem("train", 0)
    assert tags.judge(problem, "<answer>7.0</answer>").feedback == ("Correct.",)
    untagged = tags.judge(problem, "It is 7")
    assert untagged.reward == 0 and untagged.subscores == {"format": 0.0, "answer": 1.0}
    assert "Give the final answer inside <answer></answer> tags." in untagged.feedback
    assert anywhere.judge(problem, "It is 7").reward == 1
    wrong = anywhere.judge(problem, "It is 9")
    assert wrong.reward == 0 and "Think of primes." in wrong.feedback
    assert anywhere.judge(problem, "").feedback[0] == "The response is empty."


def test_a_hint_with_the_reference_is_kept_back(write: Write) -> None:
    path = write("all.jsonl", *questions(60, "Rome", feedback="It is rome!"))
    environment = load(path)
    told = environment.judge(environment.problem("train", 0), "<answer>Paris</answer>").feedback
    assert told and not any("rome" in sentence.lower() for sentence in told)


def test_a_row_without_a_hint_adds_none(write: Write) -> None:
    told, untold = (
        load(write("all.jsonl", *questions(60, **hint))) for hint in ({"feedback": None}, {})
    )
    problem = told.problem("train", 0)
    assert (
        told.judge(problem, "8").feedback == untold.judge(untold.problem("train", 0), "8").feedback
    )


def test_json_answers_may_stand_as_values_or_text(write: Write) -> None:
    for answer in ({"a": 1}, '{"a": 1}'):
        environment = load(write("all.jsonl", *questions(60, answer)), grader="json")
        problem = environment.problem("train", 0)
        assert environment.judge(problem, '<answer>{"a": 1}</answer>').reward == 1
        assert environment.judge(problem, '<answer>{"a": 2}</answer>').reward == 0


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"question": "\\ud800?", "answer": "1"}', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"question": "Why?", "answer": null}', "'answer' is empty"),
    ],
)
def test_unreadable_lines_are_named(tmp_path: Path, line: str, part: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=part):
        load_problems(JsonlConfig(path=str(path)))


def test_line_separators_inside_text_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    rows = [{"question": f"Line\u2028{i}\u0085?", "answer": "1"} for i in range(60)]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = tmp_path / "good.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert sum(map(len, load_problems(JsonlConfig(path=str(path))).values())) == 60


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is C because option B is wrong.", "C"),
        ("The correct answer is C. Option A and option D are too small.", "C"),
        ("A: Let me think. The answer is B.", "B"),
        ("I think the answer is b", "B"),
        ("The answer is I think B", "B"),
        ("the answer is a mystery, so B", "B"),
        ("The answer is B. Wait, the answer is (C)", "C"),
        ("Answer: **C**", "C"),
        ("B is wrong, so \\boxed{\\text{(A)}} is the answer", "A"),
        ("A man", "A"),
        ("It is not A but C, not B", "B"),
    ],
)
def test_the_letter_that_is_told_counts(text: str, letter: str) -> None:
    assert choice_of(text) == letter


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        ("The answer is \u22125", "-5", True),
        ("The answer is \u22125", "5", False),
        ("\\boxed{3,5}", "35", False),
        ("\\boxed{1,234}", "1234", True),
        ("The answer is 1/2", "0.5", True),
        ("The answer is 1/2", "2", False),
        ("The area is 12 cm^2", "12", True),
        ("1 is no \\boxed{\\frac{10}{\\sqrt{25}}}", "2", True),
        ("It costs $5.00.", "5", True),
    ],
)
def test_numbers_in_free_text(text: str, reference: str, right: bool) -> None:
    assert GRADERS["numeric"](find_answer("numeric", text, reference), reference) is right


@pytest.mark.parametrize(
    "answer",
    [
        r"\binom{99999999}{4999999}",
        r"\dbinom{1000000}{500000}",
        r"\Gamma(99999999)",
        "(x+y+z)^{99}",
        r"\left(x+y\right)^{500}",
        r"\sum_{n=1}^{\infty} \frac{1}{n^5+n+1}",
        r"\prod_{n=1}^{999} n",
        r"\int_0^1 e^{-x^9} dx",
    ],
)
def test_what_would_be_worked_out_without_end_is_not_tried(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was handed on")

    monkeypatch.setattr("fst_core.environments.graders.parse", refuse)
    assert not GRADERS["numeric"](answer, "5")
    assert GRADERS["numeric"](r"\sum_{n=1}^{9} n", r"\sum_{n=1}^{9} n")


@pytest.mark.parametrize(
    ("answer", "reference"),
    [(r"\left(\frac{1}{2}\right)^{10}", "1/1024"), (r"\binom{10}{3}", "120"), ("2^{10}", "1024")],
)
def test_what_is_soon_worked_out_is(answer: str, reference: str) -> None:
    assert GRADERS["numeric"](answer, reference)


def test_a_tag_that_is_only_mentioned_opens_none() -> None:
    text = "I will put it in the <answer> tag.\n<answer>Paris</answer>"
    assert read_tag(text, "answer").answer == "Paris"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Sorting [3, 1] gives [1, 3].", "[1, 3]"),
        ("of [3] and ['b'] it is [[1, 'a'], [2]]", "[[1, 'a'], [2]]"),
        ("[1, 2] and so", "[1, 2]"),
        ("no list", "no list"),
    ],
)
def test_the_last_bracketed_value_is_read(text: str, value: str) -> None:
    assert read_anywhere(text, "[1]") == value
