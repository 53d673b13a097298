"""The nouns of the lab, frozen: what flows between environments, policy, fast and slow loops.

Nothing here imports torch. Every record turns into plain JSON with `to_json`.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Message = Mapping[str, str]
Parts = tuple[tuple[str, str], ...]
"""(name, text) of the components of a context, in order."""


class StopReason(StrEnum):
    """Why a rollout ended: the model's own stop token, or the token limit."""

    STOP = "stop"
    LENGTH = "length"


def content_id(*parts: str) -> str:
    """First 12 hex digits of the SHA-256 over length-prefixed parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:12]


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed from (run seed, purpose, step, ...): same parts, same seed, on any machine."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One question: chat messages, and what the judge needs.

    A system message of its own, first where there is one, is joined to the context's.
    """

    id: str
    environment: str
    messages: tuple[Message, ...]
    reference: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The last user message."""
        return self.messages[-1]["content"]


def well_formed(text: str) -> str:
    """A text with U+FFFD for halves of characters, which JSON can write and nothing can encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of one completion: reward in [0, 1] and sentences saying what was wrong.

    Feedback states what was wrong and what was required; it never holds the reference answer of a
    validation or test problem. Subscores are in [0, 1], higher is better.
    """

    reward: float
    feedback: tuple[str, ...] = ()
    subscores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """One fast weight: a textual context (system prompt); its id is the hash of its text."""

    text: str
    parents: tuple[str, ...] = ()
    cycle: int = 0
    operator: str = "seed"
    parts: Parts = ()
    """The components it is made of, where there are several; `text` is what `joined` makes of their
    texts."""

    @property
    def id(self) -> str:
        return content_id(self.text)


def joined(texts: Iterable[str]) -> str:
    """What the policy reads of several components: one below the other, empty ones left out."""
    return "\n".join(filter(None, texts))


@dataclass(frozen=True, slots=True)
class Population:
    """K context slots, best first, and their scores on the anchor problems they were chosen on.

    Slots may repeat a context when fewer than K distinct ones exist. `scores[k][n]` is the reward
    of slot k on anchor n in [0, 1]; empty before the first fast phase.
    """

    contexts: tuple[Context, ...]
    scores: tuple[tuple[float, ...], ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What its fast part needs to know again in the next cycle (ratings, counters): plain JSON."""

    @property
    def best(self) -> Context:
        return self.contexts[0]


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns for one prompt: sampled ids (stop token included) and their log-probs.

    `logprobs[t]` is the natural log of the sampling probability of `token_ids[t]` at the sampling
    temperature; an engine may give none where nobody asked for them. `text` is the decoded ids
    without special tokens.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    stop_reason: StopReason
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """A judged completion: which problem under which context, by which version of the weights."""

    problem_id: str
    context_id: str
    completion: Completion
    verdict: Verdict
    policy_version: int
    question: str = ""
    """The problem's text, for people who read samples."""


def to_json(record: Any) -> dict[str, Any]:
    """A record as plain JSON types; a context of one text has no `parts`."""
    return asdict(record, dict_factory=_fields)


def _fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if "parts" in fields:
        fields["parts"] = dict(fields["parts"])
    return {name: value for name, value in fields.items() if name != "parts" or value}


def context_from_json(data: Mapping[str, Any]) -> Context:
    """Inverse of `to_json` for a Context."""
    parts = tuple(data.get("parts", {}).items())
    return Context(data["text"], tuple(data["parents"]), data["cycle"], data["operator"], parts)


def population_from_json(data: Mapping[str, Any]) -> Population:
    """Inverse of `to_json` for a Population."""
    return Population(
        tuple(context_from_json(c) for c in data["contexts"]),
        tuple(tuple(row) for row in data["scores"]),
        data.get("memory", {}),
    )


def problem_from_json(data: Mapping[str, Any]) -> Problem:
    """Inverse of `to_json` for a Problem."""
    return Problem(
        data["id"],
        data["environment"],
        tuple(data["messages"]),
        data["reference"],
        data["metadata"],
    )


def completion_from_json(data: Mapping[str, Any]) -> Completion:
    """Inverse of `to_json` for a Completion."""
    return Completion(
        tuple(data["token_ids"]),
        tuple(data["logprobs"]),
        data["text"],
        StopReason(data["stop_reason"]),
        data["prompt_tokens"],
    )


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    """Inverse of `to_json` for a Rollout."""
    verdict = data["verdict"]
    return Rollout(
        data["problem_id"],
        data["context_id"],
        completion_from_json(data["completion"]),
        Verdict(verdict["reward"], tuple(verdict["feedback"]), verdict["subscores"]),
        data["policy_version"],
        data["question"],
    )


def seeded(text: str, size: int, parts: Parts = ()) -> Population:
    """The population a run starts from: `size` slots of the one seed context."""
    return Population((Context(text, parts=parts),) * size)


def slots_for_group(size: int, population: int) -> Sequence[int]:
    """Context slot of each of a group's G rollouts: contiguous blocks of G / K.

    Raises:
        ValueError: if K does not divide G.
    """
    if population < 1 or size % population:
        raise ValueError(
            f"a group of {size} rollouts cannot be split evenly over {population} contexts"
        )
    return [i * population // size for i in range(size)]
