"""TRL's GRPOTrainer with K contexts inside every group: the slow loop of FST.

Two methods are overridden, both named and typed as in TRL 1.16 (a test fails when they change):

- `_generate_and_score_completions`: each of a problem's G rows gets the system message of its
  context slot before TRL generates, judges and takes the advantage over all G rows; afterwards
  groups of equal rewards may leave the batch.
- `_generate_single_turn`: completions come from the lab's one engine, with seeds of their own.

The loss, the advantage, the optimizer and the schedule are TRL's, untouched.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from fst_core.environments.base import Judge
from fst_core.policy.base import Policy
from fst_core.records import (
    Completion,
    Context,
    Population,
    Problem,
    Rollout,
    seed_of,
    slots_for_group,
)
from fst_core.rollouts import in_context, judged

Rows = list[dict[str, Any]]


class ContextGRPOTrainer(GRPOTrainer):
    """GRPO whose groups are spread over a population of contexts (FST, section 3)."""

    def bind(self, policy: Policy, run_seed: int, zero_variance: str, chunks: int) -> None:
        """Give the trainer what TRL's constructor has no place for."""
        self.lab_policy = policy
        self.chunks = chunks
        self.run_seed = run_seed
        self.zero_variance = zero_variance
        self.population: Population | None = None
        self.drawn: list[Completion] = []

    def _generate_and_score_completions(self, inputs: Rows) -> dict[str, Any]:
        assert self.population is not None and self.model is not None
        group = cast(int, self.num_generations)
        slot_G = slots_for_group(group, len(self.population.contexts))
        first = self.accelerator.process_index * len(inputs)
        rows = [
            row_in_context(row, self.population.contexts[slot_G[(first + i) % group]])
            for i, row in enumerate(inputs)
        ]
        batch = super()._generate_and_score_completions(rows)
        if self.zero_variance == "drop" and self.model.training:
            alive_N = mixed_groups(batch["advantages"], group)
            batch = keep_rows(batch, alive_N, self.chunks)
            tokens = self.accelerator.gather(batch["completion_mask"].sum()).sum()
            batch["num_items_in_batch"] = tokens
        return batch

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], None]:
        first = self.accelerator.process_index * len(prompt_ids)
        step = self.state.global_step
        seeds = [seed_of(self.run_seed, "slow", step, first + i) for i in range(len(prompt_ids))]
        self.drawn = self.lab_policy.generate(prompt_ids, seeds)
        return [list(c.token_ids) for c in self.drawn], None


def row_in_context(row: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """A dataset row whose chat stands under the context."""
    return {**row, "prompt": in_context(context, row["prompt"]), "context": context}


def mixed_groups(advantages_N: torch.Tensor, group_size: int) -> torch.Tensor:
    """Which rows (N,) belong to a group whose rewards are not all equal."""
    alive_P = advantages_N.view(-1, group_size).ne(0).any(dim=1)
    return alive_P.repeat_interleave(group_size)


def keep_rows(batch: dict[str, Any], alive_N: torch.Tensor, chunks: int) -> dict[str, Any]:
    """A scored batch without the rows that are not alive.

    The batch is cut into `chunks` equal micro-batches afterwards, so up to `chunks` - 1 other rows
    (or `chunks`, where none is alive) stay as filler with an empty completion mask: they carry no
    loss, no KL and no share of the token count.
    """
    size = max(chunks, -(-int(alive_N.sum()) // chunks) * chunks)
    rows = torch.argsort((~alive_N).int(), stable=True)[:size].sort().values
    smaller = {
        key: value[rows] if isinstance(value, torch.Tensor) and value.ndim else value
        for key, value in batch.items()
    }
    smaller["completion_mask"] = smaller["completion_mask"] * alive_N[rows][:, None]
    return without_shared_padding(smaller)


def without_shared_padding(batch: dict[str, Any]) -> dict[str, Any]:
    """A scored batch without the columns that are padding in every row."""
    prompt_T = batch["prompt_mask"].any(dim=0)
    completion_T = batch["completion_mask"].any(dim=0)
    first = int(prompt_T.int().argmax())
    width = len(completion_T)
    last = max(1, width - int(completion_T.flip(0).int().argmax())) if completion_T.any() else 1
    trimmed = dict(batch)
    for key, value in batch.items():
        if key in ("prompt_ids", "prompt_mask"):
            trimmed[key] = value[:, first:]
        elif isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[1] == width:
            trimmed[key] = value[:, :last]  # completion ids, mask and per-token log-probs
    return trimmed


class RewardByJudge:
    """The reward function TRL calls: judges every row and keeps the rollouts."""

    __name__ = "judge"

    def __init__(self, environment: Judge, problem_at: Callable[[int], Problem]):
        self.environment = environment
        self.problem_at = problem_at
        self.trainer: ContextGRPOTrainer | None = None
        self.rollouts: list[Rollout] = []

    def __call__(
        self, position: Sequence[int], context: Sequence[Context], **_: Any
    ) -> list[float | None]:
        assert self.trainer is not None
        version = self.trainer.state.global_step
        problems = [self.problem_at(p) for p in position]
        self.rollouts = [
            judged(self.environment, problem, ctx, done, version)
            for problem, ctx, done in zip(problems, context, self.trainer.drawn, strict=True)
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
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self.skipped_in_a_row = 0 if bool(norm.isfinite()) else self.skipped_in_a_row + 1
        for parameter in parameters if self.skipped_in_a_row else ():
            parameter.grad = None  # Adam leaves a parameter without a gradient alone

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.update(logs or {})
