"""A little language of answer formats: plain questions whose required format only the judge knows.

Two dozen directives ("Put dashes between the characters.") change how a bare answer is written. A
question never names the format, so a policy without a helpful context earns about zero, and the
feedback says, one sentence for each broken directive, what was required.

The sentences here are the vocabulary of the tiny policy (`fst_core.organism`): it was trained on
the three `lines` of each directive and on FILLERS, and never on the `held_out` sentences. Feedback
is phrased with `lines`, so that a context made of feedback is understood by the tiny policy; a
larger model reads the same sentences as plain English.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, count, islice
from typing import Literal, get_args

from fst_core.environments.errors import PastTheEnd
from fst_core.records import SPLITS, Problem, Split, Verdict, content_id, seed_of

Group = Literal["word", "number", "separator", "quote", "prefix", "suffix", "tag"]
GROUPS: tuple[Group, ...] = get_args(Group)
TRANSFORMS: tuple[Group, ...] = ("word", "number")
Task = Literal["echo", "first", "sum", "mixed"]

VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnpqrstvwxyz"

EVALUATION_PROBLEMS = 256
"""Most problems in a validation or test split; the small task `sum` has fewer."""
EVALUATION_CANDIDATES = 6000
"""Generated problems searched for the validation and test splits."""

SEED_LINE = "You are a helpful assistant."
WRONG_ANSWER = "The answer itself is wrong, read the question again."
EXTRA_TEXT = "Write only the answer, nothing before or after it."
FILLERS: tuple[str, ...] = (
    SEED_LINE,
    WRONG_ANSWER,
    EXTRA_TEXT,
    "Follow these rules:",
    "Follow every rule.",
    "Read the question carefully.",
    "Be brief.",
    "Answer the question.",
)
"""Lines that ask for nothing: the tiny policy has learned to pass over them."""

QUESTIONS: dict[str, tuple[str, ...]] = {
    "echo": ("Repeat the word {0}.", "Say {0}."),
    "first": ("What is the first letter of {0}?", "Give the first letter of {0}."),
    "sum": ("What is {0} plus {1}?", "Add {0} and {1}."),
}


@dataclass(frozen=True, slots=True)
class Directive:
    """One requirement on the written form of an answer.

    `lines` are the sentences that ask for it in training and feedback; `held_out` is one that no
    training saw. `marks` are the signs it writes: (left, right) around the answer for an affix,
    (sign,) between the characters for a separator, none for a transform.
    """

    name: str
    group: Group
    lines: tuple[str, str, str]
    held_out: str
    apply: Callable[[str], str]
    marks: tuple[str, ...] = ()

    def applies_to(self, answer: str) -> bool:
        """Word transforms change words, number transforms numbers, the rest changes both."""
        if self.group == "word":
            return not answer.isdigit()
        return self.group != "number" or answer.isdigit()


AFFIX_LINES: dict[str, tuple[str, ...]] = {
    "prefix": (
        "Start with {0}.",
        "Begin with {0}.",
        "Write {0} before the answer.",
        "Put {0} before the answer.",
    ),
    "suffix": (
        "End with {0}.",
        "Finish with {0}.",
        "Write {0} after the answer.",
        "Put {0} after the answer.",
    ),
    "quote": (
        "Put the answer inside {0}.",
        "Wrap the answer in {0}.",
        "Use {0} around the answer.",
        "Place {0} around the answer.",
    ),
    "separator": (
        "Put {0} between the characters.",
        "Separate the characters with {0}.",
        "Place {0} between the characters.",
        "Use {0} between the characters.",
    ),
}


def _phrased(pattern: str, words: str) -> tuple[tuple[str, str, str], str]:
    first, second, third, held_out = (line.format(words) for line in AFFIX_LINES[pattern])
    return (first, second, third), held_out


def _affix(name: str, group: Group, words: str, left: str, right: str) -> Directive:
    lines, held_out = _phrased("quote" if group == "tag" else group, words)
    return Directive(name, group, lines, held_out, lambda s: left + s + right, (left, right))


def _separator(name: str, words: str, sign: str) -> Directive:
    return Directive(name, "separator", *_phrased("separator", words), sign.join, (sign,))


def _transform(name: str, group: Group, apply: Callable[[str], str], *lines: str) -> Directive:
    first, second, third, held_out = lines
    return Directive(name, group, (first, second, third), held_out, apply)


DIRECTIVES: tuple[Directive, ...] = (
    _transform(
        "reverse",
        "word",
        lambda s: s[::-1],
        "Reverse the word.",
        "Write the word backwards.",
        "Reverse the answer.",
        "Write the answer backwards.",
    ),
    _transform(
        "drop-first",
        "word",
        lambda s: s[1:] or s,
        "Drop the first letter.",
        "Leave out the first letter.",
        "Skip the first letter.",
        "Remove the first letter.",
    ),
    _transform(
        "drop-last",
        "word",
        lambda s: s[:-1] or s,
        "Drop the last letter.",
        "Leave out the last letter.",
        "Remove the last letter.",
        "Skip the last letter.",
    ),
    _transform(
        "twice",
        "word",
        lambda s: s + s,
        "Write the word twice.",
        "Repeat the answer twice.",
        "Give the word twice.",
        "Write the answer twice.",
    ),
    _transform(
        "upper",
        "word",
        str.upper,
        "Use capital letters.",
        "Write the word in capitals.",
        "Give the answer in capitals.",
        "Write the answer in capital letters.",
    ),
    _transform(
        "plus-one",
        "number",
        lambda s: str(int(s) + 1),
        "Add one to the number.",
        "Give one more than the number.",
        "Add one to the answer.",
        "Give one more than the answer.",
    ),
    _transform(
        "mod-ten",
        "number",
        lambda s: str(int(s) % 10),
        "Keep only the last digit.",
        "Write only the last digit.",
        "Keep the last digit of the number.",
        "Write the last digit of the number.",
    ),
    _transform(
        "pad",
        "number",
        lambda s: s.zfill(2),
        "Write the number with two digits.",
        "Use two digits.",
        "Give the number with two digits.",
        "Write two digits.",
    ),
    _separator("dashes", "dashes", "-"),
    _separator("spaces", "spaces", " "),
    _separator("dots", "dots", "."),
    _affix("brackets", "quote", "brackets", "[", "]"),
    _affix("quotes", "quote", "quotes", '"', '"'),
    _affix("parentheses", "quote", "parentheses", "(", ")"),
    _affix("stars", "quote", "stars", "*", "*"),
    _affix("answer-word", "prefix", "the word Answer", "Answer: ", ""),
    _affix("arrow", "prefix", "an arrow", "> ", ""),
    _affix("hash", "prefix", "the hash sign", "#", ""),
    _affix("period", "suffix", "the period", "", "."),
    _affix("exclamation", "suffix", "an exclamation mark", "", "!"),
    _affix("done", "suffix", "the word done", "", " done"),
    _affix("answer-tag", "tag", "answer tags", "<answer>", "</answer>"),
    _affix("boxed", "tag", "the box", "\\boxed{", "}"),
    _affix("bars", "tag", "bars", "|", "|"),
)
"""Every directive, in the order in which they are applied: transforms first, tags outermost."""
BY_NAME: dict[str, Directive] = {d.name: d for d in DIRECTIVES}
WORDED_MARKS: tuple[str, ...] = tuple(
    mark.strip() for d in DIRECTIVES for mark in d.marks if any(map(str.isalpha, mark))
)
"""The marks that hold letters, such as <answer>; all other marks are signs alone."""

RESERVED_WORDS: frozenset[str] = frozenset(
    re.findall(
        "[a-z]+",
        " ".join(
            [line for d in DIRECTIVES for line in (*d.lines, d.held_out, *d.marks)]
            + [line for lines in QUESTIONS.values() for line in lines]
            + list(FILLERS)
        ).lower(),
    )
)
"""Words of the language itself: never asked about, so that feedback cannot hold an answer."""


def render(answer: str, directives: Iterable[str]) -> str:
    """Write a bare answer in the form the named directives require.

    Args:
        answer: a bare word or number.
        directives: names, in any order; those that do not apply to the answer change nothing.
    Raises:
        KeyError: for an unknown name.
    """
    wanted = {BY_NAME[name] for name in directives}
    for directive in DIRECTIVES:
        if directive in wanted and directive.applies_to(answer):
            answer = directive.apply(answer)
    return answer


def bare(completion: str) -> str:
    """Letters and digits of a completion once every affix is taken out: the lenient answer."""
    for mark in WORDED_MARKS:
        completion = completion.replace(mark, "")
    return "".join(filter(str.isalnum, completion))


def written_marks(completion: str) -> set[str]:
    """Names of the affixes and separators that a completion carries, peeled from the outside in.

    One character alone counts as separated by every separator.
    """
    text, found = completion.strip(), set()
    for directive in reversed(DIRECTIVES):
        if directive.group == "separator":
            parts = text.split(directive.marks[0])
            if len(text) == 1 or (len(parts) > 1 and all(len(part) == 1 for part in parts)):
                found.add(directive.name)
        elif directive.marks:
            left, right = directive.marks
            inner = text.removeprefix(left).removesuffix(right)
            if inner and left + inner + right == text:
                found.add(directive.name)
                text = inner
    return found


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from combinations(names, size)


def met_directives(answer: str, required: Sequence[str], completion: str) -> set[str]:
    """Names of the required directives that a completion meets, each judged by itself.

    A transform is met if the bare answer is right under some of the required transforms, that one
    among them; an affix or separator is met by its marks, whatever stands inside.
    """
    given = bare(completion)
    changes = [n for n in required if BY_NAME[n].group in TRANSFORMS]
    met = written_marks(completion).intersection(required)
    for chosen in _subsets(changes):
        if given == render(answer, chosen):
            met.update(chosen)
    return met | {n for n in required if not BY_NAME[n].applies_to(answer)}


def answer_is_right(answer: str, required: Sequence[str], completion: str) -> bool:
    """Whether the bare answer is right, whatever its case and whichever transforms are missing."""
    changes = [n for n in required if BY_NAME[n].group in TRANSFORMS]
    given = bare(completion).lower()
    return any(given == render(answer, chosen).lower() for chosen in _subsets(changes))


def judge_format(problem: Problem, required: Sequence[str], completion: str) -> Verdict:
    """Judge a completion against a bare answer (metadata `answer`) and the required directives.

    The reward is 1.0 for exactly the required string (outer white space aside), else 0.0. Feedback
    holds one sentence for each broken directive, in words the tiny policy was trained on; which of
    its three phrasings depends on the problem. Subscores: `format`, the share of required
    directives met; `answer`, 1.0 if the bare answer is right.
    """
    answer = problem.metadata["answer"]
    right = answer_is_right(answer, required, completion)
    met = met_directives(answer, required, completion)
    exact = completion.strip() == render(answer, required)
    sentences = [_sentence(name, problem.id) for name in required if name not in met]
    if not right:
        sentences.append(WRONG_ANSWER)
    if not exact and not sentences:
        sentences.append(EXTRA_TEXT)
    share = len(met) / len(required) if required else 1.0
    return Verdict(float(exact), tuple(sentences), {"format": share, "answer": float(right)})


def _sentence(directive: str, problem_id: str) -> str:
    lines = BY_NAME[directive].lines
    return lines[seed_of(directive, problem_id) % len(lines)]


def random_word(rng: random.Random) -> str:
    """Three or four letters, consonants and vowels in turn, that are no word of the language."""
    while True:
        sounds = (CONSONANTS, VOWELS, CONSONANTS, VOWELS)[: rng.choice((3, 4))]
        word = "".join(map(rng.choice, sounds))
        if not RESERVED_WORDS.intersection((word, word[::-1], word[1:], word[:-1])):
            return word


@dataclass(frozen=True, slots=True)
class Question:
    """A plain question and its bare answer. Rephrasings of one question share their `key`."""

    text: str
    answer: str
    key: str

    @property
    def split(self) -> Split:
        """Train, validation or test (80 / 10 / 10), by a hash of the key alone."""
        bucket = seed_of("directives split", self.key) % 10
        return SPLITS[max(0, bucket - 7)]


def random_question(rng: random.Random, task: Task) -> Question:
    """Draw one question of a task; `mixed` draws the task too."""
    kind = rng.choice(tuple(QUESTIONS)) if task == "mixed" else task
    pattern = rng.choice(QUESTIONS[kind])
    if kind == "sum":
        a, b = rng.randrange(10), rng.randrange(10)
        return Question(pattern.format(a, b), str(a + b), f"sum {min(a, b)} {max(a, b)}")
    word = random_word(rng)
    return Question(pattern.format(word), word if kind == "echo" else word[0], word)


def _questions(task: Task, seed: int) -> Iterator[Question]:
    rng = random.Random(seed_of("directives", task, seed))
    return (random_question(rng, task) for _ in count())


@cache
def _evaluation_questions(task: Task, seed: int, split: Split) -> tuple[Question, ...]:
    candidates = islice(_questions(task, seed), EVALUATION_CANDIDATES)
    distinct = dict.fromkeys(q for q in candidates if q.split == split)
    return tuple(islice(distinct, EVALUATION_PROBLEMS))


def _as_problem(
    question: Question, environment: str, required: Sequence[str], told: bool = False
) -> Problem:
    lines = [BY_NAME[name].held_out for name in required]
    system = ({"role": "system", "content": "\n".join(lines)},) if told else ()
    return Problem(
        content_id(environment, question.text),
        environment,
        (*system, {"role": "user", "content": question.text}),
        render(question.answer, required),
        {"answer": question.answer, "required": list(required)},
    )


@dataclass
class DirectivesEnvironment:
    """Plain questions (`task`) whose answers must be written as `required` (directive names) says.

    With `told`, each problem's own system message asks for the directives, by their held-out lines.
    The train split is endless, validation and test are finite and without repeats. A problem's
    reference is the whole required output, so `judge(problem, problem.reference)` is 1.0.

    Raises:
        ValueError: for an unknown task or directive, or for two separators, which would mix.
    """

    name: str
    task: Task
    required: tuple[str, ...]
    seed: int = 0
    told: bool = False
    _train: list[Question] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.required) - BY_NAME.keys())
        if unknown:
            raise ValueError(f"unknown directives {unknown}; known: {sorted(BY_NAME)}")
        if sum(BY_NAME[name].group == "separator" for name in self.required) > 1:
            raise ValueError(f"at most one separator can be required, not {self.required}")
        if self.task not in get_args(Task):
            raise ValueError(f"unknown task {self.task!r}; known: {get_args(Task)}")
        self.required = tuple(self.required)
        self._stream = (q for q in _questions(self.task, self.seed) if q.split == "train")

    def problem(self, split: Split, index: int) -> Problem:
        """The index-th problem of a split.

        Raises:
            PastTheEnd: if the index is past the end of a finite split.
            IndexError: if it is negative.
        """
        if index < 0:
            raise IndexError(f"negative problem index {index}")
        if split != "train":
            questions: Sequence[Question] = _evaluation_questions(self.task, self.seed, split)
        else:
            self._train.extend(islice(self._stream, max(0, index + 1 - len(self._train))))
            questions = self._train
        if index >= len(questions):
            raise PastTheEnd(self.name, split, index, len(questions))
        return _as_problem(questions[index], self.name, self.required, self.told)

    def size(self, split: Split) -> int | None:
        """Number of problems in a split; None for the endless train stream."""
        if split == "train":
            return None
        return len(_evaluation_questions(self.task, self.seed, split))

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """Reward 1.0 for exactly the required string; one sentence for each broken directive."""
        return judge_format(problem, self.required, completion)

    def solution(self, problem: Problem) -> str:
        """The required output."""
        return problem.reference
