"""What TRL's trainer calls back: the judge as its reward function, and the pause between steps."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from fst_core.environments.base import Judge
from fst_core.records import Context, Problem, Rollout
from fst_core.rollouts import judged
from fst_core.slow.sharded import total_norm

if TYPE_CHECKING:
    from fst_core.slow.grpo import ContextGRPOTrainer


class RewardByJudge:
    """The reward function TRL calls: judges every row and keeps the rollouts."""

    __name__ = "judge"

    def __init__(self, environment: Judge):
        self.environment = environment
        self.trainer: ContextGRPOTrainer | None = None
        self.rollouts: list[Rollout] = []

    def __call__(
        self, problem: Sequence[Problem], context: Sequence[Context], **_: Any
    ) -> list[float | None]:
        assert self.trainer is not None
        version = self.trainer.state.global_step
        self.rollouts = [
            judged(self.environment, asked, ctx, done, version)
            for asked, ctx, done in zip(problem, context, self.trainer.drawn, strict=True)
        ]
        return [r.verdict.reward for r in self.rollouts]


class Handover(TrainerCallback):
    """Pauses in front of every step, then seeds the global generators for it; keeps the logs."""

    def __init__(self, before_step: Callable[[int], None]):
        self.before_step = before_step
        self.logs: dict[str, float] = {}
        self.skipped_in_a_row = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.before_step(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Skip the update, and count it, when the gradient is not finite."""
        parameters = [p for p in given["model"].parameters() if p.grad is not None]
        norm = total_norm([p.grad for p in parameters if p.grad is not None])
        self.skipped_in_a_row = 0 if bool(norm.isfinite()) else self.skipped_in_a_row + 1
        for parameter in parameters if self.skipped_in_a_row else ():
            parameter.grad = None  # Adam leaves a parameter without a gradient alone

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.update(logs or {})
