"""Slow parts that imitate; their settings are in `fst_core.slow.supervised`."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch
from trl.trainer.utils import pad

from fst_core.config.model import ConfigError
from fst_core.config.slow import GradientSettings
from fst_core.environments.base import Judge
from fst_core.environments.tasks import Tasks
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import Population, Problem
from fst_core.slow.base import SlowTools, StepReport
from fst_core.slow.chunks import Batch
from fst_core.slow.group import GroupSlow
from fst_core.slow.grpo import ContextGRPOTrainer, Rows
from fst_core.slow.supervised import ExpertIteration, HybridPostTraining

OF_REWARDS = ("slow/reward", "slow/reward_std", "slow/zero_variance_frac")


class ExpertTrainer(ContextGRPOTrainer):
    """Trains on rewarded rollouts alone, with advantage 1."""

    def weigh(self, rewards_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ContextGRPOTrainer`; 1 and alive where the reward reaches the threshold."""
        accepted_N = rewards_N >= cast(ExpertIteration, self.settings).threshold
        self.note("accepted_frac", accepted_N.float().mean().item())
        return accepted_N.float(), accepted_N


class GivenTrainer(ContextGRPOTrainer):
    """Trains on given answers instead of rollouts, each once under each context."""

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        answers = [
            answer_ids(self.lab_policy, self.environment, row["problem"]) for row in self.rows
        ]
        return answers, None

    def _calculate_rewards(self, inputs: Rows, *_: Any, **__: Any) -> torch.Tensor:
        count = len(inputs) * self.accelerator.num_processes
        self.rewards_N = torch.ones(count, device=self.accelerator.device)
        return self.rewards_N[:, None]

    def weigh(self, rewards_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ContextGRPOTrainer`; 1, and alive where a context sees its problem first."""
        return rewards_N, first_of_slot(self, len(rewards_N))


class HybridTrainer(ContextGRPOTrainer):
    """Puts given answers in the place of groups that the policy fails at."""

    def weigh(self, rewards_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ContextGRPOTrainer`.

        TRL sums rho A over a row's tokens, divides by max_completion_length, and the mean over all
        N rows follows. So A = (G / K) max_completion_length / |y| gives an answer that stands in
        one of G / K rows of each context the weight -(1 / |y|) sum log pi / (problems x K).
        """
        slow = cast(HybridPostTraining, self.settings)
        advantage_N, alive_N = super().weigh(rewards_N)
        alive_N = torch.ones_like(rewards_N, dtype=torch.bool) if alive_N is None else alive_N
        group = cast(int, self.num_generations)
        rate_P = (rewards_N.view(-1, group) >= slow.success).float().mean(1)
        lengths_P = [self._answer_length(problem) for problem in self.problems]
        self.given_N = (
            (rate_P <= slow.gamma)
            .logical_and(torch.tensor(lengths_P, device=rate_P.device) > 0)
            .repeat_interleave(group)
        )
        whole = group / self.contexts * cast(int, self.max_completion_length)
        weights_P = [whole / max(1, length) for length in lengths_P]
        weight_N = torch.tensor(weights_P, device=rate_P.device).repeat_interleave(group)
        self.note("given_frac", self.given_N.float().mean().item())
        first_N = first_of_slot(self, len(rewards_N))
        return (
            torch.where(self.given_N, weight_N, advantage_N),
            torch.where(self.given_N, first_N, alive_N),
        )

    def _answer_length(self, problem: Problem) -> int:
        """Tokens of a problem's given answer; 0 where there is none."""
        if self.environment.solution(problem) is None:
            return 0
        return len(answer_ids(self.lab_policy, self.environment, problem))

    def trained_on(self, batch: Batch, alive_N: torch.Tensor, mine: slice) -> Batch:
        """See `ContextGRPOTrainer`; the mean stays one over all rows, as `weigh` has it."""
        given = [bool(g) for g in self.given_N[mine]]
        answers = [
            answer_ids(self.lab_policy, self.environment, row["problem"]) if is_given else None
            for row, is_given in zip(self.rows, given, strict=True)
        ]
        kept = super().trained_on(with_answers(batch, answers, self.pad_token), alive_N, mine)
        return {**kept, "num_rows_in_batch": torch.tensor(len(alive_N), device=alive_N.device)}

    @property
    def pad_token(self) -> int:
        """Id of the padding token."""
        return cast(int, self.lab_policy.tokenizer.pad_token_id)


class ExpertSlow(GroupSlow):
    """Expert iteration (see `slow.supervised.ExpertIteration`)."""

    trainer_class = ExpertTrainer


class GivenSlow(GroupSlow):
    """SFT on given answers (see `slow.supervised.GivenAnswers`)."""

    trainer_class = GivenTrainer

    def __init__(self, slow: GradientSettings, tools: SlowTools):
        refuse_without_answers(tools)
        super().__init__(slow, tools)

    def step(self, population: Population, problems: Sequence[Problem]) -> StepReport:
        """One optimizer step; no rollouts, so nothing that is measured on rewards."""
        report = super().step(population, problems)
        metrics = {k: v for k, v in report.metrics.items() if k not in OF_REWARDS}
        return dataclasses.replace(report, metrics=metrics, rollouts=())


class HybridSlow(GroupSlow):
    """HPT (see `slow.supervised.HybridPostTraining`)."""

    trainer_class = HybridTrainer

    def __init__(self, slow: GradientSettings, tools: SlowTools):
        refuse_without_answers(tools)
        super().__init__(slow, tools)


def refuse_without_answers(tools: SlowTools) -> None:
    """Refuse a task whose first problem has no given answer.

    Raises:
        ConfigError: naming the task.
    """
    for environment in Tasks(tools.run).trained:
        if environment.solution(environment.problem("train", 0)) is None:
            raise ConfigError(
                f'slow.type = "{tools.run.slow.type}" trains on given answers, but environment '
                f"{environment.name!r} gives none; take another environment or another slow.type"
            )


def answer_ids(policy: LanguageModelPolicy, environment: Judge, problem: Problem) -> list[int]:
    """Token ids of a problem's given answer and of the end of the turn.

    Raises:
        ConfigError: if there is none, or it is longer than the policy may write.
    """
    answer = environment.solution(problem)
    if answer is None:
        raise ConfigError(
            f"problem {problem.id} of {problem.environment!r} has no given answer to train on; "
            "take another environment or another slow.type"
        )
    text_ids = cast(list[int], policy.tokenizer(answer, add_special_tokens=False)["input_ids"])
    ids = [*text_ids, cast(int, policy.tokenizer.eos_token_id)]
    if len(ids) > policy.sampling.max_new_tokens:
        raise ConfigError(
            f"the given answer of problem {problem.id} has {len(ids)} tokens, but "
            f"policy.max_new_tokens = {policy.sampling.max_new_tokens}; raise it"
        )
    return ids


def first_of_slot(trainer: ContextGRPOTrainer, count: int) -> torch.Tensor:
    """Which of a step's rows (N,) is the first of its problem under its context slot."""
    width = cast(int, trainer.num_generations) // trainer.contexts
    return torch.arange(count, device=trainer.accelerator.device) % width == 0


def with_answers(batch: Batch, answers: Sequence[list[int] | None], padding: int) -> Batch:
    """A scored batch whose completions are answers where there are any.

    The engine's log-probabilities of answers are unknown (NaN).
    """
    mask_BT = batch["completion_mask"].bool()
    rows = [
        torch.tensor(answer, device=mask_BT.device) if answer else ids_T[mask_T]
        for answer, ids_T, mask_T in zip(answers, batch["completion_ids"], mask_BT, strict=True)
    ]
    engine = [
        torch.full((len(answer),), float("nan"), device=mask_BT.device)
        if answer
        else engine_T[mask_T]
        for answer, engine_T, mask_T in zip(
            answers, batch["sampling_per_token_logps"], mask_BT, strict=True
        )
    ]
    return {
        **batch,
        "completion_ids": pad(rows, padding),
        "completion_mask": pad([torch.ones_like(ids_T) for ids_T in rows]),
        "sampling_per_token_logps": pad(engine),
    }
