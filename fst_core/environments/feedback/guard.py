"""Keeps the reference answer out of feedback."""

import re
from collections.abc import Iterable
from functools import lru_cache

from fst_core.environments.feedback.case import Case


@lru_cache(4096)  # the same questions, references and sentences come by again and again
def _words(text: str) -> str:
    """Words and numbers of a text in lower case, each between spaces."""
    return " ".join(["", *re.findall(r"[^\W_]+", text.casefold()), ""])


@lru_cache(4096)
def _bare(text: str) -> str:
    return "".join(text.casefold().split())


def holds(text: str, reference: str) -> bool:
    """Whether the words of the reference stand in a text one after the other."""
    words = _words(reference)
    if words.strip():
        return words in _words(text) or (
            len(_bare(reference)) >= 6 and _bare(reference) in _bare(text)
        )
    return bool(_bare(reference)) and _bare(reference) in _bare(text)


def without_reference(sentences: Iterable[str], case: Case) -> tuple[str, ...]:
    """The sentences that do not give the reference away.

    A reference that the question or the response already holds gives nothing away.
    """
    if holds(case.question, case.reference) or holds(case.completion, case.reference):
        return tuple(sentences)
    return tuple(s for s in sentences if not holds(s, case.reference))
