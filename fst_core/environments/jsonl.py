"""Your own problems from JSON lines: `question`, `answer`, optional `id` and `feedback` hint."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fst_core.config.environment import JsonlConfig
from fst_core.environments.errors import DataError
from fst_core.environments.feedback import Case, explain, requirement
from fst_core.environments.feedback.guard import without_reference
from fst_core.environments.graders import GRADERS, choice_of, find_answer
from fst_core.environments.imported import Held
from fst_core.environments.published import Placed, once, plain_text, rows_of_lines
from fst_core.environments.reading import EMPTY, RIGHT_WITHOUT_TAGS, read_tag
from fst_core.environments.splits import split_of
from fst_core.records import SPLITS, Problem, Split, Verdict, content_id

FAMILY = {"exact": "", "numeric": "", "choice": "choice", "json": "codeio"}


def _check_row(where: str, row: Mapping[str, Any]) -> None:
    for key in ("question", "answer"):
        if key not in row:
            raise DataError(f"{where}: the row has no {key!r}")
    if not isinstance(row["question"], str) or not row["question"].strip():
        raise DataError(f"{where}: 'question' must be text that is not empty")
    if row["answer"] is None or not _reference(row["answer"]).strip():
        raise DataError(f"{where}: 'answer' is empty")
    if "id" in row and not plain_text(row["id"]):
        raise DataError(f"{where}: 'id' must be text that is not empty, or a number")
    if not isinstance(row.get("feedback"), str | None):
        raise DataError(f"{where}: 'feedback' must be text")


def _reference(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _split_rows(config: JsonlConfig) -> Iterator[tuple[Split, Placed]]:
    path = Path(config.path)
    files = {path / f"{s}.jsonl": s for s in SPLITS} if path.is_dir() else {path: None}
    for file, split in files.items():
        for where, row in rows_of_lines(file):
            _check_row(where, row)
            yield split or split_of(row["question"], config.validation, config.test), (where, row)


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
        once(questions, " ".join(row["question"].split()), where, "question")
        problem = _problem(config, row)
        _check_answer(config, problem, where)
        once(ids, problem.id, where, "id")
        problems[split].append(problem)
    empty = [split for split in SPLITS if not problems[split]]
    if empty:
        raise DataError(
            f"{config.path}: split {empty[0]} has no problems out of {len(questions)}; add "
            "problems or split them yourself into train.jsonl, validation.jsonl and test.jsonl"
        )
    return problems


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


class JsonlEnvironment(Held):
    """Problems from a JSON lines file, split by question, or from a folder of split files.

    A row's `feedback` hint is added to the feedback of a wrong answer, unless it holds the
    reference. Subscores are `format` and `answer`, as for every environment with a tag.
    """

    def __init__(self, config: JsonlConfig, load: bool = True) -> None:
        """Read and check all problems; `load=False` makes an environment that only judges.

        Raises:
            DataAbsent: if there is no such file.
            DataError: with one sentence naming file, line and reason.
        """
        self.config = config
        super().__init__(config.name, load_problems(config) if load else {})

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
        hint = str(case.metadata.get("feedback") or "").strip()
        *told, last = explain(case)
        return (*told, *without_reference((hint,) if hint else (), case), last)
