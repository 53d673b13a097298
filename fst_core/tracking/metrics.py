"""Events as rows of MLflow metrics, and the names and texts that MLflow accepts."""

import re
from collections.abc import Sequence
from typing import Any

from mlflow.entities import Metric

from fst_core.journal import Event
from fst_core.tracked import event_values, is_headline

MAX_TAG_CHARACTERS = 8000
SAMPLES_AXIS = ("evaluation/", "fast/anchor", "slow/reward")
"""Metrics also written over training rollouts, under "samples/..."; the rest only over steps."""


def event_metrics(event: Event, events: Sequence[Event] = ()) -> list[Metric]:
    """Metrics of one event over slow steps, and the main ones over training rollouts as well.

    Args:
        event: An event of a journal.
        events: That journal's effective events: from them follows whether the event's context is
            the one its arm is judged by, whose metrics are written without ".CONTEXT" too.
    """
    named = event_values(event, headline=is_headline(event, events))
    values = {metric_key(name): value for name, value in named.items() if _is_number(value)}
    time, step = milliseconds(event), int(event.get("step", 0))
    ledger = event.get("ledger") or {}
    samples = int(ledger.get("slow_rollouts", 0) + ledger.get("fast_rollouts", 0))
    metrics = [Metric(name, float(value), time, step) for name, value in values.items()]
    metrics += [
        Metric(f"samples/{name}", float(value), time, samples)
        for name, value in values.items()
        if ledger and name.startswith(SAMPLES_AXIS)
    ]
    return metrics


def metric_key(name: str) -> str:
    """A name MLflow accepts."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


def cut(text: str, limit: int, whole: str = "config.json") -> str:
    """The text, or its first characters and a mark that names the file with the whole of it."""
    mark = f"… [cut; whole in {whole}]"
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


def milliseconds(event: Event) -> int:
    """Unix milliseconds of an event."""
    return int(event["time"] * 1000)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
