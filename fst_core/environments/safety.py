"""Which answers never reach a scorer of reasoning-gym.

Four of its scorers call `eval` on the answer and five hand it to sympy's parser, which evaluates it
too. A policy's text is not to be executed, nor may `9**9**9**9` stop a run, so these families take
only answers of a form that is known to be harmless.
"""

import ast
import re
from math import prod

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
GAMES = frozenset({"countdown", "puzzle24"})
SYMBOLIC = frozenset(
    {"intermediate_integration", "polynomial_multiplication", "simple_integration"}
)

LONGEST = 400
"""Longest formula handed to sympy (characters)."""
POWER = re.compile(
    r"(?<!\w)E\s*\*\*\s*\((?:[^()*]|\*(?!\*))*\)"
    r"|\*\*\s*(?:[-+]?\s*\d{1,2}(?![\d.])|[A-Za-z](?!\w)|\(\s*[-+]?\d{1,2}\s*(?:/\s*\d{1,2}\s*)?\))"
    r"(?!\s*\*\*)"
)
"""A power that is quick to evaluate: a short number, letter or fraction, or E to a formula."""
LONG_NUMBER = re.compile(r"\d{40}|[\d.][eE][-+]?\d{3}")
"""A number that takes long to turn into an exact fraction."""
VAST = re.compile(r"[\d.][eE][-+]?\d{4}")
"""A number so large or small that an exact fraction of it fills the memory; refused everywhere."""
POWER_OF_POWERS = 40
"""Largest product of the exponents that stand behind brackets."""
FUNCTIONS = re.compile(r"a?(?:sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|Abs|pi")


def _is_literal(answer: str) -> bool:
    try:
        ast.literal_eval(answer)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def _plain(answer: str) -> bool:
    if not re.fullmatch(r"[\s\w\[\],'\"#.-]*", answer):
        return False
    return "[" not in answer or _is_literal(answer)


def _small_powers(answer: str) -> bool:
    if len(POWER.findall(answer)) != answer.count("**"):
        return False
    outer = re.findall(r"\)\s*\*\*\s*\(?\s*[-+]?\s*(\d+)", answer)
    return prod(map(int, outer)) <= POWER_OF_POWERS


def _formula(answer: str) -> bool:
    if (
        len(answer) > LONGEST
        or LONG_NUMBER.search(answer)
        or not re.fullmatch(r"[\s\w+\-*/().,]*", answer)
    ):
        return False
    names = re.findall(r"[^\W\d]\w*", answer)
    if any(len(name) > 1 and not FUNCTIONS.fullmatch(name) for name in names):
        return False
    return not re.search(r"\.\s*[^\W\d]", answer) and _small_powers(answer)


def harmless(family: str, answer: str) -> bool:
    """Whether an answer may be handed to the scorer of a reasoning-gym family."""
    if VAST.search(answer):
        return False
    if family in EVALUATED:
        return _plain(answer)
    if family in GAMES:
        return "**" not in answer and _formula(answer)
    return family not in SYMBOLIC or _formula(answer)
