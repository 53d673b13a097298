"""Any generator of reasoning-gym as an Environment: its own scorer, a tag to obey, feedback."""

from fst_core.config.environment import ReasoningGymConfig
from fst_core.environments.feedback import Case, explain, requirement
from fst_core.environments.generators import Entry, Generator, family_of
from fst_core.environments.reading import RIGHT_WITHOUT_TAGS, read, read_anywhere
from fst_core.environments.splits import SplitStream
from fst_core.records import Problem, Split, Verdict, content_id


class ReasoningGymEnvironment:
    """Problems of one reasoning-gym generator, split by question, scored by the package.

    With `answer = "tag"` a completion without the tag earns 0 whatever it says, and only the
    feedback names the tag; subscores are `format` (0 or 1), `answer` (the score of the answer
    alone) and `readable` (0 where the scorer could not parse the answer).
    """

    def __init__(self, config: ReasoningGymConfig) -> None:
        """Create the generator.

        Raises:
            ConfigError: for an unknown generator or options it refuses.
        """
        self.config = config
        self.name = config.name or config.dataset
        self._generator = Generator(config.dataset, config.options, config.seed)
        self._stream = SplitStream(
            self.name, self._candidate, self._question, held_out=config.held_out_problems
        )

    def problem(self, split: Split, index: int) -> Problem:
        """The index-th problem of a split.

        Raises:
            IndexError: if the index is negative or past the end of a held-out split.
            DataError: if the generator's problems would differ from process to process.
        """
        return self._stream.problem(split, index)

    def size(self, split: Split) -> int | None:
        """Number of problems in a held-out split; None for the endless train stream."""
        return self._stream.size(split)

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """The package's score of the answer, and what was wrong with it."""
        reading = read(completion, self.config.answer, self.config.tag, problem.reference)
        answer = reading.answer
        if answer is None:
            answer = read_anywhere(completion, problem.reference)
        score = self._generator.score(_entry(problem), answer) if answer else 0.0
        points = self._points(score)
        subscores = {
            "format": float(reading.answer is not None),
            "answer": points,
            "readable": float(score is not None),
        }
        case = Case(
            family=family_of({"metadata": problem.metadata}, self.config.dataset),
            question=self._question(problem),
            reference=problem.reference,
            metadata=problem.metadata,
            answer=answer,
            completion=completion,
            reward=points,
        )
        if reading.answer is not None:
            return Verdict(points, explain(case), subscores)
        right = (RIGHT_WITHOUT_TAGS,) if points == 1 else ()
        feedback = (*reading.feedback[:1], *right, *reading.feedback[1:], *requirement(case))
        return Verdict(0.0, feedback, subscores)

    def solution(self, problem: Problem) -> str | None:
        """The reference in the form the judge wants; None where the package has no reference."""
        if not problem.reference:
            return None
        tag = self.config.tag
        tagged = f"<{tag}>{problem.reference}</{tag}>"
        return tagged if self.config.answer == "tag" else problem.reference

    def _points(self, score: float | None) -> float:
        if score is None:
            return 0.0
        return score if self.config.partial_credit else float(score == 1)

    def _question(self, problem: Problem) -> str:
        note = self.config.question_note
        return problem.text.removesuffix(f"\n\n{note}") if note else problem.text

    def _candidate(self, index: int) -> Problem | None:
        entry = self._generator.entry(index)
        if entry is None:
            return None
        question = entry["question"]
        note = self.config.question_note
        text = f"{question}\n\n{note}" if note else question
        return Problem(
            content_id(self.name, question),
            self.name,
            ({"role": "user", "content": text},),
            "" if entry["answer"] is None else str(entry["answer"]),
            entry["metadata"],
        )


def _entry(problem: Problem) -> Entry:
    """The package's entry; an empty reference stands for a task that only its scorer can judge."""
    return {
        "question": problem.text,
        "answer": problem.reference or None,
        "metadata": problem.metadata,
    }
