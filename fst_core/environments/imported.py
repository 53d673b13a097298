"""What imported data sets have in common: rows to problems by split, each question once."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from fst_core.config.imported import (
    ChoicesConfig,
    HoverConfig,
    ImportedBase,
    PolarisConfig,
    VerifiersConfig,
)
from fst_core.environments.errors import DataError, PastTheEnd
from fst_core.environments.feedback import CORRECT
from fst_core.environments.published import Placed, Row, rows_of
from fst_core.environments.reading import (
    EMPTY,
    RIGHT_WITHOUT_TAGS,
    Reading,
    read_tag,
    tag_requirement,
)
from fst_core.environments.splits import split_of
from fst_core.records import SPLITS, Problem, Split, Verdict

logger = logging.getLogger(__name__)
Config = TypeVar("Config", bound=HoverConfig | PolarisConfig | ChoicesConfig)


def by_split(
    config: ImportedBase | VerifiersConfig,
    problems: Iterable[Problem],
    source: str,
    family: Callable[[Problem], str] = lambda problem: problem.text,
) -> dict[Split, list[Problem]]:
    """Problems by split, in the order of the source; a question that stands twice counts once.

    Args:
        source: what they come from, for messages.
        family: the text whose hash decides the split; problems of one family share it.

    Raises:
        DataError: if there are no problems, or a split is empty.
    """
    made: dict[Split, list[Problem]] = {split: [] for split in SPLITS}
    seen = set[str]()
    repeated = 0
    for problem in problems:
        key = " ".join(problem.text.split())
        if key in seen:
            repeated += 1
            continue
        seen.add(key)
        made[split_of(family(problem), config.validation, config.test)].append(problem)
    if repeated:
        logger.warning("%s: %d questions stand there already and are left out", source, repeated)
    if not seen:
        raise DataError(
            f"{source}: holds no problems: it has no rows, or the config keeps none of them; name "
            "data that has some, or keep more of the rows"
        )
    empty = [split for split in SPLITS if not made[split]]
    if empty:
        raise DataError(
            f"{source}: split {empty[0]} has no problems out of {len(seen)} kept; keep more of the "
            "rows, or raise environment.validation and environment.test"
        )
    return made


class Held:
    """Problems by split that are all in memory."""

    def __init__(self, name: str, problems: Mapping[Split, Sequence[Problem]]):
        self.name = name
        self._problems = problems

    def problem(self, split: Split, index: int) -> Problem:
        """The index-th problem of a split, in the order of the source.

        Raises:
            IndexError: if the index is negative or past the end of the split.
        """
        problems = self._problems.get(split, ())
        if not 0 <= index < len(problems):
            raise PastTheEnd(self.name, split, index, len(problems))
        return problems[index]

    def size(self, split: Split) -> int:
        """Number of problems in a split."""
        return len(self._problems.get(split, ()))


class Published(Held, Generic[Config]):
    """The problems of a published data set; a layout says what its rows stand for."""

    def __init__(self, config: Config, load: bool = True) -> None:
        """Read all problems; `load=False` makes an environment that only judges.

        Raises:
            DataError: naming file and row, for a row outside the layout or an empty split.
        """
        self.config = config
        source = config.path or config.hub or ""
        problems = by_split(config, self._read(), source, self._family) if load else {}
        super().__init__(config.name, problems)

    def solution(self, problem: Problem) -> str:
        """The reference in the form the judge wants."""
        return as_answer(self.config, problem.reference)

    def _read(self) -> Iterator[Problem]:
        return filter(None, (self._problem(where, row) for where, row in self._rows()))

    def _rows(self) -> Iterator[Placed]:
        return rows_of(self.config)

    def _problem(self, where: str, row: Row) -> Problem | None:
        """The problem of a row; None for a row that the config does not keep."""
        raise NotImplementedError

    def _family(self, problem: Problem) -> str:
        """The text whose hash decides the split (see `by_split`)."""
        return problem.text


def asked(config: ImportedBase, *parts: str) -> str:
    """A question from its parts, with the tag that is wanted where the config tells of it."""
    told = config.answer == "tag" and config.told
    return "\n\n".join([*parts, *([tag_requirement(config.tag)] if told else [])])


def tagged(config: ImportedBase, completion: str) -> Reading:
    """What the answer tags hold, or the whole completion where no tag is wanted."""
    if config.answer == "tag":
        return read_tag(completion, config.tag)
    return Reading(completion) if completion.strip() else Reading(None, (EMPTY,))


def verdict(reading: Reading, right: bool, wrong: Sequence[str], wanted: str) -> Verdict:
    """1 for a right answer that was found where it belongs, else 0 and what was wrong.

    Args:
        right: whether the answer is right, wherever it was found.
        wrong: sentences on a wrong answer; none of them may hold the reference.
        wanted: the sentence that says what an answer looks like, the same for every problem.
    """
    formatted = reading.answer is not None
    scores = {"format": float(formatted), "answer": float(right)}
    if formatted:
        feedback = (CORRECT,) if right else (*wrong, wanted)
        return Verdict(float(right), feedback, scores)
    note = (RIGHT_WITHOUT_TAGS,) if right else ()
    return Verdict(0.0, (*reading.feedback[:1], *note, *reading.feedback[1:], wanted), scores)


def as_answer(config: ImportedBase, reference: str) -> str:
    """A reference in the form the judge wants."""
    return f"<{config.tag}>{reference}</{config.tag}>" if config.answer == "tag" else reference
