"""Multiple choice, in the layouts that science data sets are published in.

The column names are settings; these are the layouts they stand for:

* SciKnowEval (the defaults): question, choices {text: [...], label: [...]}, answerKey "B"; its
  physics are the rows with domain "Physics", whose details.level tells "L3" from easier ones.
* MMLU: question, choices [...], answer 1 (choices = "choices", key = "answer").
* MMLU-Pro: question, options [...], answer "B", category "physics" (choices = "options", ...).
* SuperGPQA: question, options [...], answer_letter "B", field "Physics".

Which of them the FST paper's Physics is, its text as known here does not say.
"""

import string
from collections.abc import Mapping
from typing import Any

from fst_core.config.imported import ChoicesConfig
from fst_core.environments.errors import DataError
from fst_core.environments.graders import choice_of
from fst_core.environments.imported import Published, asked, tagged, verdict
from fst_core.environments.published import Row, plain_text, text_at, value_at
from fst_core.records import Problem, Verdict, content_id

LETTERS = string.ascii_uppercase
WANTED = "Which choice is right? Answer with its letter."
NO_LETTER = "No letter of a choice can be read in the answer."
NO_CHOICE = "The letter of the answer stands for none of the choices."
WRONG_CHOICE = "The chosen letter is wrong."
ONE_LETTER = "The answer must be the letter of one choice."


class ChoicesEnvironment(Published[ChoicesConfig]):
    """Questions with lettered choices; reward 1 for the letter of the right one."""

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """1 for the right letter, else 0 and what was wrong; never the reference."""
        reading = tagged(self.config, completion)
        letter = choice_of(reading.answer or completion)
        if not letter:
            wrong = NO_LETTER
        elif letter in problem.metadata["letters"]:
            wrong = WRONG_CHOICE
        else:
            wrong = NO_CHOICE
        return verdict(reading, letter == problem.reference, [wrong], ONE_LETTER)

    def _kept(self, row: Row) -> bool:
        for column, wanted in self.config.keep.items():
            values = (wanted,) if isinstance(wanted, str) else wanted
            if str(value_at(row, column)) not in values:
                return False
        return True

    def _problem(self, where: str, row: Row) -> Problem | None:
        if not self._kept(row):
            return None
        question = text_at(where, row, self.config.question)
        choices = choices_in(where, row, self.config.choices)
        key = right_choice(where, row, self.config.key, list(choices))
        listed = "\n".join(f"{letter}. {text}" for letter, text in choices.items())
        return Problem(
            content_id(self.config.name, question, listed),
            self.config.name,
            ({"role": "user", "content": asked(self.config, question, listed, WANTED)},),
            key,
            {"letters": "".join(choices)},
        )


def choices_in(where: str, row: Mapping[str, Any], column: str) -> dict[str, str]:
    """The choices by letter, in their order.

    Raises:
        DataError: if the column is no list of two texts or more, nor lists `text` and `label`; if
            a choice is empty, or two are equal or have one label.
    """
    value = value_at(row, column)
    listed = value.get("text") if isinstance(value, Mapping) else value
    if not isinstance(listed, list) or not 2 <= len(listed) <= len(LETTERS):
        raise DataError(f"{where}: {column!r} must be a list of 2 to {len(LETTERS)} choices")
    labels = value.get("label") if isinstance(value, Mapping) else LETTERS[: len(listed)]
    letters = [str(label) for label in labels] if isinstance(labels, list | str) else []
    if len(letters) != len(listed) or len(set(LETTERS).intersection(letters)) != len(listed):
        raise DataError(
            f"{where}: {column!r} must label each of its choices with a letter of its own"
        )
    texts = list(map(plain_text, listed))
    if not all(texts) or len(set(texts)) < len(texts):
        raise DataError(
            f"{where}: {column!r} must hold choices that differ, each text that is not empty or a "
            "number; correct the row, or leave it out"
        )
    return dict(zip(letters, texts, strict=True))


def right_choice(where: str, row: Mapping[str, Any], column: str, letters: list[str]) -> str:
    """The letter of the right choice, from a letter or from a number that counts from 0.

    Raises:
        DataError: if the column names none of the choices.
    """
    value = value_at(row, column)
    if type(value) is int and 0 <= value < len(letters):
        return letters[value]
    letter = value.strip(" ().").upper() if isinstance(value, str) else ""
    if letter not in letters or not letter:
        raise DataError(f"{where}: {column!r} names none of the choices {''.join(letters)}")
    return letter
