"""A policy and a judge in one: obeys the lines it finds in its context, now and then.

Its language is made of random words, so that nothing can be known of it beforehand. A rollout is a
pure function of (context, problem, seed).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from fst_core.records import (
    Completion,
    Context,
    Problem,
    Rollout,
    StopReason,
    Verdict,
    seed_of,
)

WRONG = "That is not the right answer."


def random_words(seed: int, size: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("bdfgklmnprstvz", k=6)) for _ in range(size)]


@dataclass
class Simulated:
    """Marks `words` are required around an answer; `rollouts`, `calls` and `seeds` count."""

    words: tuple[str, ...]
    obeys: float = 0.6
    right: float = 0.8
    rollouts: int = 0
    calls: int = 0
    seeds: list[int] = field(default_factory=list)

    def line(self, word: str) -> str:
        return f"Write {word} at the end."

    def problem(self, index: int) -> Problem:
        answer = f"a{index}"
        question = ({"role": "user", "content": f"Question number {index}?"},)
        return Problem(f"p{index}", "simulated", question, self.written(answer, self.words))

    def problems(self, size: int, start: int = 0) -> list[Problem]:
        return [self.problem(index) for index in range(start, start + size)]

    def written(self, answer: str, words: Sequence[str]) -> str:
        return " ".join([answer, *words])

    def __call__(
        self, pairs: Sequence[tuple[Context, Problem]], seeds: Sequence[int]
    ) -> list[Rollout]:
        assert len(pairs) == len(seeds)
        self.rollouts += len(pairs)
        self.calls += 1
        self.seeds.extend(seeds)
        return [
            self.rollout(context, problem, seed)
            for (context, problem), seed in zip(pairs, seeds, strict=True)
        ]

    def rollout(self, context: Context, problem: Problem, seed: int) -> Rollout:
        rng = random.Random(seed_of(context.text, problem.id, seed))
        lines = context.text.splitlines()
        told = [word for word in self.words if self.line(word) in lines]
        used = [word for word in self.words if rng.random() < self.obeys and word in told]
        answer = problem.reference.split()[0] if rng.random() < self.right else "wrong"
        text = self.written(answer, used)
        done = Completion((), (), text, StopReason.STOP, 0)
        return Rollout(problem.id, context.id, done, self.judge(problem, text), 0)

    def judge(self, problem: Problem, text: str) -> Verdict:
        missing = [self.line(word) for word in self.words if word not in text.split()]
        wrong = [] if text.startswith(problem.reference.split()[0]) else [WRONG]
        return Verdict(float(text == problem.reference), (*missing, *wrong))


def count_words(text: str) -> int:
    return len(text.split())
