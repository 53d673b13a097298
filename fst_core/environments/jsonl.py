"""Your own problems from JSON lines: `question`, `answer`, optional `id` and `feedback` hint."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fst_core.config.environment import JsonlConfig
from fst_core.environments.errors import DataError, PastTheEnd
from fst_core.environments.feedback import Case, explain, requirement
from fst_core.environments.feedback.guard import without_reference
from fst_core.environments.graders import GRADERS, choice_of, find_answer
from fst_core.environments.reading import EMPTY, RIGHT_WITHOUT_TAGS, read_tag
from fst_core.environments.splits import split_of
from fst_core.records import SPLITS, Problem, Split, Verdict, content_id

FAMILY = {"exact": "", "numeric": "", "choice": "choice", "json": "codeio"}
Row = tuple[str, dict[str, Any]]
"""Where a row stands (file:line) and what it holds."""


def read_rows(path: Path) -> Iterator[Row]:
    """Checked rows of a JSON lines file; blank lines are passed over.

    Raises:
        DataError: naming file and line, for a missing file, bad JSON, or a missing or empty
            question or answer.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error.reason})") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield f"{path}:{number}", _checked(f"{path}:{number}", line)


def _checked(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        line.encode()
        json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: the line is no JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: the line cannot be read ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: the line is no JSON object but {type(row).__name__}")
    for key in ("question", "answer"):
        if key not in row:
            raise DataError(f"{where}: the row has no {key!r}")
    if not isinstance(row["question"], str) or not row["question"].strip():
        raise DataError(f"{where}: 'question' must be text that is not empty")
    if row["answer"] is None or not _reference(row["answer"]).strip():
        raise DataError(f"{where}: 'answer' is empty")
    return row


def _reference(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _split_rows(config: JsonlConfig) -> Iterator[tuple[Split, Row]]:
    path = Path(config.path)
    if path.is_dir():
        for split in SPLITS:
            yield from ((split, row) for row in read_rows(path / f"{split}.jsonl"))
        return
    for where, row in read_rows(path):
        yield split_of(row["question"], config.validation, config.test), (where, row)


def load_problems(config: JsonlConfig) -> dict[Split, list[Problem]]:
    """All problems of a file or folder by split, in file order.

    Raises:
        DataError: with one sentence naming file and line, for a bad row, a question or id that
            stands twice (also across split files), or a split without problems.
    """
    problems: dict[Split, list[Problem]] = {split: [] for split in SPLITS}
    questions: dict[str, str] = {}
    ids: dict[str, str] = {}
    for split, (where, row) in _split_rows(config):
        _once(questions, " ".join(row["question"].split()), where, "question")
        problem = _problem(config, row)
        _check_answer(config, problem, where)
        _once(ids, problem.id, where, "id")
        problems[split].append(problem)
    empty = [split for split in SPLITS if not problems[split]]
    if empty:
        raise DataError(
            f"{config.path}: split {empty[0]} has no problems out of {len(questions)}; add "
            "problems or split them yourself into train.jsonl, validation.jsonl and test.jsonl"
        )
    return problems


def _once(seen: dict[str, str], value: str, where: str, what: str) -> None:
    if value in seen:
        raise DataError(f"{where}: the same {what} already stands at {seen[value]}")
    seen[value] = where


def _check_answer(config: JsonlConfig, problem: Problem, where: str) -> None:
    """A reference its own grader cannot read would make every answer wrong."""
    reference = problem.reference
    readable = choice_of(reference) != "" if config.grader == "choice" else True
    if config.grader in ("json", "numeric"):
        readable = GRADERS[config.grader](reference, reference)
    if not readable:
        raise DataError(f"{where}: grader {config.grader!r} cannot read the answer {reference!r}")


def _problem(config: JsonlConfig, row: Mapping[str, Any]) -> Problem:
    question, reference = row["question"], row["answer"]
    text = json.dumps(reference) if config.grader == "json" else _reference(reference)
    if (
        config.grader == "json"
        and isinstance(reference, str)
        and GRADERS["json"](reference, reference)
    ):
        text = reference
    return Problem(
        str(row.get("id", content_id(config.name, question))),
        config.name,
        ({"role": "user", "content": question},),
        text,
        {key: value for key, value in row.items() if key not in ("id", "question", "answer")},
    )


class JsonlEnvironment:
    """Problems from a JSON lines file, split by question, or from a folder of split files.

    A row's `feedback` hint is added to the feedback of a wrong answer, unless it holds the
    reference. Subscores are `format` and `answer`, as for every environment with a tag.
    """

    def __init__(self, config: JsonlConfig, load: bool = True) -> None:
        """Read and check all problems; `load=False` makes an environment that only judges.

        Raises:
            DataError: with one sentence naming file, line and reason.
        """
        self.config = config
        self.name = config.name
        self._problems: Mapping[Split, Sequence[Problem]] = load_problems(config) if load else {}

    def problem(self, split: Split, index: int) -> Problem:
        """The index-th problem of a split, in file order.

        Raises:
            IndexError: if the index is negative or past the end of the split.
        """
        problems = self._problems.get(split, ())
        if not 0 <= index < len(problems):
            raise PastTheEnd(self.name, split, index, len(problems))
        return problems[index]

    def size(self, split: Split) -> int:
        """Number of problems in a split."""
        return len(self._problems.get(split, ()))

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """1 for an answer the grader accepts, else 0 and what was wrong."""
        grader, reference = self.config.grader, problem.reference
        tagged = read_tag(completion, self.config.tag) if self.config.answer == "tag" else None
        answer = tagged.answer if tagged else None
        if answer is None:
            answer = find_answer(grader, completion, reference)
        right = bool(answer) and GRADERS[grader](answer, reference)
        formatted = tagged is None or tagged.answer is not None
        subscores = {"format": float(formatted), "answer": float(right)}
        case = Case(
            FAMILY[grader],
            problem.text,
            reference,
            problem.metadata,
            answer,
            completion,
            float(right),
        )
        if formatted:
            return Verdict(float(right), self._explain(case), subscores)
        missing = tagged.feedback if tagged else ()
        note = (RIGHT_WITHOUT_TAGS,) if right else ()
        feedback = (*missing[:1], *note, *missing[1:], *requirement(case))
        return Verdict(0.0, feedback, subscores)

    def solution(self, problem: Problem) -> str:
        """The reference in the form the judge wants."""
        tag = self.config.tag
        tagged = f"<{tag}>{problem.reference}</{tag}>"
        return tagged if self.config.answer == "tag" else problem.reference

    def _explain(self, case: Case) -> tuple[str, ...]:
        if case.reward == 1:
            return explain(case)
        if not case.completion.strip():
            return (EMPTY, *requirement(case))
        hint = str(case.metadata.get("feedback", "")).strip()
        *told, last = explain(case)
        return (*told, *without_reference((hint,) if hint else (), case), last)
