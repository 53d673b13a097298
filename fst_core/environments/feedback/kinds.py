"""Feedback by the kind of the reference: a number, a list, a grid, a word, ... for any family."""

import ast
import json
import re
from decimal import Decimal
from typing import Any

from fst_core.environments.feedback.case import Case, Rule
from fst_core.environments.reading import NUMBER

BOOLEANS = frozenset({"yes", "no", "true", "false"})
PAIRS = {"(": ")", "[": "]", "{": "}"}


def parsed(text: str) -> Any:
    """The value of a JSON or Python literal; None for anything else."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return None


def rows_of(text: str) -> list[list[str]]:
    """The entries of a grid, row by row; blank lines do not count."""
    return [line.split() for line in text.splitlines() if line.strip()]


def kind_of(reference: str) -> str:
    """Name of the kind in KINDS that a reference belongs to."""
    text = reference.strip()
    if NUMBER.fullmatch(text):
        return "integer" if re.fullmatch(r"[-+]?[\d,]+", text) else "number"
    if re.fullmatch(r"-?\d+\s*/\s*\d+", text):
        return "fraction"
    if text.casefold() in BOOLEANS:
        return "boolean"
    if text[:1] in ("[", "{") and isinstance(parsed(text), list | dict):
        return "list" if text[0] == "[" else "object"
    if "\n" in text:
        return "grid"
    if re.search(r"\w,\s*\w", text):
        return "entries"
    return "text" if " " in text or not text else "word"


def looks_cut_off(answer: str) -> bool:
    """Whether brackets stay open at the end of an answer that has few other flaws."""
    return any(answer.count(left) > answer.count(right) for left, right in PAIRS.items())


def number_faults(answer: str, reference: str) -> list[str]:
    """What is wrong with an answer that should be the number `reference`."""
    found = NUMBER.findall(answer)
    if not found:
        return ["There is no number in the answer."]
    faults = []
    if len(found) > 1:
        faults.append(
            "There are several numbers in the answer, so that it is unclear which counts."
        )
    elif not NUMBER.fullmatch(answer.strip()):
        faults.append("There is other text beside the number.")
    got, wanted = (Decimal(text.replace(",", "")) for text in (found[-1], reference))
    if got == wanted:
        return faults
    if abs(got.adjusted() - wanted.adjusted()) > 1:
        return [*faults, "The number is wrong by orders of magnitude."]
    if abs(got - wanted) == 1:
        return [*faults, "The number is off by only one."]
    if got == -wanted:
        return [*faults, "The sign of the number is wrong."]
    if got.adjusted() != wanted.adjusted():
        faults.append("The number has the wrong number of digits.")
    return [*faults, f"The number is too {'large' if got > wanted else 'small'}."]


def _number(case: Case) -> list[str]:
    faults = number_faults(case.answer, case.reference.strip())
    if kind_of(case.reference) == "integer" and re.fullmatch(
        r"-?\d+\.\d*[1-9]", case.answer.strip()
    ):
        faults.insert(0, "The answer has decimals where a whole number was asked for.")
    return faults


def _fraction(case: Case) -> list[str]:
    if not re.fullmatch(r"-?\d+\s*/\s*\d+", case.answer.strip()):
        return ["The answer is not written as a fraction with a slash."]
    return ["The fraction has the wrong value or is not reduced."]


def _boolean(case: Case) -> list[str]:
    if case.answer.strip().casefold() in BOOLEANS:
        return ["The choice is wrong."]
    return ["The answer is not one of the two words that were asked for."]


def _json_type(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        tuple: "a list",
        set: "a set",
        str: "a string",
        bytes: "a string",
        bool: "a truth value",
    }
    return "null" if value is None else names.get(type(value), "a number")


def _is_null(text: str) -> bool:
    return text.strip().strip("`").casefold() in ("null", "none")


def value_faults(got: Any, wanted: Any, question: str, where: str = "The answer") -> list[str]:
    """How a parsed JSON value differs from the wanted one, in types, keys and lengths only.

    Missing keys are named where the question names them.
    """
    if _json_type(got) != _json_type(wanted):
        return [f"{where} is {_json_type(got)} where {_json_type(wanted)} was required."]
    if isinstance(wanted, dict):
        return _key_faults(got, wanted, question)
    if isinstance(wanted, list) and len(got) != len(wanted):
        return [f"{where} has too {'many' if len(got) > len(wanted) else 'few'} entries."]
    if isinstance(wanted, list):
        wrong = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b), None)
        return [] if wrong is None else [f"{where} goes wrong at position {wrong + 1}."]
    return [] if got == wanted else [f"{where} has the right type but the wrong value."]


def _key_faults(got: dict[str, Any], wanted: dict[str, Any], question: str) -> list[str]:
    missing = [key for key in wanted if key not in got]
    faults = [f"The key {key!r} is missing." for key in missing if str(key) in question]
    faults += ["A key is missing."] if len(faults) < len(missing) else []
    faults += [f"The key {key!r} is not wanted." for key in got if key not in wanted]
    for key in wanted:
        if key in got:
            faults += value_faults(got[key], wanted[key], question, f"The value of {key!r}")
    return faults


def json_faults(answer: str, reference: str, question: str = "") -> list[str]:
    """What is wrong with an answer that should be the JSON or Python value `reference`."""
    value = parsed(answer.strip())
    if value is None and not _is_null(answer):
        faults = ["The answer cannot be parsed."]
        if re.search(r"[\[{].*[\]}]", answer, re.DOTALL):
            faults.append("There is other text around the value, or a bracket or quote is wrong.")
        return faults
    return value_faults(value, parsed(reference), question)


def _structure(case: Case) -> list[str]:
    return json_faults(case.answer, case.reference, case.question)


def _grid(case: Case) -> list[str]:
    got, wanted = rows_of(case.answer), rows_of(case.reference)
    if len(got) != len(wanted):
        return [f"The answer has too {'many' if len(got) > len(wanted) else 'few'} lines."]
    widths = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if len(a) != len(b)]
    if widths:
        return [f"Line {widths[0] + 1} has the wrong number of entries."]
    wrong = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]
    return [f"Line {wrong[0] + 1} is the first with a mistake."] if wrong else []


def _entries(case: Case) -> list[str]:
    got, wanted = ([e.strip() for e in t.split(",")] for t in (case.answer, case.reference))
    if len(got) == 1 and len(wanted) > 1:
        return ["The entries are not separated by commas."]
    if len(got) != len(wanted):
        return [f"The answer has too {'many' if len(got) > len(wanted) else 'few'} entries."]
    if sorted(got) == sorted(wanted):
        return ["The entries are right but their order is wrong."]
    return []


def _word(case: Case) -> list[str]:
    if len(case.answer.split()) > 1:
        return ["The answer has more than a single word."]
    return text_faults(case.answer, case.reference)


def text_faults(answer: str, reference: str) -> list[str]:
    """What is wrong with an answer that should be the text `reference`."""
    got, wanted = answer.strip(), reference.strip()
    if got.casefold() == wanted.casefold():
        return ["Only upper and lower case are wrong."]
    if wanted and wanted in got:
        return ["There is extra text around the right answer."]
    if sorted(got.split()) == sorted(wanted.split()):
        return ["The words are right but their order is wrong."]
    if wanted and len(got) != len(wanted):
        return [f"The answer is too {'long' if len(got) > len(wanted) else 'short'}."]
    return []


def _text(case: Case) -> list[str]:
    return text_faults(case.answer, case.reference)


KINDS: dict[str, Rule] = {
    "integer": Rule("The answer must be one whole number and nothing else.", _number),
    "number": Rule("The answer must be one number and nothing else.", _number),
    "fraction": Rule("The answer must be one fraction with a slash and nothing else.", _fraction),
    "boolean": Rule("The answer must be exactly one of the two words asked for.", _boolean),
    "list": Rule("The answer must be one list in square brackets and nothing else.", _structure),
    "object": Rule("The answer must be one JSON object and nothing else.", _structure),
    "grid": Rule("The answer must have one row per line, written as in the question.", _grid),
    "entries": Rule("The answer must be entries separated by commas and nothing else.", _entries),
    "word": Rule("The answer must be a single word or symbol and nothing else.", _word),
    "text": Rule("The answer must be exactly the text that was asked for.", _text),
}
