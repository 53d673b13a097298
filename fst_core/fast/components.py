"""A context as gepa sees it, a dict of named texts, and what gepa 0.1.4's merge needs besides."""

from typing import Any

from gepa.core.state import GEPAState

from fst_core.records import Context, Parts, joined, seed_of

WHOLE = "context"
"""The only component of a context that is one text."""
Texts = dict[str, str]
"""A gepa candidate."""
MERGE = "gepa-merge"
"""Operator of contexts that gepa merged from two."""
TINY = 1e-12
"""Score that stands for 0 on one anchor of a candidate that earned nothing; see `lift`."""


class Name(str):
    """A component's name with the same hash in every process.

    gepa's merge draws random numbers while it walks a set of names.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return seed_of(self)


def candidate_of(context: Context) -> Texts:
    """A context as gepa sees it."""
    return {Name(name): text for name, text in context.parts} or {WHOLE: context.text}


def text_of(candidate: Texts) -> str:
    """What the policy reads of a candidate."""
    return joined(candidate.values())


def parts_of(candidate: Texts) -> Parts:
    """The components of a candidate; none where it is one text."""
    return tuple((str(name), text) for name, text in candidate.items() if isinstance(name, Name))


def lift(state: GEPAState[Any, int]) -> None:
    """Let no candidate's mean be 0: merge draws ancestors by their means, and fails if all are 0.

    Candidates that earned nothing all get the same TINY on their first anchor; nothing else that
    gepa compares changes.
    """
    for scores in state.prog_candidate_val_subscores:
        if scores and not any(scores.values()):
            scores[min(scores)] = TINY


def lowered(score: float) -> float:
    """The score before `lift`."""
    return 0.0 if score == TINY else score
