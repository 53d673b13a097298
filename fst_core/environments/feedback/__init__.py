"""Textual feedback: plain sentences on what was wrong with an answer and what was required.

`explain(case)` is what an environment returns. The sentence that states the requirement is the same
for every problem of a family, so that a reader can count it; the sentences before it speak of this
one answer. No sentence holds the reference, unless the question or the response already does.
"""

from fst_core.environments.feedback.case import Case
from fst_core.environments.feedback.families import FAMILIES
from fst_core.environments.feedback.guard import without_reference
from fst_core.environments.feedback.kinds import KINDS, kind_of, looks_cut_off

CORRECT = "Correct."
PARTLY = "The answer is only partly right."
WRONG = "The answer is wrong."
CUT_OFF = "The answer looks cut off; leave room to finish it."

__all__ = ["CORRECT", "Case", "explain", "requirement"]


def requirement(case: Case) -> tuple[str, ...]:
    """What an answer to this family of problems must look like: zero or one constant sentence."""
    family = FAMILIES.get(case.family)
    sentence = family.requirement if family else KINDS[kind_of(case.reference)].requirement
    return without_reference((sentence,), case)


def explain(case: Case) -> tuple[str, ...]:
    """What was wrong with an answer and what was required, or that it was right.

    Returns:
        At least one sentence, without repeats; the last is the constant requirement.
    """
    if case.reward >= 1:
        return (CORRECT,)
    if not case.answer.strip():
        return ("The answer is empty.", *requirement(case))
    family = FAMILIES.get(case.family)
    kind = KINDS[kind_of(case.reference)]
    told = family.diagnose(case) if family else []
    told = told or kind.diagnose(case)
    if looks_cut_off(case.answer):
        told = [CUT_OFF, *told]
    opening = PARTLY if case.reward > 0.05 else WRONG
    sentences = dict.fromkeys((opening, *without_reference(told, case), *requirement(case)))
    return tuple(sentences)
