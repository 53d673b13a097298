"""Retention inside the loss: penalties on top of any slow part that trains by gradients.

A stage is one task of a sequence (`environment.task_steps` slow steps).
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fst_core.config.method import RetentionSettings
from fst_core.config.slow import GradientSettings

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class LossRetention(RetentionSettings):
    """What every penalty has."""

    place: ClassVar[Literal["loss"]] = "loss"
    coefficient: float = Field(ge=0)
    """Weight of the penalty; 0 leaves the run bit for bit as without it."""

    @property
    def needs_stages(self) -> bool:
        """Whether the penalty is made anew at the start of every task."""
        return True

    def refuse(self, run: "RunConfig") -> None:
        """Refuse what gives it nothing to hold on to; see `MethodSettings`."""
        if not isinstance(run.slow, GradientSettings):
            raise ValueError(
                f'retention: "{self.type}" adds to a gradient, but slow.type = "{run.slow.type}" '
                "takes none; choose a slow part that does, or leave the retention out"
            )
        if [other.type for other in run.retention].count(self.type) > 1:
            raise ValueError(
                f'retention: "{self.type}" is there twice; keep one, with both coefficients added'
            )
        if self.needs_stages and run.environment.type != "sequence":
            raise ValueError(
                f'retention: "{self.type}" holds on to the weights at the start of a task, and '
                'needs environment.type = "sequence"; set that, or take { type = "kl", '
                'to = "base" }, which works anywhere'
            )


class KlRetention(LossRetention):
    """KL anchor to the base model or to the policy at the start of the stage.

    Adds coefficient * mean over the step's tokens of KL(pi || anchor), both under the rollout's own
    context, by the estimator TRL uses for `beta`: k3 = r - 1 - log r with r = anchor / pi at the
    sampled token (Schulman 2020), times pi / sg(pi), whose gradient is that of the exact KL in
    expectation. Rollouts that left the batch (`slow.zero_variance = "drop"`) are not counted. With
    `to = "base"` it is `slow.beta` for slow parts that have no beta of their own.
    Cost: one forward pass of the anchor over the step's rollouts, and one copy of the weights.
    """

    type: Literal["kl"] = "kl"
    coefficient: float = Field(0.01, ge=0)
    """Weight of the mean KL (nats a token)."""
    to: Literal["base", "stage"] = "base"
    """Anchor: the base model (as for `slow.beta`), or the policy at the start of each task."""

    @property
    def needs_stages(self) -> bool:
        """Only where the anchor moves."""
        return self.to == "stage"

    def refuse(self, run: "RunConfig") -> None:
        """Also refuse tokens that the policy did not draw; see `MethodSettings`."""
        super().refuse(run)
        if run.slow.type in ("sft", "hpt"):
            raise ValueError(
                f'retention: "kl" is estimated on tokens that the policy drew, and slow.type = '
                f'"{run.slow.type}" trains on given answers; take "l2" or "ewc"'
            )


class L2Retention(LossRetention):
    """L2 towards the weights at the start of the stage.

    Adds coefficient / 2 * ||theta - theta_stage||^2 over all trained weights, in the first stage
    too. Its gradient, coefficient * (theta - theta_stage), is added in closed form before clipping.
    Cost: one copy of the weights.
    """

    type: Literal["l2"] = "l2"
    coefficient: float = Field(0.01, ge=0)
    """Weight of half the squared distance."""


class EwcRetention(LossRetention):
    """Online elastic weight consolidation (EWC, arXiv 1612.00796; online, arXiv 1805.06370).

    Adds coefficient / 2 * sum_i F_i (theta_i - theta_stage,i)^2, theta_stage the weights at the end
    of the stage before and F <- decay * F + F_stage. F_stage is the diagonal of the true Fisher
    information, estimated at the last slow step of the stage, at the weights that drew its
    rollouts: the mean over `samples` of those rollouts of (d log pi(y | x) / d theta_i)^2, y the
    whole completion, rewards not looked at (with `slow.type = "sft"` of given answers, which is the
    empirical Fisher). There is no penalty in the first stage.
    Cost: two copies of the weights, and `samples` backward passes of one rollout at each switch.
    """

    type: Literal["ewc"] = "ewc"
    coefficient: float = Field(400.0, ge=0)
    """Weight (lambda); 400 is the paper's for Atari."""
    decay: float = Field(1.0, ge=0, le=1)
    """Gamma: what a stage keeps of the Fisher information before it; 1 forgets nothing."""
    samples: int = Field(64, ge=1)
    """Rollouts the Fisher information is estimated from, over all processes."""
