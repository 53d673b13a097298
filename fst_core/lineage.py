"""Where contexts come from, read from the fast events of a journal: texts by id, and diffs."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fst_core.journal import Event
from fst_core.records import content_id


def known_texts(config: Mapping[str, Any], events: Iterable[Event]) -> dict[str, str]:
    """Text of every context that the config or a fast event shows, by context id."""
    texts = [config.get("contexts", {}).get("seed", "")]
    for event in events:
        if event["kind"] == "fast":
            texts += [context["text"] for context in contexts_of(event["evolution"])]
    return {content_id(text): text for text in texts}


def contexts_of(evolution: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The contexts of an evolution's slots, then those of its candidates."""
    yield from evolution["population"]["contexts"]
    yield from (candidate["context"] for candidate in evolution.get("candidates", ()))


def line_diff(old: str, new: str) -> list[tuple[str, str]]:
    """(sign, line) pairs that turn `old` into `new`: " " kept, "-" removed, "+" added."""
    before, after = old.splitlines(), new.splitlines()
    pairs: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            pairs += [(" ", line) for line in before[a:b]]
        else:
            pairs += [("-", line) for line in before[a:b]] + [("+", line) for line in after[c:d]]
    return pairs


def mean_score(scores: Iterable[float | None]) -> float | None:
    """Mean over the anchors that were scored, or None where none was."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else None
