"""Edits of a list of lines that a language model writes as JSON.

A reply that holds no list counts as one without operations; it and every unusable operation are
counted as malformed.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fst_core.fast.base import Chat, Messages
from fst_core.fast.language_model import FIELD_CHARACTERS
from fst_core.fast.lessons import Op
from fst_core.fast.reflection import beyond_window
from fst_core.fast.rules import one_line
from fst_core.policy.base import ContextTooLong
from fst_core.records import well_formed

Item = TypeVar("Item")
LEAST_CHARACTERS = 100
"""A field is not cut below this to make a chat fit the model's window."""

KINDS: Mapping[str, str] = {
    "add": '{"op": "add", "text": "..."} appends a line',
    "modify": '{"op": "modify", "id": "G0", "text": "..."} rewrites a line',
    "merge": '{"op": "merge", "ids": ["G0", "G1"], "text": "..."} replaces lines by one',
    "remove": '{"op": "remove", "id": "G0"} deletes a line',
}
"""How a language model is told to write each kind of operation."""


def read_ops(
    reply: str | None, kinds: Sequence[str], most: int | None = None
) -> tuple[list[Op], int]:
    """The first `most` operations of a reply, and how many were malformed.

    The list of objects may stand within other text; thoughts are left out.
    """
    answer = re.sub(r"<think>.*?</think>", "", reply or "", flags=re.DOTALL)
    found = re.search(r"\[\s*(\{.*\}\s*)?\]", answer.rpartition("</think>")[2], flags=re.DOTALL)
    try:
        items = json.loads(found[0]) if found else None
    except (ValueError, RecursionError):
        items = None
    if items is None:
        return [], 1
    ops = [_op(item, kinds) for item in items]
    return [op for op in ops if op][:most], ops.count(None)


def _op(item: Any, kinds: Sequence[str]) -> Op | None:
    if not isinstance(item, dict) or item.get("op") not in kinds:
        return None
    kind, text = item["op"], item.get("text", "")
    ids = item.get("ids", []) if kind == "merge" else [item.get("id")] if kind != "add" else []
    if not isinstance(text, str) or not isinstance(ids, list):
        return None
    if not all(isinstance(i, str) for i in ids) or (kind == "merge" and len(ids) < 2):
        return None
    text = one_line(well_formed(text))
    return Op(kind, tuple(dict.fromkeys(ids)), text) if text or kind == "remove" else None


def apply(ops: Sequence[Op], lines: Mapping[str, str]) -> tuple[list[str], int]:
    """Lines after the operations, in order, and how many named a line that is not there.

    A merged line stands where the first of its lines stood; added ones come last.
    """
    left, added, missing = dict(lines), list[str](), 0
    for op in ops:
        if op.kind == "add":
            added.append(op.text)
        elif not set(op.ids) <= left.keys():
            missing += 1
        else:
            first, *others = sorted(op.ids, key=list(left).index)
            left[first] = op.text
            for gone in others if op.kind == "merge" else op.ids if op.kind == "remove" else ():
                del left[gone]
    return list(dict.fromkeys([*left.values(), *added])), missing


def numbered(lines: Sequence[str], letter: str = "G") -> dict[str, str]:
    """Lines by id: G0, G1, ..."""
    return {f"{letter}{n}": line for n, line in enumerate(lines)}


def listed(lines: Mapping[str, str]) -> str:
    """Numbered lines as a language model reads them."""
    return "\n".join(f"[{name}] {line}" for name, line in lines.items()) or "(none yet)"


def format_of(kinds: Sequence[str]) -> str:
    """How the answer must be written."""
    forms = "; ".join(KINDS[kind] for kind in kinds)
    return f"Answer with nothing but a JSON list of changes, [] for none. {forms}."


def fewer(items: Sequence[Item], limit: int) -> Sequence[Item]:
    """All of the items at first, fewer of them as `ask` lowers the limit, at least one."""
    return items[: max(1, len(items) * limit // FIELD_CHARACTERS)]


def as_chat(prompt: str) -> Messages:
    """A prompt as the chat that a language model answers."""
    return [{"role": "user", "content": prompt}]


def ask(
    chat: Chat, prompts: Sequence[Callable[[int], str]], seeds: Sequence[int]
) -> Sequence[str | None]:
    """Replies to one batch of prompts, each a function of how many characters a field may have.

    Raises:
        ReflectionError: if the chat cannot answer, or even short fields do not fit its window.
    """
    limit = FIELD_CHARACTERS
    while True:
        chats = [as_chat(prompt(limit)) for prompt in prompts]
        try:
            return chat(chats, seeds) if chats else []
        except ContextTooLong as error:
            limit //= 2
            if limit < LEAST_CHARACTERS:
                raise beyond_window("with its fields cut short", error) from error
