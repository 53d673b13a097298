"""`SingleTurnEnv` and `Rubric`: environments of verifiers before 0.4.

A reward function that raises scores 0 and is logged by the package; that is its own rule.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import datasets
import verifiers

from fst_core.config.imported import VerifiersConfig
from fst_core.config.model import ConfigError
from fst_core.environments.verifiers.source import (
    Item,
    Scored,
    as_messages,
    as_text,
    chat,
    plain,
    wait_for,
)
from fst_core.records import Problem


class RubricSource:
    """Rows of the environment's data set (its evaluation set where it has no other)."""

    def __init__(self, config: VerifiersConfig) -> None:
        """Load the environment.

        Raises:
            ConfigError: if it cannot be loaded, is not single-turn, or judges groups.
        """
        self._config = config
        datasets.disable_progress_bars()
        try:
            environment = verifiers.load_environment(config.id, **config.args)
        except Exception as error:  # the user's code; the package wraps some errors, not all
            raise ConfigError(
                f"environment.id = {config.id!r}: verifiers cannot load it ({error}); install the "
                "environment's package, or correct environment.args"
            ) from error
        _refuse(config.id, environment)
        self._environment = environment
        self._rubric = environment.rubric
        functions = self._rubric._get_reward_funcs()
        weights = self._rubric._get_reward_weights()
        names = [function.__name__ for function in functions]
        self._weights = dict(zip(names, map(float, weights), strict=True))
        self._full = sum(weight for weight in map(float, weights) if weight > 0)

    def items(self) -> Iterator[Item]:
        """Rows in their order, `most_problems` at most."""
        environment = self._environment
        held_out_only = environment.dataset is None and environment.eval_dataset is not None
        rows = environment.get_eval_dataset() if held_out_only else environment.get_dataset()
        for number, row in enumerate(islice(rows, self._config.most_problems), start=1):
            messages = chat(f"{self._config.id}:{number}", row["prompt"])
            kept = {key: value for key, value in row.items() if key != "prompt"}
            yield Item(messages, as_text(row.get("answer")), plain(kept))

    def score(self, problem: Problem, completion: str) -> Scored:
        """What the rubric's functions say of one completion."""
        row: dict[str, Any] = {**problem.metadata, "prompt": [dict(m) for m in problem.messages]}
        row.setdefault("answer", problem.reference)
        state = verifiers.State(
            input=row,
            prompt=row["prompt"],
            completion=[{"role": "assistant", "content": completion}],
            answer=row["answer"],
            info=row.get("info", {}),
            task=row.get("task", "default"),
            trajectory=[],
        )
        wait_for(self._rubric.score_rollout(state))
        scores = {name: float(score) for name, score in (state["metrics"] or {}).items()}
        weights = {name: self._weights.get(name, 0.0) for name in scores}
        messages = as_messages(state.get("feedback"))
        return Scored(float(state["reward"]), self._full, scores, weights, messages)


def _refuse(name: str, environment: Any) -> None:
    kind = type(environment).__name__
    if not isinstance(environment, verifiers.SingleTurnEnv):
        raise ConfigError(
            f"environment.id = {name!r} is a {kind}, which takes several turns or tools, and a "
            "rollout here is one completion; take an environment that is a SingleTurnEnv"
        )
    if getattr(environment, "tool_defs", None) or getattr(environment, "oai_tools", None):
        raise ConfigError(
            f"environment.id = {name!r} offers tools, and a rollout here is one completion; take "
            "an environment without tools"
        )
    if getattr(environment.rubric, "has_group_rewards", False):
        raise ConfigError(
            f"environment.id = {name!r} has reward functions that compare the completions of a "
            "group, and a completion is judged alone here; take functions of one completion"
        )
