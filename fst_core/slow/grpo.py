"""TRL's GRPOTrainer with K contexts inside every group: the slow loop of FST.

These methods are overridden, named and typed as in TRL 1.16 (a test fails when they change):

- `_generate_and_score_completions`: each of a problem's G rows gets the system message of its
  context slot before TRL generates, judges and takes the advantage over all G rows; afterwards
  groups of equal rewards may leave the batch.
- `_generate_single_turn`: completions come from the lab's one engine, with seeds of their own, and
  with the engine's log-probabilities, which TRL carries along as `sampling_per_token_logps`.
- `compute_loss`: TRL's loss on pieces of a micro-batch, each with its backward pass, so that a
  token budget and a retry with less memory give the gradient of the whole; the log-probabilities
  it computes are compared with the engine's.
- `_get_per_token_logps_and_entropies`: keeps those log-probabilities, and passes over a batch
  without gradients in pieces as large as those of the training step.

The loss of a piece, the advantage, the optimizer and the schedule are TRL's, untouched.

What `slow.mismatch = "correct"` does: TRL gets the engine's log-probabilities as
`old_per_token_logps`. Its CISPO token loss is -sg(min(rho, tau)) A log pi, rho = pi / pi_old; with
pi_old the distribution that the token was drawn from, E_engine[min(rho, tau) A grad log pi] is the
policy gradient under pi with its importance weight truncated at tau, token by token. Without it TRL
takes pi_old = pi and every weight is 1. What else TRL 1.16 does with `old_per_token_logps`:
`cispo_clip_ratio` then is the share of tokens with rho > tau and A > 0; the k3 of the KL term is
multiplied by rho, not truncated, which makes it an estimate under pi (`use_bias_correction_kl`, on
by default); its off-policy mask would read it, but is off.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from fst_core.config import CispoConfig
from fst_core.environments.base import Judge
from fst_core.policy.base import Policy
from fst_core.policy.memory import Halving
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
from fst_core.slow.chunks import (
    Batch,
    by_rows,
    by_tokens,
    filler,
    take_rows,
    without_shared_padding,
)
from fst_core.slow.mismatch import Mismatch
from fst_core.slow.sharded import ShardedResume, total_norm

Rows = list[dict[str, Any]]


class ContextGRPOTrainer(ShardedResume, GRPOTrainer):
    """GRPO whose groups are spread over a population of contexts (FST, section 3)."""

    def bind(self, policy: Policy, run_seed: int, slow: CispoConfig, chunks: int) -> None:
        """Give the trainer what TRL's constructor has no place for."""
        self.lab_policy = policy
        self.chunks = chunks
        self.run_seed = run_seed
        self.zero_variance = slow.zero_variance
        self.correct_mismatch = slow.mismatch == "correct"
        self.population: Population | None = None
        self.drawn: list[Completion] = []
        self.mismatch = Mismatch()
        self.measured: dict[str, int] = {}
        self.by_tokens = slow.token_budget is not None
        self.pass_size = slow.token_budget or self.args.per_device_train_batch_size
        knob = "slow.token_budget" if self.by_tokens else "slow.micro_batch"
        self.memory = Halving(knob, may_retry=self.accelerator.num_processes == 1)

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
    ) -> tuple[list[list[int]], list[list[float]]]:
        first = self.accelerator.process_index * len(prompt_ids)
        step = self.state.global_step
        seeds = [seed_of(self.run_seed, "slow", step, first + i) for i in range(len(prompt_ids))]
        self.drawn = self.lab_policy.generate(prompt_ids, seeds)
        return [list(c.token_ids) for c in self.drawn], [list(c.logprobs) for c in self.drawn]

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        compute = super()._get_per_token_logps_and_entropies
        if batch_size is None:
            found = compute(model, input_ids, attention_mask, logits_to_keep, **options)
            self.logp_BT = found[0].detach()
            return found
        width = self._most(input_ids.shape[1]) if self.by_tokens else 1

        def in_batches(size: int) -> Any:
            rows = max(1, size // width)
            return compute(model, input_ids, attention_mask, logits_to_keep, rows, **options)

        return self.memory.run(in_batches, self.pass_size)

    def _most(self, number: int) -> int:
        """The largest of a number over the processes, which all make as many passes."""
        numbers = torch.tensor([number], device=self.accelerator.device)
        return int(self.accelerator.gather(numbers).max())

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The loss of one micro-batch, its backward pass already done; TRL's own adds nothing."""
        assert self.model is not None
        if not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        slices = cast(list[Batch], self._buffered_inputs)  # of the step's rows, one a micro-batch
        before = slices[: self._step % len(slices)]
        if not before:
            self._begin_step()
        halved = self.memory.halved

        def accumulate(size: int) -> torch.Tensor:
            if self.memory.halved and not halved:  # a retry: the whole step again, from its start
                model.zero_grad()
                self._begin_step(again=True)
                for earlier in before:
                    self._in_pieces(model, earlier, size)
            return self._in_pieces(model, inputs, size)

        return self.memory.run(accumulate, self.pass_size).requires_grad_()

    def _begin_step(self, again: bool = False) -> None:
        """Forget what the passes of a step have measured; what generation measured stays."""
        metrics = self._metrics["train"]
        if again:
            for name, values in metrics.items():
                del values[self.measured.get(name, 0) :]
        self.measured = {name: len(values) for name, values in metrics.items()}
        self.mismatch.reset()

    def _in_pieces(self, model: Any, inputs: Batch, size: int) -> torch.Tensor:
        """Forward and backward over a micro-batch in pieces; its loss, detached.

        The normaliser of the loss is the step's token count, so the losses of pieces add up.
        Gradients are shared between processes in the last piece's backward pass alone; TRL shares
        metrics, and FSDP weights, in every pass, so some processes add passes over filler.
        """
        pieces = by_tokens(inputs, size) if self.by_tokens else by_rows(inputs, size)
        if self.by_tokens:
            pieces += [filler(inputs)] * (self._most(len(pieces)) - len(pieces))
        if len(pieces) == 1:
            return self._pass(model, pieces[0])
        losses, metrics, step = [], [], self._metrics["train"]
        try:
            for number, piece in enumerate(pieces, 1):
                self._metrics["train"] = defaultdict(list)
                last = number == len(pieces)
                with nullcontext() if last else self.accelerator.no_sync(model):
                    losses.append(self._pass(model, piece))
                metrics.append(self._metrics["train"])
        finally:
            self._metrics["train"] = step
        tokens_P = torch.stack([piece["completion_mask"].sum() for piece in pieces])
        for name, value in token_mean(metrics, self.accelerator.reduce(tokens_P).tolist()).items():
            step[name].append(value)
        return torch.stack(losses).sum()

    def _pass(self, model: Any, piece: Batch) -> torch.Tensor:
        engine_BT = piece["sampling_per_token_logps"]
        if self.correct_mismatch:
            piece = {**piece, "old_per_token_logps": engine_BT}
        loss = super().compute_loss(model, piece)
        self.accelerator.backward(loss)
        self.mismatch.add(self.logp_BT, engine_BT, piece["completion_mask"])
        return loss.detach()


def token_mean(
    metrics: Sequence[Mapping[str, Sequence[float]]], tokens_P: Sequence[int]
) -> dict[str, float]:
    """Means over the tokens of P pieces, from the mean of each (TRL's, one number a pass)."""
    total = max(1, sum(tokens_P))
    return {
        name: sum(m[name][0] * n for m, n in zip(metrics, tokens_P, strict=True)) / total
        for name in metrics[0]
    }


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
    smaller = take_rows(batch, rows)
    smaller["completion_mask"] = smaller["completion_mask"] * alive_N[rows][:, None]
    return without_shared_padding(smaller)


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
        norm = total_norm([p.grad for p in parameters if p.grad is not None])
        self.skipped_in_a_row = 0 if bool(norm.isfinite()) else self.skipped_in_a_row + 1
        for parameter in parameters if self.skipped_in_a_row else ():
            parameter.grad = None  # Adam leaves a parameter without a gradient alone

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.update(logs or {})
