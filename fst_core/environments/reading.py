"""Reading the answer out of a completion: inside a required tag, or anywhere in the text."""

import re
from dataclasses import dataclass
from typing import Literal

NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,5})?(?!\w)"
)
"""A decimal number that is no part of a word; thousands may be set off by commas. Its exponent has
five digits at most: `Decimal` refuses long ones."""
LABEL = re.compile(r"^(?:so,? |thus,? )?(?:the )?(?:final )?answer(?: is)?\s*[:=]?\s+(?=\S)", re.I)

EMPTY = "The response is empty."
RIGHT_WITHOUT_TAGS = "The answer itself is right, only its form is not."


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer found, or None and the sentences that say what was missing."""

    answer: str | None
    feedback: tuple[str, ...] = ()


def tag_requirement(tag: str) -> str:
    """The sentence that asks for the tag; the same for every problem."""
    return f"Give the final answer inside <{tag}></{tag}> tags."


def read_tag(completion: str, tag: str) -> Reading:
    """The text inside the last complete pair of tags; a tag that is only mentioned opens none."""
    name = re.escape(tag)
    found = re.findall(f"<{name}>((?:(?!<{name}>).)*?)</{name}>", completion, re.DOTALL)
    if found and found[-1].strip():
        return Reading(found[-1].strip())
    if found:
        wrong = f"There is nothing inside the <{tag}></{tag}> tags."
    elif not completion.strip():
        wrong = EMPTY
    elif f"<{tag}>" in completion:
        wrong = f"The tag <{tag}> is opened but never closed, as if the response was cut off."
    elif f"</{tag}>" in completion:
        wrong = f"The tag </{tag}> is closed but never opened."
    else:
        wrong = f"The response has no <{tag}></{tag}> tags."
    return Reading(None, (wrong, tag_requirement(tag)))


def read_anywhere(completion: str, reference: str) -> str:
    """The most likely answer in free text, by the kind of the reference; empty if none is there.

    The last number for a number; the last bracketed value for a list or object; the whole text for
    several lines or an open answer; else the last line that is not blank, without "Answer:".
    """
    text = completion.strip()
    if NUMBER.fullmatch(reference):
        numbers = NUMBER.findall(plain_minus(text))
        return numbers[-1].replace(",", "") if numbers else ""
    if not reference or "\n" in reference:
        return text
    if reference[0] in "[{" and reference[0] in text:
        return last_bracketed(text, reference[0]) or last_line(text)
    return last_line(text)


def plain_minus(text: str) -> str:
    """A text with a hyphen for the minus sign of typesetting."""
    return text.replace("\u2212", "-")


def last_bracketed(text: str, opening: str) -> str:
    """The last outermost bracketed part of a text; from the first to the last bracket where they
    do not pair; empty without a closing one."""
    closing = "]" if opening == "[" else "}"
    depth, start, found = 0, 0, ""
    for place, character in enumerate(text):
        if character == opening:
            start = start if depth else place
            depth += 1
        elif character == closing and depth:
            depth -= 1
            found = found if depth else text[start : place + 1]
    if depth:
        return text[text.index(opening) : text.rfind(closing) + 1]
    return found


def last_line(text: str) -> str:
    """The last line that is not blank, without a leading "Answer:" or "The answer is"."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return LABEL.sub("", lines[-1]) if lines else ""


def read(completion: str, mode: Literal["anywhere", "tag"], tag: str, reference: str) -> Reading:
    """Read the answer as the environment's `answer` setting says."""
    if mode == "tag":
        return read_tag(completion, tag)
    answer = read_anywhere(completion, reference)
    if answer:
        return Reading(answer)
    wrong = EMPTY if not completion.strip() else "No answer could be found in the response."
    return Reading(None, (wrong,))
