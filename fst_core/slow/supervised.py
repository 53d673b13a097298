"""Settings of slow parts that imitate: rewarded rollouts, given answers, or both by turns."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fst_core.config.slow import GradientSettings, PolicyGradient

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class ExpertIteration(GradientSettings):
    """Expert iteration: rejection-sampled fine-tuning on the policy's own rewarded rollouts.

    Per token -A log pi with A = 1 where the reward reaches `threshold`, else 0; the mean over the
    tokens of those rollouts, which alone are trained on. No baseline, no KL. One update a step, on
    rollouts of the current weights (as ReST, arXiv 2308.08998, with one step of improvement); RFT
    (arXiv 2308.01825) and STaR (arXiv 2203.14465) collect for longer and start from the base model.
    Cost: one pass over the accepted rollouts, instead of over all.
    """

    type: Literal["expert"] = "expert"
    threshold: float = Field(1.0, gt=0, le=1)
    """Smallest reward of a rollout that is imitated."""


class GivenAnswers(GradientSettings):
    """SFT: maximum likelihood of the environment's own answers, under each context.

    Per token -log pi of the answer and the end of the turn that follows it, the mean over the
    step's tokens; every problem's answer stands once under each of the K contexts. No rollouts, no
    rewards; loop.group_size plays no part but that K divides it.
    Cost: no generation; one pass over problems_per_step x K answers.
    """

    type: Literal["sft"] = "sft"
    learning_rate: float = Field(1e-5, gt=0)
    """Peak AdamW learning rate, constant after the warm-up."""

    def rollouts(self, run: "RunConfig") -> int:
        """None."""
        return 0


class HybridPostTraining(PolicyGradient):
    """HPT, hybrid post-training (arXiv 2509.04419): SFT where RL has no signal yet.

    A problem whose share of rewarded rollouts is at most `gamma` is trained on its given answer
    under each context, -(1 / |y|) sum log pi, the mean over the K contexts; any other on its
    rollouts by Dr. GRPO, as the paper does: A = r - mean of the group, the sum over tokens divided
    by policy.max_new_tokens, the mean over the group. Both are averaged over the problems of the
    step with the same weight. A problem without a given answer keeps to RL.
    Cost: that of dr_grpo; less where answers replace groups.
    """

    type: Literal["hpt"] = "hpt"
    gamma: float = Field(0.0, ge=0, le=1)
    """Largest share of rewarded rollouts at which a problem is trained on its answer; 0 takes those
    without any."""
    success: float = Field(1.0, gt=0, le=1)
    """Smallest reward that counts as success."""
    scale_by_std: bool = False
    """Divide advantages by a standard deviation."""

    def objective(self) -> Mapping[str, Any]:
        """See `GradientSettings`."""
        return {**super().objective(), "loss_type": "dr_grpo", "epsilon_high": 0.2}

    def refuse(self, run: "RunConfig") -> None:
        """Also refuse what needs the engine's or the base model's view of answers it never saw."""
        super().refuse(run)
        if self.beta or self.mismatch == "correct":
            raise ValueError(
                'slow.type = "hpt" trains on answers that no engine drew, so it takes no KL and '
                'corrects no mismatch; set slow.beta = 0 and slow.mismatch = "measure"'
            )
