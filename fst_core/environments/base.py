"""The seam between problems and the lab: an Environment makes problems and judges answers."""

from typing import Protocol

from fst_core.records import Problem, Split, Verdict


class Judge(Protocol):
    """What says how good an answer is. Both methods are pure functions of their arguments."""

    name: str

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """Reward in [0, 1] and feedback: what was wrong and what was required."""
        ...

    def solution(self, problem: Problem) -> str | None:
        """A completion that the judge rewards in full; None where none can be written.

        Shown to reflection for train problems only, and only where the config says so.
        """
        ...


class Environment(Judge, Protocol):
    """A seeded, indexable stream of problems per split, and their judge.

    The splits hold different problems by construction. `problem` is a pure function of
    (environment settings, split, index).
    """

    def problem(self, split: Split, index: int) -> Problem:
        """The index-th problem of a split.

        Raises:
            IndexError: if the split is finite and the index is past its end.
        """
        ...

    def size(self, split: Split) -> int | None:
        """Number of problems in a split; None for an endless stream."""
        ...
