"""How weights are updated: the slow weights."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fst_core.config.method import SlowSettings

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class NoSlow(SlowSettings):
    """No slow part: weights stay as they are.

    Cost: none.
    """

    type: Literal["none"] = "none"

    def rollouts(self, run: "RunConfig") -> int:
        """None."""
        return 0


class GradientSettings(SlowSettings):
    """What any gradient learner has: AdamW, and passes that fit into memory."""

    learning_rate: float = Field(1e-6, gt=0)
    """Peak AdamW learning rate, constant after the warm-up."""
    warmup_steps: int = Field(10, ge=0)
    """Linear warm-up (steps)."""
    micro_batch: int = Field(64, ge=1)
    """Sequences per forward and backward pass on one device; divides the batch of rollouts."""
    token_budget: int | None = Field(None, ge=1)
    """Padded tokens per forward and backward pass on one device: a step's rows, sorted by length,
    are cut by it, and `micro_batch` is not looked at. A longer row gets a pass of its own."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradient clipping threshold (L2 norm)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    def objective(self) -> Mapping[str, Any]:
        """The loss in TRL's terms: arguments of its GRPOConfig.

        By default the token mean of -A log pi (CISPO without a cap, no KL), which is maximum
        likelihood where the advantage A is 1.
        """
        return {"loss_type": "cispo", "epsilon_high": float("inf"), "beta": 0.0}

    def refuse(self, run: "RunConfig") -> None:
        """Refuse a micro-batch that does not divide a step's rollouts; see `MethodSettings`."""
        whose = "of a step (loop.problems_per_step x loop.group_size)"
        self.refuse_rows(run.loop.problems_per_step * run.loop.group_size, whose)

    def refuse_rows(self, rows: int, whose: str) -> None:
        """See `SlowSettings`."""
        if not self.token_budget and rows % min(self.micro_batch, rows):
            raise ValueError(
                f"slow.micro_batch = {self.micro_batch} does not divide the {rows} rollouts "
                f"{whose}; choose a number that does, or set slow.token_budget"
            )


class PolicyGradient(GradientSettings):
    """A policy gradient with a baseline taken from the step's own rewards."""

    beta: float = Field(0.0, ge=0)
    """KL coefficient towards the base model, under each rollout's own context; 0 loads no base."""
    baseline: Literal["problem", "context", "batch", "leave_one_out"] = "problem"
    """What is subtracted from a reward: the mean over all G rollouts of its problem (FST, GRPO),
    over the G / K of its problem under its context (E-SPL, arXiv 2602.14697), over the step, or
    over the G - 1 other rollouts of its problem (RLOO)."""
    scale_by_std: bool = True
    """Divide advantages by a standard deviation."""
    std_over: Literal["baseline", "batch"] = "baseline"
    """Which: that of the rewards that share a baseline, or that of all advantages of the step."""
    zero_variance: Literal["drop", "keep"] = "keep"
    """Rollouts that share a baseline and have equal rewards: dropped from the batch, or kept in
    the loss's normaliser."""
    mismatch: Literal["measure", "correct"] = "measure"
    """The engine's log-probabilities against the trainer's: measured only, or also the denominator
    of the importance weight, so that its clip truncates what the engine got wrong."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`; without a loss of its own, REINFORCE's on the mean token."""
        scale = "group" if self.scale_by_std else "none"
        return {**super().objective(), "beta": self.beta, "scale_rewards": scale}

    def refuse(self, run: "RunConfig") -> None:
        """Also refuse a baseline over one rollout; see `MethodSettings`."""
        super().refuse(run)
        group, contexts = run.loop.group_size, run.population_size
        if self.baseline == "context" and group == contexts:
            raise ValueError(
                f'slow.baseline = "context" with loop.group_size = {group} and {contexts} contexts '
                "leaves one rollout a problem and context, whose advantage is always 0; raise "
                'loop.group_size, lower contexts.size, or take slow.baseline = "problem"'
            )


class CispoConfig(PolicyGradient):
    """CISPO (MiniMax-M1, arXiv 2506.13585; FST, arXiv 2605.12484, Eq. 4).

    Per token -sg(min(rho, tau)) A log pi, with rho the importance weight, sg a stop-gradient and A
    the reward minus its baseline, divided by its standard deviation; the mean over the step's
    tokens. With one update per batch rho = 1, and the cap is inert unless `mismatch = "correct"`.
    Cost: none beyond the rollouts and one pass over them; beta > 0 adds a pass of the base model.
    """

    type: Literal["cispo"] = "cispo"
    tau: float = Field(4.0, gt=0)
    """Absolute upper bound on the token importance weight; there is no lower clip."""
    beta: float = Field(0.001, ge=0)
    """KL coefficient towards the base model, under each rollout's own context; 0 loads no base."""
    zero_variance: Literal["drop", "keep"] = "drop"
    """Groups whose rewards are all equal: dropped from the batch, or kept in the token count."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`."""
        return {**super().objective(), "loss_type": "cispo", "epsilon_high": self.tau}
