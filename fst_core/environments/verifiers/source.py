"""What an environment of verifiers gives, whatever kind it is: rows, and scores of a completion."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from fst_core.environments.errors import DataError
from fst_core.records import Message, Problem


@dataclass(frozen=True, slots=True)
class Item:
    """One row: the chat to answer, the reference (may be empty), and the row in plain JSON."""

    messages: tuple[Message, ...]
    reference: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """The named scores of one completion with their weights, and messages in words."""

    total: float
    """The weighted sum, as the package forms it."""
    full: float
    """The sum of the positive weights: what full marks everywhere add up to."""
    scores: Mapping[str, float]
    weights: Mapping[str, float]
    """Weight of every score; one of 0 is measured and not rewarded."""
    messages: tuple[str, ...] = ()


class Source(Protocol):
    """Rows and scores."""

    def items(self) -> Iterator[Item]:
        """Rows in their order, `most_problems` at most."""
        ...

    def score(self, problem: Problem, completion: str) -> Scored:
        """The scores of one completion."""
        ...


def chat(where: str, prompt: Any, system: str | None = None) -> tuple[Message, ...]:
    """A prompt as messages: a text, or a list of messages that are mappings or objects.

    Raises:
        DataError: if a message is no text (images), or the last is not the user's.
    """
    given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])
    pairs = [(_part(message, "role"), _part(message, "content")) for message in given]
    if system:
        pairs = [("system", system), *((role, text) for role, text in pairs if role != "system")]
    if not all(isinstance(text, str) for _, text in pairs):
        raise DataError(f"{where}: a message is no text; only prompts of text can be used")
    if not pairs or pairs[-1][0] != "user":
        raise DataError(f"{where}: the prompt does not end with a user's message")
    return tuple({"role": role, "content": text} for role, text in pairs)


def _part(message: Any, key: str) -> Any:
    return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as plain JSON types, without what is absent."""
    kept = {key: value for key, value in row.items() if value is not None}
    copy: dict[str, Any] = json.loads(json.dumps(kept, default=str))
    return copy


def as_text(answer: Any) -> str:
    """A reference answer as text; empty where there is none."""
    if answer is None:
        return ""
    return answer if isinstance(answer, str) else json.dumps(answer, default=str)


def as_messages(feedback: Any) -> tuple[str, ...]:
    """What scoring functions left as feedback: a text or a list of texts."""
    given = [feedback] if isinstance(feedback, str) else feedback
    if not isinstance(given, list | tuple):
        return ()
    return tuple(text.strip() for text in given if isinstance(text, str) and text.strip())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
    return loop


def wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end on the one event loop; its errors are raised here."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()
