"""The distilling slow part: the lab's trainer with the divergence from the teacher as its loss."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from trl.models.utils import disable_gradient_checkpointing

from fst_core.config.slow import CispoConfig
from fst_core.policy.adapters import shared_copy
from fst_core.policy.transformers_engine import left_pad
from fst_core.records import Context, Population, Problem, slots_for_group
from fst_core.rollouts import messages_for
from fst_core.slow.advantages import advantages
from fst_core.slow.base import SlowTools, StepReport
from fst_core.slow.chunks import Batch
from fst_core.slow.distill import DistillSettings
from fst_core.slow.group import GroupSlow
from fst_core.slow.grpo import ContextGRPOTrainer, Rows
from fst_core.slow.measured import log_token_mean

PASS_LOGITS = 1 << 28
"""Most logits (completion tokens times vocabulary) of one model in one pass; one row at least."""
CHUNK_LOGITS = 1 << 24
"""Most logits turned into float32 distributions at once."""


class DistillTrainer(ContextGRPOTrainer):
    """Rollouts of the student; the teacher reads the same tokens behind another prompt."""

    settings: DistillSettings
    teacher: PreTrainedModel | None = None
    """Frozen weights of the teacher; None for the live ones."""
    teachers: Sequence[Context] = ()
    """The population's contexts, by slot."""
    teacher_prompts: Sequence[list[int]] = ()
    """Token ids that each row of the step stands behind for its teacher."""

    def _generate_and_score_completions(self, inputs: Rows) -> dict[str, Any]:
        group = cast(int, self.num_generations)
        slot_G = slots_for_group(group, len(self.teachers))
        first = self.accelerator.process_index * len(inputs)
        self.teacher_prompts = self.lab_policy.prompts_of(
            [
                messages_for(
                    self.teachers[slot_G[(first + i) % group]],
                    self.problems[row["slot"] % len(self.problems)],
                )
                for i, row in enumerate(inputs)
            ]
        )
        batch = super()._generate_and_score_completions(inputs)
        batch["row"] = torch.arange(len(inputs), device=batch["prompt_ids"].device)
        return batch

    def weigh(self, rewards_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """CISPO's advantages, for `rl_weight`; every rollout is trained on."""
        return advantages(rewards_N, CispoConfig(), cast(int, self.num_generations), 1), None

    def _in_pieces(self, model: Any, inputs: Batch, size: int) -> torch.Tensor:
        """As ever, in pieces small enough for the logits of a pass."""
        width = 1 if self.by_tokens else self._most(inputs["completion_ids"].shape[1])
        most = PASS_LOGITS // (width * self.model.config.get_text_config().vocab_size)
        return super()._in_pieces(model, inputs, max(1, min(size, most)))

    def piece_loss(self, model: Any, piece: Batch) -> torch.Tensor:
        """A piece's share of the mean over rollouts of the mean KL of their tokens."""
        mask_BT = piece["completion_mask"]
        teacher_BTV = self._teacher_logits(piece)
        student_BTV = self._logits(model, piece, piece["prompt_ids"], piece["prompt_mask"])
        kl_BT, self.logp_BT, entropy_BT = compare(
            student_BTV, teacher_BTV, piece["completion_ids"], self.temperature
        )
        log_token_mean(self, "teacher_kl", kl_BT, mask_BT)
        log_token_mean(self, "entropy", entropy_BT, mask_BT)
        processes = self.accelerator.num_processes
        mean_B = (kl_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
        loss = mean_B.sum() * processes / piece["num_rows_in_batch"]
        if self.settings.rl_weight:
            gain_BT = piece["advantages"][:, None] * self.logp_BT * mask_BT
            tokens = piece["num_items_in_batch"].clamp(min=1) / processes
            loss = loss - self.settings.rl_weight * gain_BT.sum() / tokens
        return loss

    @torch.no_grad()
    def _teacher_logits(self, piece: Batch) -> torch.Tensor:
        """Logits (B, T, V) of the completion under the teacher's prompt and weights."""
        prompts = [self.teacher_prompts[row] for row in piece["row"].tolist()]
        pad = int(self.lab_policy.tokenizer.pad_token_id)
        prompt_BP, mask_BP = left_pad(prompts, pad, piece["prompt_ids"].device)
        model = self.model if self.teacher is None else self.teacher
        options = cast(dict[str, Any] | None, self.args.gradient_checkpointing_kwargs)
        with disable_gradient_checkpointing(cast(PreTrainedModel, model), options):
            return self._logits(model, piece, prompt_BP, mask_BP)

    def _logits(
        self, model: Any, piece: Batch, prompt_BP: torch.Tensor, mask_BP: torch.Tensor
    ) -> torch.Tensor:
        """Logits (B, T, V) at a piece's completion tokens behind a left-padded prompt."""
        width = piece["completion_ids"].shape[1]
        with self.accelerator.autocast():
            found: torch.Tensor = model(
                input_ids=torch.cat([prompt_BP, piece["completion_ids"]], dim=1),
                attention_mask=torch.cat([mask_BP, piece["completion_mask"]], dim=1),
                use_cache=False,
                logits_to_keep=width + 1,
            ).logits
        return found[:, :-1]


def compare(
    student_BTV: torch.Tensor,
    teacher_BTV: torch.Tensor,
    token_BT: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exact reverse KL, log-probability of the tokens and entropy, each (B, T), in nats.

    KL(student || teacher) = sum_v p_v (log p_v - log q_v), both at the temperature. Chunk by chunk
    in float32, and again in the backward pass, so that no float32 copy of all logits is kept.
    """
    vocabulary = student_BTV.shape[-1]
    size = max(1, CHUNK_LOGITS // vocabulary)
    chunks = zip(
        student_BTV.reshape(-1, vocabulary).split(size),
        teacher_BTV.reshape(-1, vocabulary).split(size),
        token_BT.flatten().split(size),
        strict=True,
    )
    columns = zip(
        *(checkpoint(_compare, *c, temperature, use_reentrant=False) for c in chunks), strict=True
    )
    kl, logp, entropy = (torch.cat(column).view(token_BT.shape) for column in columns)
    return kl, logp, entropy.detach()


def _compare(
    student_NV: torch.Tensor, teacher_NV: torch.Tensor, token_N: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p_NV = (student_NV.float() / temperature).log_softmax(-1)
    q_NV = (teacher_NV.float() / temperature).log_softmax(-1)
    kl_N = (p_NV.exp() * (p_NV - q_NV)).sum(-1)
    entropy_N = -(p_NV.exp() * p_NV).sum(-1)
    return kl_N, p_NV.gather(1, token_N[:, None]).squeeze(1), entropy_N


class DistillSlow(GroupSlow):
    """Teaches the policy without contexts what it does with them (see `slow.base.SlowPart`)."""

    trainer_class = DistillTrainer
    trainer: DistillTrainer

    def __init__(self, slow: DistillSettings, tools: SlowTools):
        frozen = start_weights(tools) if slow.teacher == "start" else None
        super().__init__(slow, tools)
        self.trainer.teacher = frozen
        self.student = Context(tools.run.contexts.seed if slow.student == "seed" else "")

    def step(self, population: Population, problems: Sequence[Problem]) -> StepReport:
        """One optimizer step towards the population's contexts, on rollouts under the student's."""
        self.trainer.teachers = population.contexts
        return super().step(Population((self.student,)), problems)


def start_weights(tools: SlowTools) -> PreTrainedModel:
    """The policy as the run began, frozen; the base model itself where it began with that."""
    if tools.run.start_from is None:
        return tools.policy.base
    return shared_copy(tools.policy.model).requires_grad_(False)
