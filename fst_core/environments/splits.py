"""Disjoint splits by construction: the split of a problem is a hash of its question.

The seed of a stream plays no part, so the train problems of one seed are never the test problems of
another, and an option that leaves a question as it is leaves its split as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fst_core.environments.errors import DataError, PastTheEnd
from fst_core.records import SPLITS, Problem, Split, seed_of

PATIENCE = 2000
"""Candidates without a new problem after which a held-out split counts as exhausted."""


def split_of(question: str, validation: float = 0.1, test: float = 0.1) -> Split:
    """The split a question belongs to, by its words alone (spacing does not count).

    Args:
        question: the text asked.
        validation: share of all questions in the validation split, in (0, 1).
        test: share of all questions in the test split, in (0, 1).
    """
    place = seed_of("split", " ".join(question.split())) / 2**63
    if place < test:
        return "test"
    return "validation" if place < test + validation else "train"


@dataclass
class SplitStream:
    """A generator of candidates, seen as one indexable stream per split.

    `generate(i)` is the i-th candidate, or None where it is unusable. Every candidate is generated
    once and goes to the split of its question, so the order of access changes nothing. Train is
    endless and may repeat itself; validation and test hold each question once, `held_out` at most.
    """

    name: str
    generate: Callable[[int], Problem | None]
    question: Callable[[Problem], str]
    held_out: int = 256
    _problems: dict[Split, list[Problem]] = field(init=False, repr=False)
    _ids: dict[Split, set[str]] = field(init=False, repr=False)
    _last_new: dict[Split, int] = field(init=False, repr=False)
    _next: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._problems = {split: [] for split in SPLITS}
        self._ids = {split: set() for split in SPLITS}
        self._last_new = dict.fromkeys(SPLITS, 0)

    def problem(self, split: Split, index: int) -> Problem:
        """The index-th problem of a split.

        Raises:
            IndexError: if the index is negative or past the end of a held-out split.
            DataError: if the generator yields no train problem for a long while.
        """
        if index < 0:
            raise IndexError(f"negative problem index {index}")
        while len(self._problems[split]) <= index and not self._exhausted(split):
            self._scan()
        if index >= len(self._problems[split]):
            raise PastTheEnd(self.name, split, index, len(self._problems[split]))
        return self._problems[split][index]

    def size(self, split: Split) -> int | None:
        """Number of problems in a split; None for the endless train stream."""
        if split == "train":
            return None
        while not self._exhausted(split):
            self._scan()
        return len(self._problems[split])

    def _exhausted(self, split: Split) -> bool:
        waited = self._next - self._last_new[split]
        if split != "train":
            return waited >= PATIENCE or len(self._problems[split]) >= self.held_out
        if waited >= 10 * PATIENCE:
            raise DataError(
                f"environment {self.name!r} made no train problem out of {waited} candidates"
            )
        return False

    def _scan(self) -> None:
        index, self._next = self._next, self._next + 1
        problem = self.generate(index)
        if problem is None:
            return
        split = split_of(self.question(problem))
        if split != "train":
            late = index - self._last_new[split] >= PATIENCE
            full = len(self._problems[split]) >= self.held_out
            if late or full or problem.id in self._ids[split]:
                return
            self._ids[split].add(problem.id)
        self._problems[split].append(problem)
        self._last_new[split] = self._next
