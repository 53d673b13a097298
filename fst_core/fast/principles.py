"""Who writes E-SPL's children: three stages of reflection by a language model, or offline rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from fst_core.config.fast import RulesReflection
from fst_core.fast.base import Chat, Messages
from fst_core.fast.language_model import FIELD_CHARACTERS, shorten
from fst_core.fast.operations import (
    apply,
    as_chat,
    ask,
    fewer,
    format_of,
    listed,
    numbered,
    read_ops,
)
from fst_core.fast.reflection import NOTHING, Example, Job, Peer, Tried
from fst_core.fast.rules import Rules
from fst_core.records import Context, content_id, seed_of

if TYPE_CHECKING:
    from fst_core.fast.espl import EsplConfig

SUMMARY = """\
An assistant with the standing principles below answered a question. The judge found its answer
{label}.

Principles:
{principles}

Question: {question}
Answer: {answer}
Remark of the judge: {remark}
{solution}
Retell step by step what the assistant did. Say which principle it used at each step and, if the
answer is wrong, where it went wrong. Be brief."""
CRITIQUE = """\
An assistant with the standing principles below answered one question several times, with mixed
success. From the difference between good and bad answers, work out what the principles lack.

Principles:
{principles}

Question: {question}
{solution}
{summaries}

Propose at most {most} changes that would also help with other questions of the kind.
{format}"""
CONSOLIDATION = """\
Below are the standing principles of an assistant, old ones (G) and newly proposed ones (C), and
suggestions how to rewrite some.

{principles}

Suggestions:
{suggestions}

Tidy the list: follow the suggestions that are worth it, and merge what says the same. Every
principle must be general, not bound to one question, say something no other does, and take at most
32 words.
{format}"""
CROSSOVER = """\
Several lists of standing principles were tried on the same questions. Each list is shown with the
questions it answered better than all the others.

{lists}

Improve list A: take over what made the other lists better where they won, keep what made A better
where it won. The ids in your changes are those of list A.
{format}"""

TIDIES, CROSSES = ("modify", "merge"), ("add", "modify", "remove")
"""Kinds of changes that a consolidation and a crossover may make."""


@dataclass(frozen=True, slots=True)
class Written:
    """A child context (None: there is none) and what writing it took."""

    text: str | None
    parents: tuple[str, ...] = ()
    """Ids of contexts used besides the first parent."""
    calls: int = 0
    """Batches of reflections."""
    texts: int = 0
    """Reflections."""
    malformed: int = 0


Won = Mapping[str, Sequence[str]]
"""Contexts, and the questions each answered better than all others."""


class Writer(Protocol):
    """Writes children."""

    @property
    def usage(self) -> Mapping[str, float]:
        """See `Reflection.usage`."""
        ...

    def mutate(
        self, parent: str, tried: Sequence[Tried], pool: Sequence[str], seed: int
    ) -> Written:
        """A child of the batch winner from its own rollouts; `pool` holds the texts there are."""
        ...

    def cross(self, won: Won, pool: Sequence[str], seed: int) -> Written:
        """A child of the batch winner (the first) and others that alone did best on a question."""
        ...


def summary_prompt(tried: Tried, example: Example, own: Mapping[str, str]) -> Callable[[int], str]:
    """Asks what one rollout did."""
    return lambda limit: SUMMARY.format(
        label="right" if example.reward == 1 else f"worth {example.reward:g} of 1",
        principles=listed(own),
        question=shorten(tried.question, limit),
        answer=shorten(example.response, limit),
        remark=shorten(" ".join(example.feedback) or "none", limit),
        solution=_solution(tried, limit),
    )


def critique_prompt(
    tried: Tried, summaries: Sequence[str], own: Mapping[str, str], most: int
) -> Callable[[int], str]:
    """Asks what one problem teaches."""

    def told(limit: int) -> str:
        pairs = zip(tried.examples, summaries, strict=True)
        return "\n".join(f"Score {e.reward:g}: {shorten(text, limit)}" for e, text in pairs)

    return lambda limit: CRITIQUE.format(
        principles=listed(own),
        question=shorten(tried.question, limit),
        solution=_solution(tried, limit),
        summaries=told(limit),
        most=most,
        format=format_of(("modify", "add")),
    )


def consolidation_prompt(lines: Mapping[str, str], suggestions: Sequence[str]) -> str:
    """Asks for a tidy list."""
    return CONSOLIDATION.format(
        principles=listed(lines),
        suggestions="\n".join(suggestions) or "(none)",
        format=format_of(TIDIES),
    )


def crossover_prompt(won: Won, limit: int) -> str:
    """Asks what the first context can take over from the others."""
    lists = (
        f"List {chr(65 + n)}:\n{listed(numbered(text.splitlines()))}\nBetter on:\n"
        + "\n".join(f"- {shorten(question, limit)}" for question in fewer(questions, limit))
        for n, (text, questions) in enumerate(won.items())
    )
    return CROSSOVER.format(lists="\n\n".join(lists), format=format_of(CROSSES))


def least_prompts(settings: "EsplConfig", context: Context) -> list[Messages]:
    """The shortest chats of a mutation's three stages and, where it may come, of a crossover."""
    own, most = numbered(context.text.splitlines()), settings.max_update_operations
    tried, limit = Tried("", (NOTHING,)), FIELD_CHARACTERS
    prompts = [
        summary_prompt(tried, NOTHING, own)(limit),
        critique_prompt(tried, [""], own, most)(limit),
        consolidation_prompt(own, []),
    ]
    if settings.crossover_prob:
        prompts.append(crossover_prompt({context.text: [""], "": [""]}, limit))
    return list(map(as_chat, prompts))


def _solution(tried: Tried, limit: int) -> str:
    return f"A right answer: {shorten(tried.solution, limit)}" if tried.solution else ""


class ModelWriter:
    """E-SPL's reflection by a language model; `most_ops` is its limit of changes per problem."""

    def __init__(self, chat: Chat, usage: Callable[[], Mapping[str, float]], most_ops: int) -> None:
        self._chat, self._usage, self._most_ops = chat, usage, most_ops

    @property
    def usage(self) -> Mapping[str, float]:
        """See `Writer`."""
        return self._usage()

    def mutate(
        self, parent: str, tried: Sequence[Tried], pool: Sequence[str], seed: int
    ) -> Written:
        """Summaries of the rollouts of problems with mixed outcomes, critiques, consolidation."""
        own = numbered(parent.splitlines())
        mixed = [t for t in tried if 0 < t.score < 1]
        replies = self._critiques(mixed, self._summaries(mixed, own, seed), own, seed)
        read = [read_ops(reply, ("modify", "add"), self._most_ops) for reply in replies]
        ops = [op for found, _ in read for op in found]
        malformed = sum(broken for _, broken in read)
        calls, texts = 2 * bool(mixed), sum(1 + len(t.examples) for t in mixed)
        added = numbered([op.text for op in ops if op.kind == "add"], "C")
        if not own and not added:
            return Written(None, (), calls, texts, malformed)
        suggestions = [f"[{op.ids[0]}] {op.text}" for op in ops if op.kind == "modify"]
        lines, reply = self._consolidation(own, added, suggestions, seed)
        last, broken = read_ops(reply, TIDIES)
        kept, missing = apply(last, lines)
        return Written("\n".join(kept), (), calls + 1, texts + 1, malformed + broken + missing)

    def _summaries(
        self, mixed: Sequence[Tried], own: Mapping[str, str], seed: int
    ) -> list[list[str]]:
        """One text per rollout of each problem."""
        prompts = [summary_prompt(t, example, own) for t in mixed for example in t.examples]
        seeds = [seed_of(seed, "summary", n) for n in range(len(prompts))]
        replies = iter(ask(self._chat, prompts, seeds))
        return [[next(replies) or "(no summary)" for _ in t.examples] for t in mixed]

    def _critiques(
        self,
        mixed: Sequence[Tried],
        summaries: Sequence[Sequence[str]],
        own: Mapping[str, str],
        seed: int,
    ) -> Sequence[str | None]:
        """One list of operations per problem, as text."""
        pairs = zip(mixed, summaries, strict=True)
        prompts = [critique_prompt(t, texts, own, self._most_ops) for t, texts in pairs]
        seeds = [seed_of(seed, "critique", n) for n in range(len(prompts))]
        return ask(self._chat, prompts, seeds)

    def _consolidation(
        self,
        own: Mapping[str, str],
        added: Mapping[str, str],
        suggestions: Sequence[str],
        seed: int,
    ) -> tuple[Mapping[str, str], str | None]:
        """The lines that were shown, of the added ones as many as fit, and the reply."""
        lines = dict(own)

        def prompt(limit: int) -> str:
            nonlocal lines
            lines = {**own, **dict(fewer(list(added.items()), limit))}
            return consolidation_prompt(lines, fewer(suggestions, limit))

        (reply,) = ask(self._chat, [prompt], [seed_of(seed, "consolidation")])
        return lines, reply

    def cross(self, won: Won, pool: Sequence[str], seed: int) -> Written:
        """One reflection sees every parent's principles and the questions it won."""
        prompt = partial(crossover_prompt, won)
        (reply,) = ask(self._chat, [prompt], [seed_of(seed, "crossover")])
        ops, malformed = read_ops(reply, CROSSES)
        first, *others = won
        lines, missing = apply(ops, numbered(first.splitlines()))
        ids = tuple(map(content_id, others))
        text = "\n".join(lines) if ops else None
        return Written(text, ids, 1, 1, malformed + missing)


class RulesWriter:
    """Children by offline rules: a mutation edits one line or so, a crossover joins two contexts.

    The rules' merging of contexts is kept for crossover.
    """

    def __init__(self, config: RulesReflection, fits: Callable[[str], bool]) -> None:
        weights = {name: 0.0 for name in RulesReflection.model_fields if name.endswith("_weight")}
        self._edit = Rules(config.model_copy(update={"merge_weight": 0.0}), fits)
        self._join = Rules(config.model_copy(update={**weights, "merge_weight": 1.0}), fits)
        self.usage: Mapping[str, float] = {}

    def mutate(
        self, parent: str, tried: Sequence[Tried], pool: Sequence[str], seed: int
    ) -> Written:
        """One rule applied to the parent, which sees its rollouts on this batch alone."""
        examples = [example for t in tried for example in t.examples]
        solved = [Example(t.question, t.solution, 1.0) for t in tried if t.solution is not None]
        good = sorted((e for e in [*examples, *solved] if e.reward > 0), key=lambda e: -e.reward)
        peers = tuple(Peer(text, 0.0) for text in pool if text != parent)
        (child,) = self._edit.propose([Job(parent, (*examples,), (*good,), peers, seed)])
        return Written(child.text, (), 1, 1)

    def cross(self, won: Won, pool: Sequence[str], seed: int) -> Written:
        """The lines of the batch winner and of one other parent, drawn by the problems it won."""
        first, *others = won
        wins = sum(map(len, won.values()))
        peers = tuple(Peer(text, len(won[text]) / wins) for text in others)
        (child,) = self._join.propose([Job(first, (), (), peers, seed)])
        return Written(child.text, child.parents, 1, 1)
