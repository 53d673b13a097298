"""Graders of your own problems: exact text, numbers, multiple choice, JSON. Each gives 0 or 1."""

import json
import logging
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from math_verify import parse, verify

from fst_core.environments.reading import LABEL, NUMBER, last_line, plain_minus, read_anywhere

LONGEST_NUMBER = 200
"""Longest text handed to math-verify (characters)."""
HUGE_POWER = re.compile(
    r"(?:\^|\*\*)\s*[{(]?\s*(?:-?\d{3,}|[^{}()]*(?:\^|\*\*))|!|[\d.][eE][-+]?\d{4}"
    r"|(?:\^|\*\*)\s*[{(][^{}]*\d\s*(?:\*|\\times|\\cdot)|[)}]\s*(?:\^|\*\*).*[)}]\s*(?:\^|\*\*)"
)
"""Powers and factorials that could take a computer algebra system forever."""
HUGE_TERM = re.compile(
    r"\\(?:sum|prod|int|oint|lim|Gamma)(?![a-zA-Z])|binom.*\d{4}"
    r"|\([^()]*[a-zA-Z][^()]*\)\s*(?:\^|\*\*)\s*[{(]?\s*\d{2}"
)
"""What it would work out without end, or multiply out: sums, large binomials, powers of sums."""
MARKUP = re.compile(r"\\(?:left|right|[dt]?frac|cdot|times|sqrt|text|mathrm)(?![a-zA-Z])")
"""Commands of LaTeX whose letters are no variables."""
CHOICE = r"(?<![A-Za-z0-9'])\(?([A-Z])(?![A-Za-z0-9'])"
BOXED_CHOICE = re.compile(r"\\boxed\{(?:\\text\{)?\(?([A-Za-z])\)?\}")
TOLD_CHOICE = re.compile(
    r"(?i:answer)(?i:\s+is|\s+would be|\s+must be|\s+should be)?\s*[:=]?\s*"
    r"(?i:option\s+|choice\s+)?[*$\"'(]*"
    r"(?:(?!I\s+[a-z])([A-Z])(?![A-Za-z0-9'])|([a-z])(?=\s*(?:[).,;:!?*]|$)))"
)
"""A letter right after "answer"; a small one only where nothing but punctuation follows it."""
FREE_NUMBER = re.compile(rf"(?<![/^]){NUMBER.pattern}(?:\s*/\s*\d+(?![\w.]))?")
"""A number or a fraction of two that is no exponent."""


for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # warns once that its time limits are off


def grade_exact(answer: str, reference: str) -> bool:
    """Equal text; spacing at the ends and the width of spaces do not count."""
    return answer.split() == reference.split()


def _as_decimal(text: str) -> Decimal | None:
    bare = plain_minus(text).strip().strip("$")
    return Decimal(bare.replace(",", "")) if NUMBER.fullmatch(bare) else None


def grade_numeric(answer: str, reference: str) -> bool:
    """Equal value: decimals as they are, anything else (fractions, LaTeX) through math-verify."""
    got, wanted = _as_decimal(answer), _as_decimal(reference)
    if got is not None and wanted is not None:
        return got == wanted
    answer, reference = plain_minus(answer), plain_minus(reference)
    if len(answer) > LONGEST_NUMBER or HUGE_POWER.search(answer):
        return False
    if HUGE_TERM.search(MARKUP.sub(" ", answer)):
        return answer.split() == reference.split()
    # Its own time limits need signals, which fail outside the main thread: hence the guard above.
    values = [
        parse(text if "$" in text or "\\boxed" in text else f"${text}$", parsing_timeout=None)
        for text in (reference, answer)
    ]
    return bool(verify(*values, timeout_seconds=None))


def grade_choice(answer: str, reference: str) -> bool:
    """The chosen letter, as in "B", "(B)", "B. Paris" or "The answer is B"."""
    return choice_of(answer) == choice_of(reference)


def choice_of(text: str) -> str:
    """The letter a text settles on; empty if there is none.

    One in a box counts first, then the last right after "answer", then a leading one, then the last
    after "option" or "choice", then the last that stands alone.
    """
    if boxed := BOXED_CHOICE.findall(text):
        return str(boxed[-1]).upper()
    if said := TOLD_CHOICE.findall(text):
        return "".join(said[-1]).upper()
    bare = LABEL.sub("", text.strip()).strip("*$ \n")
    leading = re.match(r"\(?([A-Za-z])(?:[).:]|\s*$)", bare)
    if leading:
        return leading[1].upper()
    told = re.findall(rf"(?i:option|choice)(?: is)?\s*:?\s*\**\s*{CHOICE}", bare)
    alone = (
        told or [c for c in re.findall(CHOICE, bare) if c not in "AI"] or re.findall(CHOICE, bare)
    )
    return alone[-1] if alone else ""


def same_json(a: Any, b: Any) -> bool:
    """JSON equality: 1 equals 1.0, but true is no number; the order of keys does not count."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return bool(a == b)


def grade_json(answer: str, reference: str) -> bool:
    """Equal JSON values."""
    try:
        return same_json(json.loads(answer), json.loads(reference))
    except (ValueError, RecursionError):
        return False


def find_answer(grader: str, completion: str, reference: str) -> str:
    """Where a grader looks for the answer in a text without tags."""
    text = completion.strip()
    if grader == "choice":
        return choice_of(text)
    if grader == "numeric":
        if box := last_box(text):
            return box
        if _as_decimal(reference) is None:
            return read_anywhere(text, "text")
        numbers = FREE_NUMBER.findall(plain_minus(text))
        return numbers[-1].replace(",", "") if numbers else ""
    return last_line(text) if grader == "exact" else read_anywhere(text, reference)


def last_box(text: str) -> str:
    """What the last whole \\boxed{...} holds; empty if there is none."""
    for start in reversed([found.end() for found in re.finditer(r"\\boxed\{", text)]):
        depth = 1
        for place in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start:place]
    return ""


Grader = Callable[[str, str], bool]
GRADERS: dict[str, Grader] = {
    "exact": grade_exact,
    "numeric": grade_numeric,
    "choice": grade_choice,
    "json": grade_json,
}
