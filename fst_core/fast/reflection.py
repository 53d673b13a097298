"""The seam of reflection: jobs in, proposals out, and the one gate every proposal passes.

A Reflection reads how a context did on a few train problems and writes a new context. It may be a
set of offline rules (`rules`) or a language model (`language_model`); the search does not care.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from fst_core.records import Parts, Rollout, content_id, joined

if TYPE_CHECKING:
    from fst_core.policy.base import ContextTooLong


class ReflectionError(RuntimeError):
    """Reflection cannot go on (a server is down, a package is missing, a bug); one sentence why."""


@dataclass(frozen=True, slots=True)
class Example:
    """One judged rollout on a train problem, as reflection sees it."""

    problem: str
    response: str
    reward: float
    feedback: tuple[str, ...] = ()


NOTHING = Example("", "", 0.0)
"""The shortest example."""


def beyond_window(told: str, error: "ContextTooLong") -> ReflectionError:
    """The error of a reflection whose shortest form passes the window of the model that writes it.

    Args:
        told: how it was shortened.
        error: the engine's, whose remedies are those of a rollout.
    """
    reason = str(error).partition(";")[0]
    return ReflectionError(
        f"a reflection does not fit the model's window {told}: {reason}; lower "
        "fast.reflection.max_new_tokens or contexts.max_tokens, or set another fast.reflection.type"
    )


def example_of(question: str, rollout: Rollout) -> Example:
    """A rollout as reflection sees it: the question, the answer and the verdict, no reference."""
    verdict = rollout.verdict
    return Example(question, rollout.completion.text, verdict.reward, verdict.feedback)


@dataclass(frozen=True, slots=True)
class Tried:
    """One problem under one context: its rollouts, and its solution where that may be shown."""

    question: str
    examples: tuple[Example, ...]
    solution: str | None = None

    @property
    def score(self) -> float:
        """Mean reward in [0, 1]."""
        return fmean(example.reward for example in self.examples)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another context of the pool and its mean anchor score in [0, 1]."""

    text: str
    score: float
    whole: str | None = None
    """All of the context, where `text` is one of its components."""

    @property
    def context(self) -> str:
        """All of the context."""
        return self.text if self.whole is None else self.whole

    @property
    def id(self) -> str:
        """Id of the context."""
        return content_id(self.context)


@dataclass(frozen=True, slots=True)
class Job:
    """One context to improve, and what is known of it.

    `examples` are its rollouts on one minibatch; `rewarded` are rollouts of this phase under any
    context that earned a reward above 0, best first; `pool` holds the other candidates.
    """

    context: str
    examples: tuple[Example, ...]
    rewarded: tuple[Example, ...] = ()
    pool: tuple[Peer, ...] = ()
    seed: int = 0
    component: str = ""
    parts: Parts = ()
    """Where `context` is one component of several: its name, and all of them as they are."""

    def whole(self, text: str) -> str:
        """What the policy would read with `text` for `context`."""
        if not self.parts:
            return text
        return joined(text if name == self.component else old for name, old in self.parts)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new context; `text` None means that no context could be read from the model's output.

    `parents` are the ids of contexts used besides the job's own.
    """

    text: str | None
    operator: str
    parents: tuple[str, ...] = ()


class Reflection(Protocol):
    """Writes new contexts."""

    @property
    def usage(self) -> Mapping[str, float]:
        """Totals so far: prompt_tokens, completion_tokens, usd; empty for offline rules."""
        ...

    def propose(self, jobs: Sequence[Job]) -> list[Proposal]:
        """One proposal per job, in order; the whole batch is one call so that it can run at once.

        Raises:
            ReflectionError: if reflection cannot go on; an unreadable output is no reason.
        """
        ...


@dataclass
class Gate:
    """Refuses proposals before they cost a rollout, and counts why.

    Reasons: `unparsable` (no text), `empty`, `too_long` (over `max_tokens` by `count_tokens`) and
    `repeated` (already in the pool or proposed in the same search step). A text that failed its
    minibatch in an earlier step may come again: with sampled rewards, one failure proves little.
    """

    max_tokens: int
    count_tokens: Callable[[str], int]
    rejected: Counter[str] = field(default_factory=Counter)

    def admit(
        self, proposal: Proposal, known: Container[str], whole: Callable[[str], str] = str
    ) -> str | None:
        """The text to evaluate, outer white space removed, or None after counting why not.

        `whole` makes the context of a text that is one component; `known` are whole contexts.
        """
        text = None if proposal.text is None else proposal.text.strip()
        reason = self._reason(text, known, whole)
        if reason is None:
            return text
        self.rejected[reason] += 1
        return None

    def _reason(
        self, text: str | None, known: Container[str], whole: Callable[[str], str]
    ) -> str | None:
        if text is None:
            return "unparsable"
        if not text:
            return "empty"
        context = whole(text)
        if context in known:
            return "repeated"
        return "too_long" if self.count_tokens(context) > self.max_tokens else None
