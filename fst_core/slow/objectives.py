"""Policy gradients whose loss TRL has: settings alone, trained by `fst_core.slow.group.GroupSlow`.

Every step makes one update on rollouts drawn by the weights it updates, so the importance weight
rho = pi / pi_old is 1 and no clip acts, unless `mismatch = "correct"` sets pi_old to what the
engine drew with. What differs then is the advantage A and what the sum over tokens is divided by.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fst_core.config.slow import PolicyGradient

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class ClippedObjective(PolicyGradient):
    """The loss of PPO: -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A)."""

    epsilon: float = Field(0.2, ge=0, lt=1)
    """How far below 1 an importance weight counts."""
    epsilon_high: float = Field(0.2, ge=0)
    """How far above 1 an importance weight counts."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`; without a loss of its own, the mean over the step's tokens."""
        clip = {"epsilon": self.epsilon, "epsilon_high": self.epsilon_high}
        return {**super().objective(), "loss_type": "dapo", **clip}


class Grpo(ClippedObjective):
    """GRPO (DeepSeekMath, arXiv 2402.03300).

    Per token -min(rho A, clip(rho) A), A = (r - mean of the group) / its standard deviation; the
    mean over a completion's tokens, then over completions, so that a token of a short completion
    weighs more. The clip is inert with one update per batch, unless `mismatch = "correct"`.
    Cost: that of cispo.
    """

    type: Literal["grpo"] = "grpo"
    beta: float = Field(0.04, ge=0)
    """KL coefficient towards the base model, under each rollout's own context; 0 loads no base."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`."""
        return {**super().objective(), "loss_type": "grpo"}


class Dapo(ClippedObjective):
    """DAPO (arXiv 2503.14476).

    GRPO's advantage and an asymmetric clip, the mean over all tokens of the step instead of over
    each completion first, and no KL. Dynamic sampling (section 3.2) keeps a group where
    min r < max r, and draws other problems in the place of the rest until the batch is full: at
    most `max_resamples` times, by default never, so that a step may train on fewer. The paper
    draws unseen problems; here they are others of the step's cycle (and stage), drawn at random
    without replacement, which may also come at their own step, so that contexts and data pools
    hold for them. Metrics, and fast parts that read slow rollouts, see the batch as it is trained
    on; the curriculum learns of every group. The reward for length (overlong shaping) is left out.
    The clip is inert with one update per batch, unless `mismatch = "correct"`.
    Cost: that of cispo with beta = 0; less where groups are dropped. A group drawn anew costs G
    rollouts more, so a step at most 1 + max_resamples times its rollouts and engine calls.
    """

    type: Literal["dapo"] = "dapo"
    epsilon_high: float = Field(0.28, ge=0)
    """How far above 1 an importance weight counts (clip-higher)."""
    zero_variance: Literal["drop", "keep"] = "drop"
    """Groups whose rewards are all equal: dropped from the batch, or kept in the token count."""
    max_resamples: int = Field(0, ge=0, exclude_if=lambda most: most == 0)
    """How often a step may draw other problems in the place of groups whose rewards are all equal;
    those left after that, or when the cycle has no other problem, are as `zero_variance` says."""

    @property
    def refills(self) -> int:
        """See `SlowSettings`."""
        return self.max_resamples

    def refuse(self, run: "RunConfig") -> None:
        """Also refuse other problems where a cycle has none; see `MethodSettings`."""
        super().refuse(run)
        if self.max_resamples and run.loop.cycle_steps == 1:
            raise ValueError(
                f"slow.max_resamples = {self.max_resamples} draws other problems of a step's "
                "cycle, and loop.cycle_steps = 1 leaves none; raise loop.cycle_steps, or set "
                "slow.max_resamples = 0"
            )


class DrGrpo(ClippedObjective):
    """Dr. GRPO (arXiv 2503.20783).

    A = r - mean of the group, not divided by its standard deviation; the sum over a completion's
    tokens divided by the constant policy.max_new_tokens, then the mean over completions. So neither
    a question's difficulty nor a completion's length weighs. The clip is inert with one update per
    batch, unless `mismatch = "correct"`.
    Cost: that of cispo with beta = 0.
    """

    type: Literal["dr_grpo"] = "dr_grpo"
    scale_by_std: bool = False
    """Divide advantages by a standard deviation."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`."""
        return {**super().objective(), "loss_type": "dr_grpo"}


class Gspo(ClippedObjective):
    """GSPO (arXiv 2507.18071).

    GRPO with one importance weight per completion, s = (pi(y) / pi_old(y))^(1 / |y|), and a clip of
    its scale: -min(s A, clip(s) A), the mean over completions. With one update per batch s = 1, and
    the gradient is GRPO's; they differ with `mismatch = "correct"`.
    Cost: that of cispo with beta = 0.
    """

    type: Literal["gspo"] = "gspo"
    epsilon: float = Field(3e-4, ge=0, lt=1)
    """How far below 1 an importance weight counts."""
    epsilon_high: float = Field(4e-4, ge=0)
    """How far above 1 an importance weight counts."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`."""
        sequence = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
        return {**super().objective(), **sequence}


class Rloo(ClippedObjective):
    """RLOO (arXiv 2402.14740): REINFORCE with a leave-one-out baseline.

    A_i = r_i - mean of the group's other rewards; the sum of -A log pi over a completion's tokens
    (its log-probability, whatever its length), then the mean over completions. Gradients are larger
    than GRPO's by the length of a completion. The paper takes KL off the reward; here beta adds its
    estimate to the loss, summed alike. With `mismatch = "correct"` the importance weight is GSPO's.
    Cost: that of cispo with beta = 0.
    """

    type: Literal["rloo"] = "rloo"
    baseline: Literal["problem", "context", "batch", "leave_one_out"] = "leave_one_out"
    """What is subtracted from a reward: see `PolicyGradient`."""
    scale_by_std: bool = False
    """Divide advantages by a standard deviation."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`; TRL calls the sum over a completion's tokens "luspo"."""
        sequence = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
        return {**super().objective(), **sequence}


class ReinforcePlusPlus(ClippedObjective):
    """REINFORCE++ (arXiv 2501.03262): advantages normalised over the step.

    A = (r - mean of the step's rewards) / their standard deviation; with `baseline = "problem"` its
    variant A = (r - mean of the group) / standard deviation of all these. The mean over the step's
    tokens. The paper takes KL off the reward; here beta adds its estimate to the loss. The clip is
    inert with one update per batch, unless `mismatch = "correct"`.
    Cost: that of cispo with beta = 0.
    """

    type: Literal["reinforce++"] = "reinforce++"
    baseline: Literal["problem", "context", "batch", "leave_one_out"] = "batch"
    """What is subtracted from a reward: see `PolicyGradient`."""
    std_over: Literal["baseline", "batch"] = "batch"
    """Standard deviation of the rewards that share a baseline, or of the step's advantages."""
