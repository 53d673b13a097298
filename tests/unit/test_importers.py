"""Published data sets: their layouts, the subsets, the splits, the graders, and every bad row."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st

from fst_core.config import ChoicesConfig, HoverConfig, PolarisConfig, RunConfig
from fst_core.config.model import NotHere
from fst_core.environments.choices import ChoicesEnvironment
from fst_core.environments.errors import DataAbsent, DataError
from fst_core.environments.hover import HoverEnvironment, titles_in
from fst_core.environments.imported import Held
from fst_core.environments.polaris import PolarisEnvironment, pass_rate
from fst_core.environments.pools import PooledEnvironment, build_pools
from fst_core.environments.published import rows_of
from fst_core.environments.registry import make_environment
from fst_core.hub import reach
from fst_core.preflight import preflight
from fst_core.quiet import needs_hub
from fst_core.records import SPLITS, Problem, to_json
from fst_core.rollouts import judge
from tests.unit.commands import unreadable

Row = dict[str, Any]


def claims(count: int = 90, **change: Any) -> list[Row]:
    """Rows as in hover_train_release_v1.1.json; three claims come from each HotpotQA question."""
    return [
        {
            "uid": f"uid-{i}",
            "claim": f"Claim {i} holds.",
            "supporting_facts": [[f"Town {i}", 0], [f"River {i} (film)", 2], [f"Town {i}", 4]],
            "label": "SUPPORTED" if i % 2 else "NOT_SUPPORTED",
            "num_hops": 2 + i % 3,
            "hpqa_id": f"hotpot-{i // 3}",
            **change,
        }
        for i in range(count)
    ]


def sums(count: int = 90, **change: Any) -> list[Row]:
    """Rows as in polaris-data-53K.jsonl."""
    answers = ["{i}", "\\frac{{{i}}}{{7}}", "x+{i}", "even"]
    return [
        {
            "problem": f"What is {i}?",
            "answer": answers[i % 4].format(i=i),
            "difficulty": f"{i % 9}/8",
            **change,
        }
        for i in range(count)
    ]


def questions(count: int = 90, **change: Any) -> list[Row]:
    """Rows as SciKnowEval has them."""
    return [
        {
            "question": f"Which force is number {i}?",
            "choices": {"text": ["weak", "strong", f"number {i}"], "label": ["A", "B", "C"]},
            "answerKey": "ABC"[i % 3],
            "domain": "Physics" if i % 2 else "Chemistry",
            "details": {"level": f"L{i % 4}"},
            **change,
        }
        for i in range(count)
    ]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, list[Row]], str]:
    def write(name: str, rows: list[Row]) -> str:
        path = tmp_path / name
        lines = "\n".join(map(json.dumps, rows))
        path.write_text(json.dumps(rows) if name.endswith(".json") else lines)
        return str(path)

    return write


Written = Callable[[str, list[Row]], str]


def all_of(environment: Held) -> dict[str, list[Problem]]:
    return {s: [environment.problem(s, i) for i in range(environment.size(s))] for s in SPLITS}


def test_hover_asks_for_articles_of_the_hard_claims(written: Written) -> None:
    path = written("hover.json", claims())
    environment = HoverEnvironment(HoverConfig(path=path, num_hops=(3, 4), labels=("SUPPORTED",)))
    problems = [p for split in all_of(environment).values() for p in split]
    assert {p.metadata["num_hops"] for p in problems} == {3, 4} and len(problems) == 30
    first = environment.problem("train", 0)
    number = int(first.id.removeprefix("uid-"))
    assert first.text.startswith(f"Claim: Claim {number} holds.") and "<answer>" in first.text
    assert json.loads(first.reference) == [f"Town {number}", f"River {number} (film)"]


def test_claims_of_one_question_stand_in_one_split(written: Written) -> None:
    split = all_of(HoverEnvironment(HoverConfig(path=written("hover.json", claims(240)))))
    families = {name: {p.metadata["hpqa_id"] for p in held} for name, held in split.items()}
    assert all(families.values()) and sum(map(len, split.values())) == 240
    assert len(set.union(*families.values())) == sum(map(len, families.values())) == 80


def test_titles_are_judged_by_their_words_and_feedback_names_no_missing_one(
    written: Written,
) -> None:
    environment = HoverEnvironment(HoverConfig(path=written("hover.json", claims())))
    problem = environment.problem("train", 0)
    town, river = json.loads(problem.reference)
    assert environment.judge(problem, environment.solution(problem)).reward == 1
    loose = f"<answer>1. {river.upper()}\n2) {town}.</answer>"
    assert environment.judge(problem, loose).reward == 1
    half = environment.judge(problem, f"It was {river}. <answer>- {town}\n- Paris, Texas</answer>")
    assert half.reward == 0 and half.subscores == {"format": 1, "recall": 0.5, "precision": 0.5}
    said = " ".join(half.feedback)
    assert "1 of the 2" in said and f"Right: {town}." in said and "Paris, Texas" in said
    assert river not in said
    untagged = environment.judge(problem, f"{town}\n{river}")
    assert untagged.reward == 0 and town not in " ".join(untagged.feedback)
    everything = "\n".join(f"Town {i}" for i in range(22))
    flood = environment.judge(problem, f"<answer>{everything}\n{river}</answer>")
    assert flood.reward == 0 and "21 are the limit" in flood.feedback[0]


def test_partial_credit_is_the_share_of_articles(written: Written) -> None:
    config = HoverConfig(path=written("hover.json", claims()), partial_credit=True)
    environment = HoverEnvironment(config)
    problem = environment.problem("validation", 0)
    town = json.loads(problem.reference)[0]
    assert environment.judge(problem, f"<answer>{town}</answer>").reward == 0.5


@pytest.mark.parametrize(
    ("answer", "titles"),
    [
        ('["A, b", "C"]', ["A, b", "C"]),
        ("- A, b\n\n* C\n3. D\nC", ["A, b", "C", "D"]),
        ("1984", ["1984"]),
        ("!!!", ["!!!"]),
    ],
)
def test_titles_are_read_from_lines_or_json(answer: str, titles: list[str]) -> None:
    assert [t.casefold() for t in titles_in(answer)] == [t.casefold() for t in titles]


def test_hover_labels_can_be_asked_for(written: Written) -> None:
    config = HoverConfig(path=written("hover.json", claims()), task="label")
    environment = HoverEnvironment(config)
    problem = environment.problem("train", 0)
    other = "SUPPORTED" if problem.reference == "NOT_SUPPORTED" else "NOT_SUPPORTED"
    spoken = problem.reference.lower().replace("_", " ")
    assert environment.judge(problem, f"<answer>{spoken}.</answer>").reward == 1
    assert environment.judge(problem, f"<answer>{other}</answer>").reward == 0
    unread = environment.judge(problem, "<answer>maybe</answer>")
    assert unread.reward == 0 and unread.feedback[0] == "The answer is neither label."


def test_the_hubs_rows_of_hover_are_read_too(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = claims(label=1, supporting_facts=[{"key": "A", "value": 0}, {"key": "B", "value": 1}])
    asked: list[tuple[Any, ...]] = []

    def load(name: str, subset: str | None, split: str, revision: str | None) -> list[Row]:
        asked.append((name, subset, split, revision))
        return rows

    monkeypatch.setattr("datasets.load_dataset", load)
    config = HoverConfig(hub="hover-nlp/hover", hub_split="validation", revision="abc")
    problem = HoverEnvironment(config).problem("train", 0)
    assert json.loads(problem.reference) == ["A", "B"]
    assert asked == [("hover-nlp/hover", None, "validation", "abc")]
    asked.clear()
    there = HoverConfig(path=written("hover.json", claims()), hub="hover-nlp/hover")
    HoverEnvironment(there)
    assert not asked, "a file that is there is read, whatever the hub has"


def test_polaris_keeps_a_range_of_pass_rates(written: Written) -> None:
    path = written("polaris.jsonl", sums())
    environment = PolarisEnvironment(PolarisConfig(path=path, passed_least=0.25, passed_most=0.5))
    rates = {p.metadata["passed"] for split in all_of(environment).values() for p in split}
    assert rates == {2 / 8, 3 / 8, 4 / 8}


@pytest.mark.parametrize("answer", ["anywhere", "tag"])
def test_polaris_is_judged_by_value(written: Written, answer: str) -> None:
    config = PolarisConfig.model_validate(
        {"path": written("polaris.jsonl", sums(120)), "answer": answer}
    )
    environment = PolarisEnvironment(config)
    for problem in all_of(environment)["train"][:8]:
        assert environment.judge(problem, environment.solution(problem)).reward == 1
        boxed = f"So it is \\boxed{{{problem.reference}}}."
        told = f"<answer>{boxed}</answer>" if answer == "tag" else boxed
        assert environment.judge(problem, told).reward == 1
        wrong = environment.judge(problem, "<answer>-77</answer>")
        assert wrong.reward == 0 and problem.reference not in " ".join(wrong.feedback[1:-1])
        assert environment.judge(problem, f"<answer>1e{'9' * 20}</answer>").reward == 0
    if answer == "tag":
        untagged = environment.judge(problem, problem.reference)
        assert untagged.reward == 0 and any("is right" in s for s in untagged.feedback)


@pytest.mark.parametrize(
    ("told", "rate"), [("5/8", 0.625), (" 0 / 8", 0), (0.5, 0.5), (1, 1), ("8/8", 1)]
)
def test_pass_rates(told: Any, rate: float) -> None:
    assert pass_rate("f:1", {"difficulty": told}) == rate


@pytest.mark.parametrize("told", ["9/8", "1/0", "easy", None, 1.5, True])
def test_a_pass_rate_that_is_none_is_refused(told: Any) -> None:
    with pytest.raises(DataError, match="f:1: 'difficulty' must be a pass rate"):
        pass_rate("f:1", {"difficulty": told})


def test_choices_are_kept_by_column_and_judged_by_letter(written: Written) -> None:
    config = ChoicesConfig(
        path=written("physics.jsonl", questions(120)),
        keep={"domain": "Physics", "details.level": ("L1", "L3")},
    )
    environment = ChoicesEnvironment(config)
    problems = [p for split in all_of(environment).values() for p in split]
    assert len(problems) == 60
    problem = problems[0]
    assert "\nB. strong\n" in problem.text and problem.text.endswith("with its letter.")
    assert environment.judge(problem, f"I say ({problem.reference}).").reward == 1
    wrong = "ABC".replace(problem.reference, "")[0]
    assert environment.judge(problem, wrong).feedback[0] == "The chosen letter is wrong."
    assert "none of the choices" in environment.judge(problem, "D").feedback[0]
    assert "No letter" in environment.judge(problem, "no idea whatever").feedback[0]
    assert environment.judge(problem, " ").feedback[0] == "The response is empty."


LAYOUTS: dict[str, tuple[Row, dict[str, str], str]] = {
    "MMLU": ({"choices": ["x", "y"], "answer": 1}, {"key": "answer"}, "B"),
    "MMLU-Pro": (
        {"options": ["x", "y", "z"], "answer": "C", "answer_index": 2},
        {"choices": "options", "key": "answer"},
        "C",
    ),
    "SuperGPQA": (
        {"options": ["x", "y"], "answer": "x", "answer_letter": "A"},
        {"choices": "options", "key": "answer_letter"},
        "A",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
def test_layouts_of_multiple_choice(layout: str, ending: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, settings, letter = LAYOUTS[layout]
    rows = [{"question": f"Question {i}?", **columns} for i in range(60)]
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = "\n".join(map(json.dumps, rows))
        path.write_text(json.dumps(rows) if ending == "json" else lines)
    environment = ChoicesEnvironment(ChoicesConfig.model_validate({"path": str(path), **settings}))
    problem = environment.problem("test", 0)
    assert problem.reference == letter and "A. x" in problem.text


NAN, INFINITY = float("nan"), float("inf")
FACTS = "'supporting_facts' must be a list of [title, sentence] pairs"
ANSWER = "'answer' must be text that is not empty, or a number"
LISTED = "'choices' must be a list of 2 to 26 choices"
LABELLED = "'choices' must label each of its choices with a letter of its own"
DIFFERENT = "'choices' must hold choices that differ"
BAD_VALUES: list[tuple[Any, str, list[Any], str]] = [
    (claims, "label", [-1, 2, "x", None, True, []], "has no label"),
    (claims, "supporting_facts", [[], [1], [True], ["ab"], [[]], [["A"]], [["A", "0"]]], FACTS),
    (claims, "supporting_facts", [[["A", True]], [[" ", 0]], [["A", 0], []], "ab", 5], FACTS),
    (claims, "supporting_facts", [[{"x": 1}], [{"key": "A"}], {"key": "A", "value": 0}], FACTS),
    (claims, "claim", [" ", 5], "'claim' must be text"),
    (claims, "uid", [None, 5], "'uid' must be text"),
    (claims, "num_hops", ["3", 3.5, True, []], "'num_hops' must be a whole number"),
    (claims, "hpqa_id", [[1], True], "'hpqa_id' must be text"),
    (sums, "problem", [None, "", 5], "'problem' must be text"),
    (sums, "answer", [None, " ", {}, [1], True, NAN, INFINITY], ANSWER),
    (sums, "difficulty", ["hard", [5, 8], NAN, 10**400], "'difficulty' must be a pass rate"),
    (sums, "difficulty", [f"1/{'9' * 5000}"], "'difficulty' must be a pass rate"),
    (questions, "question", [None, " ", 5], "'question' must be text"),
    (questions, "choices", [None, 5, True, "ab", [], ["one"], {}, {"label": ["A"]}], LISTED),
    (questions, "choices", [{"text": [], "label": []}], LISTED),
    (questions, "choices", [["a", " "], ["a", "a "], ["a", None], ["a", ["b"]]], DIFFERENT),
    (questions, "choices", [["a", True], ["a", NAN]], DIFFERENT),
    *(
        (questions, "choices", [{"text": ["x", "y"], "label": label}], LABELLED)
        for label in (["A", "A"], ["1", "2"], ["A", 5], ["A"], [["A"], "B"], None, 5, True, {})
    ),
    (questions, "answerKey", ["D", 3, True, "", None, []], "'answerKey' names none of the choices"),
]
KINDS = {claims: "hover", sums: "polaris", questions: "choices"}


@pytest.mark.parametrize(
    ("rows", "field", "value", "said"),
    [(rows, field, value, said) for rows, field, values, said in BAD_VALUES for value in values],
)
def test_a_row_outside_the_layout_is_named(
    rows: Any, field: str, value: Any, said: str, written: Written
) -> None:
    path = written("rows.jsonl", rows(1, **{field: value}))
    kind = {"type": KINDS[rows], "path": path}
    with pytest.raises(DataError, match=re.escape(said)) as error:
        make_environment(RunConfig.model_validate({"environment": kind}).environment)  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{path}:1: ") and "\n" not in str(error.value)


def test_a_uid_that_stands_twice_is_named_by_both_places(written: Written) -> None:
    path = written("rows.jsonl", [*claims(3), claims(1, claim="Another claim.")[0]])
    with pytest.raises(DataError, match=r"rows\.jsonl:4: the same uid .* stands at .*jsonl:1"):
        HoverEnvironment(HoverConfig(path=path))


GOOD_ROWS: dict[str, tuple[Row, list[Row]]] = {
    "articles": ({"type": "hover"}, claims(60)),
    "label": ({"type": "hover", "task": "label"}, claims(60)),
    "polaris": ({"type": "polaris"}, sums(60)),
    "labelled": ({"type": "choices", "keep": {"details.level": ["L0", "L1", "L3"]}}, questions(60)),
    "listed": ({"type": "choices"}, questions(60, choices=["x", "y", "z"])),
    **{
        f"jsonl {grader}": (
            {"type": "jsonl", "grader": grader},
            [
                {"id": i, "question": f"What is {i}?", "answer": answer, "feedback": "Count."}
                for i in range(60)
            ],
        )
        for grader, answer in (("exact", "x"), ("numeric", "7"), ("choice", "A"), ("json", [1]))
    },
}
FIELDS = [(layout, field) for layout, (_, rows) in GOOD_ROWS.items() for field in rows[0]]
"""Every field of every layout."""
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(["A", "B", "x", "1/2", "9" * 5000, "1e" + "9" * 20, "\ud800", 10**400])
)
KEYS = st.sampled_from(["text", "label", "key", "value", "level"]) | st.text(st.characters())
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3)
)


@pytest.mark.parametrize(("layout", "field"), FIELDS)
@given(value=VALUES)
@settings(deadline=None, max_examples=60)
def test_any_value_gives_problems_or_one_sentence(
    layout: str, field: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, rows = GOOD_ROWS[layout]
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows[:-1], {**rows[-1], field: value}])))
    config = RunConfig.model_validate({"environment": {**kind, "path": str(path)}}).environment
    try:
        problems = all_of(make_environment(config))  # type: ignore[arg-type]
    except DataError as error:
        assert str(error).startswith(f"{path}:60: ") and "\n" not in str(error)
        return
    assert sum(map(len, problems.values())) >= 44
    for problem in [p for held in problems.values() for p in held]:
        json.dumps(to_json(problem), ensure_ascii=False).encode()


@pytest.mark.parametrize(("layout", "field"), FIELDS)
def test_text_that_is_no_unicode_is_named(layout: str, field: str, written: Written) -> None:
    kind, rows = GOOD_ROWS[layout]
    ending = "jsonl" if kind["type"] == "jsonl" else "json"
    path = written(f"rows.{ending}", [*rows, {**rows[0], field: "\ud800"}])
    config = RunConfig.model_validate({"environment": {**kind, "path": path}}).environment
    with pytest.raises(DataError, match=rf"rows\.{ending}:61: cannot be read \(.*surrogates"):
        make_environment(config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.csv", "a,b", "is no .json, .jsonl, .parquet file"),
        ("rows.json", "{}", "holds no list"),
        ("rows.json", "[1]", "rows.json:1: the row is no object but int"),
        ("rows.jsonl", '{"a": 1}\n{', "rows.jsonl:2: is no JSON"),
        ("rows.parquet", "no", "is no Parquet file"),
        ("rows.jsonl", '{}\n{"a": ' + "[" * 100 + "]" * 100 + "}", "rows.jsonl:2: .* 100 levels"),
    ],
)
def test_a_file_in_no_known_format_is_named(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        list(rows_of(PolarisConfig(path=str(path))))


@pytest.mark.parametrize("kind", ["hover", "polaris", "choices", "jsonl"])
def test_a_plan_notes_a_file_that_is_absent_and_a_run_refuses(kind: str) -> None:
    environment = {"type": kind, "path": "no/such.jsonl"}
    config = RunConfig.model_validate({"environment": environment})
    assert any(
        note.startswith("not here yet: no/such.jsonl: no such file; put")
        for note in preflight(config, plan_only=True)
    )
    with pytest.raises(DataAbsent, match="no such file"):
        preflight(config)


def test_a_row_may_have_a_hundred_levels(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": ' + "[" * 99 + "]" * 99 + "}")
    assert len(list(rows_of(PolarisConfig(path=str(path))))) == 1


def test_a_time_past_the_year_9999_is_one_sentence(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"at": pa.array([10**15], pa.timestamp("ms"))}), path)
    with pytest.raises(DataError, match=r"rows\.parquet: a value cannot be read .*its column"):
        list(rows_of(PolarisConfig(path=str(path))))


@pytest.mark.parametrize("name", ["folder", "ring", "null"])
def test_what_is_no_file_is_told_by_a_plan_too(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.jsonl"
    if name == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if name == "ring" else "/dev/null")
    config = RunConfig.model_validate({"environment": {"type": "polaris", "path": str(path)}})
    with pytest.raises(DataError, match=rf"{name}\.jsonl: is no file") as error:
        preflight(config, plan_only=True)
    assert not isinstance(error.value, DataAbsent)


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
@pytest.mark.parametrize("kind", ["jsonl", "hover", "polaris", "choices"])
def test_no_importer_opens_what_is_no_file(kind: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    if kind == "jsonl" and what == "folder":  # which may hold the split files
        path.mkdir()
        path /= "train.jsonl"
    unreadable(path, what)
    environment = {"type": kind, "path": str(tmp_path / "rows.jsonl")}
    config = RunConfig.model_validate({"environment": environment})
    with pytest.raises(DataError, match=rf"{path.name}: is no file but a .*; name the file itself"):
        preflight(config, plan_only=True)


@pytest.mark.parametrize("rows", [[], [{"question": "Q?", "choices": ["x"], "answerKey": "A"}]])
def test_data_without_problems_says_what_can_help(rows: list[Row], written: Written) -> None:
    path = written("rows.jsonl", rows)
    with pytest.raises(DataError, match=r"holds no problems: .* keeps none of them"):
        ChoicesEnvironment(ChoicesConfig(path=path, keep={"domain": "Physics"}))


def test_a_file_that_is_absent_names_the_remedy() -> None:
    with pytest.raises(DataAbsent, match=r"no/such\.json: no such file; .*environment\.hub"):
        HoverEnvironment(HoverConfig(path="no/such.json"))


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*words: Any, **settings: Any) -> None:
        raise ConnectionError("Couldn't reach the hub\nwith a long trace")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    monkeypatch.setattr("fst_core.environments.published.why_unreachable", lambda: None)
    with pytest.raises(DataAbsent, match=r"Couldn't reach the hub\); download its file") as error:
        PolarisEnvironment(PolarisConfig(hub="someone/polaris"))
    assert "\n" not in str(error.value)


def test_a_data_set_is_asked_for_in_the_cache_alone_where_no_hub_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offline: list[bool] = []

    def cached_alone(*words: Any, **settings: Any) -> None:
        offline.append(datasets.config.HF_HUB_OFFLINE and constants.HF_HUB_OFFLINE)
        raise ConnectionError("Couldn't reach 'someone/polaris' on the Hub")

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.load_dataset", cached_alone)
    reach.cache_clear()
    with pytest.raises(DataAbsent, match=r"127\.0\.0\.1:9 cannot be reached \(.*download its file"):
        PolarisEnvironment(PolarisConfig(hub="someone/polaris"))
    assert offline == [True]
    assert not constants.HF_HUB_OFFLINE


def test_the_hub_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(NotHere, match="pip install datasets"):
        PolarisEnvironment(PolarisConfig(hub="someone/polaris"))


def test_nothing_is_fetched_unless_the_config_names_a_hub(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    PolarisEnvironment(PolarisConfig(path=written("polaris.jsonl", sums())))
    here = {"type": "polaris", "path": "p.jsonl"}
    assert not needs_hub(RunConfig.model_validate({"environment": here}))
    assert needs_hub(RunConfig.model_validate({"environment": {**here, "hub": "a/b"}}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"type": "hover"}, "neither path nor hub"),
        ({"type": "polaris", "path": "p", "passed_least": 0.9, "passed_most": 0.1}, "swap them"),
        ({"type": "hover", "path": "p", "num_hops": [5]}, "less than or equal to 4"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Row, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunConfig.model_validate({"environment": settings})


def test_a_question_that_stands_twice_counts_once_and_is_told(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    path = written("polaris.jsonl", [*sums(60), *sums(5)])
    split = all_of(PolarisEnvironment(PolarisConfig(path=path)))
    assert sum(map(len, split.values())) == 60
    assert "5 questions stand there already" in caplog.text


def test_a_subset_that_leaves_a_split_empty_is_refused(written: Written) -> None:
    path = written("hover.json", claims(6))
    with pytest.raises(DataError, match="has no problems out of 2 kept"):
        HoverEnvironment(HoverConfig(path=path, num_hops=(4,)))


def test_pools_of_an_import_need_no_published_file(written: Written, tmp_path: Path) -> None:
    path = written("hover.json", claims())
    config = HoverConfig(path=path)
    build_pools(HoverEnvironment(config), tmp_path / "hover", {"train": 9, "validation": 2})
    Path(path).unlink()
    pooled = make_environment(config, str(tmp_path))
    assert isinstance(pooled, PooledEnvironment)
    problem = pooled.problem("train", 3)
    assert pooled.judge(problem, pooled.solution(problem) or "").reward == 1


def test_feedback_on_half_a_character_can_be_written(written: Written) -> None:
    environment = HoverEnvironment(HoverConfig(path=written("hover.json", claims())))
    found = judge(environment, environment.problem("train", 0), r'<answer>["\ud83d Foo"]</answer>')
    assert "\ufffd Foo" in " ".join(found.feedback) and " ".join(found.feedback).encode()
