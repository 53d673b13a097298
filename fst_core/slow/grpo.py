"""TRL's GRPOTrainer with K contexts inside every group: the slow loop of FST.

These methods are overridden, named and typed as in TRL 1.16 (a test fails when they change):

- `_generate_and_score_completions`: each of a problem's G rows gets the system message of its
  context slot before TRL generates and judges; afterwards advantages are taken with the run's
  baseline, and rollouts that have none may leave the batch.
- `_tokenize_prompts`: chats become token ids as everywhere in the lab, each distinct one once.
- `_generate_single_turn`: completions come from the lab's one engine, with seeds of their own, and
  with the engine's log-probabilities, which TRL carries along as `sampling_per_token_logps`.
- `_calculate_rewards`: keeps the rewards of all processes, from which the advantages are taken.
- `compute_loss`: TRL's loss on pieces of a micro-batch, each with its backward pass, so that a
  token budget and a retry with less memory give the gradient of the whole; the log-probabilities
  it computes are compared with the engine's.
- `_get_per_token_logps_and_entropies`: keeps those log-probabilities, reads the contexts of a pass
  once (`fst_core.policy.prefix`), and passes over a batch without gradients in pieces as large as
  those of the training step.

The token losses, the optimizer and the schedule are TRL's, untouched. Where a loss is a mean over
rows, a piece's is weighted by its share of the step's rows.

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
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from trl import GRPOTrainer

from fst_core.config.slow import GradientSettings, PolicyGradient
from fst_core.environments.base import Judge
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.memory import Halving
from fst_core.policy.prefix import behind_prefixes, shares
from fst_core.records import Completion, Context, Population, Problem, seed_of, slots_for_group
from fst_core.rollouts import messages_for
from fst_core.slow.advantages import advantages, mixed
from fst_core.slow.chunks import Batch, by_rows, by_tokens, filler, keep_rows, unequal_rows
from fst_core.slow.mismatch import Mismatch
from fst_core.slow.retention_loss import Retention
from fst_core.slow.sharded import ShardedResume

Rows = list[dict[str, Any]]

TOKEN_MEANS = ("cispo", "dapo")
"""TRL's losses whose normaliser is the step's token count; the others are means over rows."""


class ContextGRPOTrainer(ShardedResume, GRPOTrainer):
    """GRPO whose groups are spread over a population of contexts (FST, section 3)."""

    def bind(
        self,
        policy: LanguageModelPolicy,
        environment: Judge,
        run_seed: int,
        slow: GradientSettings,
        retention: Retention,
    ) -> None:
        """Give the trainer what TRL's constructor has no place for."""
        self.lab_policy = policy
        self.environment = environment
        self.settings = slow
        self.retention = retention
        self.chunks = self.args.gradient_accumulation_steps
        self.run_seed = run_seed
        self.population: Population | None = None
        self.problems: Sequence[Problem] = ()
        self.drawn: list[Completion] = []
        self.mismatch = Mismatch()
        self.measured: dict[str, int] = {}
        self.by_tokens = slow.token_budget is not None
        self.pass_size = slow.token_budget or self.args.per_device_train_batch_size
        knob = "slow.token_budget" if self.by_tokens else "slow.micro_batch"
        alone = self.accelerator.num_processes == 1
        self.memory = Halving(knob, may_retry=alone)
        self.share_prefixes = (
            policy.config.share_prefixes
            and alone  # DDP takes one forward pass a backward
            and not slow.gradient_checkpointing  # which keeps no keys and values
            and not self.aux_loss_enabled
            and shares(policy.model)
        )

    def _generate_and_score_completions(self, inputs: Rows) -> dict[str, Any]:
        assert self.model is not None
        first = self.accelerator.process_index * len(inputs)
        self.rows = self.rows_of(inputs, first)
        batch = super()._generate_and_score_completions(self.rows)
        if not self.model.training:
            return batch
        self.retention.scored(batch, self.state.global_step)
        mine = slice(first, first + len(inputs))
        advantage_N, alive_N = self.weigh(self.rewards_N)
        batch["advantages"] = advantage_N[mine]
        batch["num_rows_in_batch"] = torch.tensor(len(advantage_N), device=advantage_N.device)
        return batch if alive_N is None else self.trained_on(batch, alive_N, mine)

    def rows_of(self, inputs: Rows, first: int) -> Rows:
        """This process's rows of the step, in their contexts; `first` is the number of its first.

        The step's rows come problem by problem, and in a problem's group slot by slot.
        """
        assert self.population is not None
        group = cast(int, self.num_generations)
        slot_G = slots_for_group(group, self.contexts)
        return [
            row_in_context(
                self.problems[row["slot"] % len(self.problems)],
                self.population.contexts[slot_G[(first + i) % group]],
            )
            for i, row in enumerate(inputs)
        ]

    def weigh(self, rewards_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Advantages (N,) of all processes' rollouts, and which of them are trained on (None: all).

        The rewards come problem by problem, and in a problem's group slot by slot.
        """
        assert isinstance(self.settings, PolicyGradient)
        given = (rewards_N, self.settings, cast(int, self.num_generations), self.contexts)
        drop = self.settings.zero_variance == "drop"
        return advantages(*given), mixed(*given) if drop else None

    def note(self, name: str, value: float) -> None:
        """Add a metric of the step's rollouts to TRL's logs."""
        self._metrics["train"][name].append(value)

    @property
    def contexts(self) -> int:
        """K: slots of the population."""
        assert self.population is not None
        return len(self.population.contexts)

    def trained_on(self, batch: Batch, alive_N: torch.Tensor, mine: slice) -> Batch:
        """This process's rollouts that are alive, and the normalisers of all that are."""
        batch = keep_rows(batch, alive_N[mine], self.chunks)
        tokens = self.accelerator.gather(batch["completion_mask"].sum()).sum()
        return {**batch, "num_items_in_batch": tokens, "num_rows_in_batch": alive_N.sum()}

    def _calculate_rewards(self, *given: Any, **named: Any) -> torch.Tensor:
        rewards_NF: torch.Tensor = super()._calculate_rewards(*given, **named)
        self.rewards_N = rewards_NF[:, 0]  # one reward function: the judge
        return rewards_NF

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return self.lab_policy.prompts_of(prompts), None, {}

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
            found = self._behind_prefixes(model, input_ids, attention_mask, logits_to_keep)
            found = found or compute(model, input_ids, attention_mask, logits_to_keep, **options)
            self.logp_BT = found[0]
            return found
        width = self._most(input_ids.shape[1]) if self.by_tokens else 1

        def in_batches(size: int) -> Any:
            rows = max(1, size // width)
            return compute(model, input_ids, attention_mask, logits_to_keep, rows, **options)

        return self.memory.run(in_batches, self.pass_size)

    def _behind_prefixes(
        self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, completion: int
    ) -> tuple[torch.Tensor, torch.Tensor, None] | None:
        """What TRL computes of a pass, the rows' common prefixes read once; None if none pay."""
        if not self.share_prefixes:
            return None
        with self.accelerator.autocast():
            inputs = behind_prefixes(model, ids_BT, mask_BT, ids_BT.shape[1] - completion)
            if inputs is None:
                return None
            labels_BS = inputs["input_ids"].clone()
            labels_BS[:, :-completion] = -100
            labels_BS[:, -completion:][mask_BT[:, -completion:] == 0] = -100
            out = model(**inputs, labels=labels_BS, fused_lm_head=True)
        return out.log_probs[:, -completion:], out.entropy[:, -completion:], None

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

        loss = self.memory.run(accumulate, self.pass_size)
        if len(before) + 1 == len(slices):
            self.retention.finish(self)
        return loss.requires_grad_()

    def _begin_step(self, again: bool = False) -> None:
        """Forget what the passes of a step have measured; what generation measured stays."""
        metrics = self._metrics["train"]
        if again:
            for name, values in metrics.items():
                del values[self.measured.get(name, 0) :]
        self.measured = {name: len(values) for name, values in metrics.items()}
        self.mismatch.reset()
        self.retention.begin(self, self.state.global_step)

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
        loss = self.piece_loss(model, piece)
        for term in self.retention.terms(self, piece):
            loss = loss + term
        self.accelerator.backward(loss)
        engine_BT = piece.get("sampling_per_token_logps")
        if engine_BT is not None:
            self.mismatch.add(self.logp_BT, engine_BT, piece["completion_mask"])
        return loss.detach()

    def piece_loss(self, model: Any, piece: Batch) -> torch.Tensor:
        """A piece's share of the step's loss, so that the shares of all pieces add up to it."""
        if self.correct_mismatch:
            piece = {**piece, "old_per_token_logps": piece["sampling_per_token_logps"]}
        with unequal_rows(self.accelerator):
            loss: torch.Tensor = super().compute_loss(model, piece)
        return loss if self.loss_type in TOKEN_MEANS else loss * self._share(piece)

    def _share(self, piece: Batch) -> float:
        """What turns TRL's mean over a piece's rows into its share of the step's mean.

        TRL divides by the micro-batches of a step, and gradients are averaged over processes; 1
        where every micro-batch is one piece with as many rows and none was dropped.
        """
        parts = self.current_gradient_accumulation_steps * self.accelerator.num_processes
        rows = max(1, int(piece["num_rows_in_batch"]))
        return len(piece["advantages"]) * parts / rows

    @property
    def correct_mismatch(self) -> bool:
        """Whether importance weights are taken against the engine's log-probabilities."""
        slow = self.settings
        return isinstance(slow, PolicyGradient) and slow.mismatch == "correct"


def token_mean(
    metrics: Sequence[Mapping[str, Sequence[float]]], tokens_P: Sequence[int]
) -> dict[str, float]:
    """Means over the tokens of P pieces, from the mean of each (TRL's, one number a pass)."""
    total = max(1, sum(tokens_P))
    return {
        name: sum(m[name][0] * n for m, n in zip(metrics, tokens_P, strict=True)) / total
        for name in metrics[0]
    }


def row_in_context(problem: Problem, context: Context) -> dict[str, Any]:
    """A row for TRL: the problem's chat under the context, and both for the judge."""
    return {"prompt": messages_for(context, problem), "problem": problem, "context": context}
