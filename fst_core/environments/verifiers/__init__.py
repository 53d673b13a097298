"""Environments of the package verifiers, so that those a user has already work here.

Single-turn ones, of either kind the package has known: `SingleTurnEnv` with a `Rubric` (before
0.4), and tasksets whose tasks score a trace without a runtime (from 0.4 on). What takes several
turns, tools, a container or a judgement over a whole group is refused in a sentence.

Reward: the weighted sum of the named scores, as the package forms it, divided by the sum of the
positive weights and clamped to [0, 1]. So scores in [0, 1] that are all full give 1, and a negative
weight takes away. Feedback: a sentence for every score that is not full, after the messages that
the scoring functions leave in `state["feedback"]` (before 0.4) or `trace.info["feedback"]` (a text
or a list of texts); a message that would give the answer away is dropped.

Coroutines of every environment run on one event loop, in a thread of its own.
"""

from collections.abc import Iterator

from fst_core.config.imported import VerifiersConfig
from fst_core.config.model import NotHere
from fst_core.environments.errors import DataError
from fst_core.environments.feedback import CORRECT, Case
from fst_core.environments.feedback.guard import without_reference
from fst_core.environments.imported import Held, by_split
from fst_core.environments.verifiers.source import Item, Scored, Source
from fst_core.records import Problem, Verdict, content_id


def open_source(config: VerifiersConfig) -> Source:
    """The environment or taskset that a config names.

    Raises:
        NotHere: if the package is not installed.
        ConfigError: if there is no such environment, or it is not a single-turn one.
    """
    try:
        import verifiers  # noqa: PLC0415  (optional, and seconds to import)
    except ImportError as error:
        raise NotHere(
            'environment.type = "verifiers": the package verifiers is not installed; '
            "pip install 'fst-lab[verifiers]'"
        ) from error
    if hasattr(verifiers, "load_environment"):
        from fst_core.environments.verifiers.rubrics import RubricSource  # noqa: PLC0415

        return RubricSource(config)
    from fst_core.environments.verifiers.tasksets import TasksetSource  # noqa: PLC0415

    return TasksetSource(config)


class VerifiersEnvironment(Held):
    """Problems of one environment of verifiers, split by question; subscores are its rewards."""

    def __init__(self, config: VerifiersConfig, load: bool = True) -> None:
        """Load the environment; `load=False` reads no rows and only judges.

        Raises:
            ConfigError: see `open_source`.
            DataError: for rows that are no chat, or a split without problems.
        """
        self.config = config
        self._source = open_source(config)
        problems = by_split(config, self._read(), f"verifiers {config.id}") if load else {}
        super().__init__(config.name, problems)

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """The reward in [0, 1], the environment's messages, and its scores in sentences."""
        scored = self._source.score(problem, completion)
        reward = reward_of(scored)
        subscores = {
            name: min(1.0, max(0.0, score))
            for name, score in scored.scores.items()
            if scored.weights[name] > 0
        }
        if reward == 1:
            return Verdict(1.0, (CORRECT,), subscores)
        told = scored.messages
        if problem.reference:
            case = Case("", problem.text, problem.reference, {}, completion, completion, reward)
            told = without_reference(told, case)
        return Verdict(reward, tuple(dict.fromkeys((*told, *sentences(scored)))), subscores)

    def solution(self, problem: Problem) -> str | None:
        """The row's answer, where it earns full reward as it is; else None."""
        answer = problem.reference
        return answer if answer and self.judge(problem, answer).reward == 1 else None

    def _read(self) -> Iterator[Problem]:
        for item in self._source.items():
            yield Problem(
                content_id(self.config.name, *(m["content"] for m in item.messages)),
                self.config.name,
                item.messages,
                item.reference,
                item.row,
            )


def reward_of(scored: Scored) -> float:
    """The weighted sum over the sum of the positive weights, clamped to [0, 1].

    Raises:
        DataError: if no score has a positive weight.
    """
    if scored.full <= 0:
        raise DataError("the environment gives no score a positive weight, so nothing is rewarded")
    return min(1.0, max(0.0, scored.total / scored.full))


def sentences(scored: Scored) -> Iterator[str]:
    """One sentence for each score that costs reward."""
    for name, score in scored.scores.items():
        weight = scored.weights[name]
        if weight > 0 and score < 1:
            yield f"The score {name} is {score:.2g} of 1."
        if weight < 0 and score > 0:
            yield f"The penalty {name} is {score:.2g}; 0 is best."


__all__ = ["Item", "Scored", "VerifiersEnvironment", "open_source", "reward_of", "sentences"]
