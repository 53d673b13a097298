"""Edits of a list of lines that a language model writes as JSON, and who edits a playbook.

A reply that holds no list counts as one without operations; it and every unusable operation are
counted as malformed.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fst_core.config.fast import RulesReflection
from fst_core.fast.base import Chat, Messages
from fst_core.fast.language_model import FIELD_CHARACTERS, MOST_REWARDED, shorten
from fst_core.fast.lessons import Playbook
from fst_core.fast.reflection import Example, Job, ReflectionError
from fst_core.fast.rules import Rules, one_line, text_of, units_of
from fst_core.policy.base import ContextTooLong
from fst_core.records import seed_of

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


PLAYBOOK = """\
An assistant reads standing instructions and a playbook of lessons before each question. You keep
the playbook. A line's counters say on how many problems it has helped and harmed so far.

Instructions:
{header}

Playbook:
{lines}

With them it gave the answers below. A judge scored each from 0 to 1 and remarked on it.

{examples}
Answers that scored well, under the same playbook or a line less:

{rewarded}
Propose at most {most} changes: lessons that are missing, lines to put better, lines that mislead.
Every lesson must be general, not bound to one question, and say something no other does.
{format}"""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on numbered lines; `ids` are those it takes the place of."""

    kind: str
    ids: tuple[str, ...] = ()
    text: str = ""


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
    text = one_line(text)
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


def ask(
    chat: Chat, prompts: Sequence[Callable[[int], str]], seeds: Sequence[int]
) -> Sequence[str | None]:
    """Replies to one batch of prompts, each a function of how many characters a field may have.

    Raises:
        ReflectionError: if the chat cannot answer, or even short fields do not fit its window.
    """
    limit = FIELD_CHARACTERS
    while True:
        chats: list[Messages] = [[{"role": "user", "content": p(limit)}] for p in prompts]
        try:
            return chat(chats, seeds) if chats else []
        except ContextTooLong as error:
            limit //= 2
            if limit < LEAST_CHARACTERS:
                raise ReflectionError(
                    f"a reflection does not fit the model's window, its fields cut short: {error}"
                ) from error


class RulesEditor:
    """Adds lines and worked examples by offline rules; retiring is left to the counters."""

    def __init__(self, config: RulesReflection, fits: Callable[[str], bool]) -> None:
        none = {"drop_weight": 0.0, "replace_weight": 0.0, "merge_weight": 0.0}
        self._rules = Rules(config.model_copy(update=none), fits)
        self.usage: Mapping[str, float] = {}

    def edit(
        self,
        playbook: Playbook,
        examples: Sequence[Example],
        rewarded: Sequence[Example],
        most: int,
        seed: int,
    ) -> tuple[list[Op], int]:
        """See `playbook.Editor`: what as many proposals add to the whole playbook."""
        text = playbook.text()
        jobs = [Job(text, (*examples,), (*rewarded,), (), seed_of(seed, n)) for n in range(most)]
        units = [
            unit for proposal in self._rules.propose(jobs) for unit in units_of(proposal.text or "")
        ]
        new = [unit for unit in dict.fromkeys(units) if unit not in units_of(text)]
        return [Op("add", (), text_of([unit])) for unit in new][:most], 0


class ModelEditor:
    """Edits by a language model, in one reflection."""

    def __init__(self, chat: Chat, usage: Callable[[], Mapping[str, float]]) -> None:
        self._chat, self._usage = chat, usage

    @property
    def usage(self) -> Mapping[str, float]:
        """See `playbook.Editor`."""
        return self._usage()

    def edit(
        self,
        playbook: Playbook,
        examples: Sequence[Example],
        rewarded: Sequence[Example],
        most: int,
        seed: int,
    ) -> tuple[list[Op], int]:
        """See `playbook.Editor`."""
        kinds = ("add", "modify", "remove")
        lines = {
            line.id: f"{line.text} (helped {line.helpful}, harmed {line.harmful})"
            for line in playbook.lines
        }

        def prompt(limit: int) -> str:
            return PLAYBOOK.format(
                header=playbook.header or "(none)",
                lines=listed(lines),
                examples=_shown(examples, limit),
                rewarded=_shown(rewarded[:MOST_REWARDED], limit),
                most=most,
                format=format_of(kinds),
            )

        (reply,) = ask(self._chat, [prompt], [seed])
        return read_ops(reply, kinds, most)


def _shown(examples: Sequence[Example], limit: int) -> str:
    """Examples as a language model reads them."""
    return "\n".join(
        f"Question: {shorten(e.problem, limit)}\nAnswer: {shorten(e.response, limit)}\n"
        f"Score: {e.reward:g}\nRemark: {shorten(' '.join(e.feedback) or 'none', limit)}\n"
        for e in fewer(examples, limit)
    )
