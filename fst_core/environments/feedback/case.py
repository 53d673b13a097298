"""What feedback is written about."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One judged answer: `answer` is what was read out of `completion`, `reward` its score."""

    family: str
    question: str
    reference: str
    metadata: Mapping[str, Any]
    answer: str
    completion: str
    reward: float


Diagnose = Callable[[Case], list[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind or family of answers is explained."""

    requirement: str
    diagnose: Diagnose
