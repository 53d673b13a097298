"""Distillation of the population's contexts into the weights: its settings."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fst_core.config.slow import GradientSettings

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class DistillSettings(GradientSettings):
    """Self-distillation (SDFT, arXiv 2601.19897; FST-distill, arXiv 2605.12484).

    The policy with a context of the population teaches the policy without it. Rollouts are drawn
    from the student, on-policy; each has as teacher the context of its slot in the group, on the
    same tokens. Loss: the exact KL(student || teacher) over the vocabulary at each token, averaged
    over a rollout's tokens, then over rollouts. Rewards are measured and, unless `rl_weight` is
    set, not learned from. TRL's SDFTTrainer with full logits and alpha 1 computes the same.
    Cost: one forward pass of the teacher, under the longer prompt, over the step's rollouts;
    one more copy of the weights, unless `teacher = "live"`.
    """

    type: Literal["distill"] = "distill"
    student: Literal["seed", "none"] = "seed"
    """What the student reads: `contexts.seed`, or no system message beyond the problem's own."""
    teacher: Literal["live", "start"] = "start"
    """Weights of the teacher: those at the start of the run (TRL's default), or the student's own
    in every step, without gradient. A live teacher moves with what it teaches: on the demo it lost
    the task at a learning rate that a fixed one learned it at."""
    rl_weight: float = Field(0.0, ge=0)
    """Weight of a policy gradient beside it: the token mean of -A log pi, A = (r - mean) / std over
    the group."""

    def refuse(self, run: "RunConfig") -> None:
        """Also refuse a run without contexts to teach; see `MethodSettings`."""
        super().refuse(run)
        if run.fast.type == "none" and run.contexts.start_from is None:
            raise ValueError(
                'slow.type = "distill" has no contexts to teach: fast.type = "none" and '
                "contexts.start_from is not set; choose a fast part, or set contexts.start_from to "
                "a run whose population is to be distilled"
            )
        if run.fast.reads is None:
            raise ValueError(
                f'fast.type = "{run.fast.type}" judges contexts by the slow rollouts, which '
                'slow.type = "distill" draws under slow.student alone; choose a fast part with '
                'rollouts of its own ("gepa")'
            )
