r"""Polaris-Dataset-53K: mathematics with a published pass rate.

Reads the official polaris-data-53K.jsonl: rows of `problem`, `answer` and `difficulty`, the pass
rate that DeepSeek-R1-Distill-Qwen-7B had on the problem, as "5/8". The subset that a config keeps
is a range of it.

An answer with a digit or a LaTeX command is compared by value through math-verify, any other (a
word, a name) by its text. Read anywhere, it is what stands in the last \boxed{} or, for plain
numbers, the last number.
"""

import re
from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

from fst_core.config.imported import PolarisConfig
from fst_core.environments.errors import DataError
from fst_core.environments.feedback.kinds import number_faults
from fst_core.environments.graders import find_answer, grade_exact, grade_numeric
from fst_core.environments.imported import Published, asked, tagged, verdict
from fst_core.environments.published import Row, plain_text, text_at
from fst_core.environments.reading import NUMBER
from fst_core.records import Problem, Verdict, content_id

BY_VALUE = re.compile(r"\d|\\|^\W*\w\W*$")
"""An answer that is compared by value: it has a digit, a LaTeX command, or is one letter."""
FRACTION = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*")

ONE_VALUE = "The answer must be the final result alone, as one number, formula or word."


class PolarisEnvironment(Published[PolarisConfig]):
    """Problems of Polaris within a range of pass rates; reward 1 for the right value."""

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """1 for the right answer, else 0 and what was wrong; never the reference."""
        reading, reference = tagged(self.config, completion), problem.reference
        answer = find_answer("numeric", reading.answer or completion, reference)
        by_value = BY_VALUE.search(reference) is not None
        right = grade_exact(answer.casefold(), reference.casefold())
        right = right or (by_value and bool(answer) and grade_numeric(answer, reference))
        return verdict(reading, right, _faults(answer, reference), ONE_VALUE)

    def _problem(self, where: str, row: Row) -> Problem | None:
        passed = pass_rate(where, row)
        if not self.config.passed_least <= passed <= self.config.passed_most:
            return None
        question, reference = text_at(where, row, "problem"), plain_text(row.get("answer"))
        if not reference:
            raise DataError(f"{where}: 'answer' must be text that is not empty, or a number")
        return Problem(
            content_id(self.config.name, question),
            self.config.name,
            ({"role": "user", "content": asked(self.config, question)},),
            reference,
            {"passed": passed},
        )


def _faults(answer: str, reference: str) -> list[str]:
    if not answer:
        return ["No answer can be read in the response."]
    near = number_faults(answer, reference) if NUMBER.fullmatch(reference) else []
    return ["The answer is wrong.", *near]


def pass_rate(where: str, row: Mapping[str, Any]) -> float:
    """A row's `difficulty` as a share: "5/8" is 0.625.

    Raises:
        DataError: if it is neither a fraction nor a number in [0, 1].
    """
    told: Any = row.get("difficulty")
    parts = FRACTION.fullmatch(told) if isinstance(told, str) else None
    if parts and 0 < int(parts[2]) >= int(parts[1]):
        return int(parts[1]) / int(parts[2])
    if type(told) in (int, float) and 0 <= told <= 1:
        return float(told)
    raise DataError(f"{where}: 'difficulty' must be a pass rate such as \"5/8\", not {brief(told)}")
