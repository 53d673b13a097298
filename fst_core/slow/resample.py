"""DAPO's dynamic sampling: other problems in the place of groups whose rewards are all equal.

A step's rollouts are drawn and judged before TRL asks for them, so TRL sees one full batch. On
several processes each draws the groups of its own rows. All know all rewards, so they agree on what
is replaced by what; each takes part in every draw, with rows or without.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from accelerate.utils import gather_object

from fst_core.records import Population, Problem, Rollout, seed_of
from fst_core.rollouts import roll_out
from fst_core.slow.advantages import unequal
from fst_core.slow.base import SlowTools, StepReport
from fst_core.slow.group import GroupSlow
from fst_core.slow.grpo import ContextGRPOTrainer, Rows, row_in_context
from fst_core.slow.objectives import Dapo


class ResamplingTrainer(ContextGRPOTrainer):
    """Trains on groups with spread, as far as other problems give some."""

    further: Sequence[Problem] = ()
    """Other problems of the step, to be drawn in this order."""

    def rows_of(self, inputs: Rows, first: int) -> Rows:
        """See `ContextGRPOTrainer`; the rows of the full batch, whose rollouts are then known."""
        rows, further = super().rows_of(inputs, first), list(self.further)
        group, step = cast(int, self.num_generations), self.state.global_step
        mine = range(first, first + len(rows))
        seeds = [seed_of(self.run_seed, "slow", step, number) for number in mine]
        self.rollouts = self._roll_out(rows, seeds)
        self.replaced: list[list[Rollout]] = []
        for refill in range(1, cast(Dapo, self.settings).max_resamples + 1):
            chosen = dict(zip(self._equal(), further, strict=False))
            if not chosen:
                break
            del further[: len(chosen)]
            at = [i for i, number in enumerate(mine) if number // group in chosen]
            for i in at:
                rows[i] = row_in_context(chosen[mine[i] // group], rows[i]["context"])
            seeds = [seed_of(self.run_seed, "refill", step, refill, mine[i]) for i in at]
            self.replaced.append([self.rollouts[i] for i in at])
            for i, rollout in zip(at, self._roll_out([rows[i] for i in at], seeds), strict=True):
                self.rollouts[i] = rollout
        return rows

    def _roll_out(self, rows: Rows, seeds: Sequence[int]) -> list[Rollout]:
        pairs = [(row["context"], row["problem"]) for row in rows]
        return roll_out(self.lab_policy, self.environment, pairs, seeds)

    def _equal(self) -> list[int]:
        """Places in the step of the problems whose group nothing can be learned from."""
        group, settings = cast(int, self.num_generations), cast(Dapo, self.settings)
        unequal_P = unequal(self._rewards(), settings, group, self.contexts)
        return torch.nonzero(~unequal_P).flatten().tolist()

    def _rewards(self) -> torch.Tensor:
        """Rewards (N,) of all processes' rollouts."""
        rewards = [float(r.verdict.reward) for r in self.rollouts]
        found: torch.Tensor = self.accelerator.gather(
            torch.tensor(rewards, device=self.accelerator.device)
        )
        return found

    def _generate_single_turn(self, *_: Any, **__: Any) -> Any:
        self.drawn = [r.completion for r in self.rollouts]
        return [list(c.token_ids) for c in self.drawn], [list(c.logprobs) for c in self.drawn]

    def _calculate_rewards(self, *_: Any, **__: Any) -> torch.Tensor:
        self.rewards_N = self._rewards()
        return self.rewards_N[:, None]


class ResamplingSlow(GroupSlow):
    """DAPO with dynamic sampling (see `slow.objectives.Dapo`)."""

    trainer_class = ResamplingTrainer

    def __init__(self, slow: Dapo, tools: SlowTools):
        super().__init__(slow, tools)
        self.batch, self.group = tools.run.loop.problems_per_step, tools.run.loop.group_size

    def step(self, population: Population, problems: Sequence[Problem]) -> StepReport:
        """One optimizer step; also counts the groups that were replaced, and their rollouts."""
        trainer = cast(ResamplingTrainer, self.trainer)
        trainer.further = problems[self.batch :]
        report = super().step(population, problems[: self.batch])
        replaced = tuple(tuple(gather_object(rollouts)) for rollouts in trainer.replaced)
        count = sum(map(len, replaced))
        metrics = {
            **report.metrics,
            "slow/replaced_groups": float(count // self.group),
            "slow/replaced_rollouts": float(count),
        }
        rollouts = tuple(gather_object(trainer.rollouts))
        return replace(report, metrics=metrics, rollouts=rollouts, replaced=replaced)


def make(settings: Dapo, tools: SlowTools) -> GroupSlow:
    """A slow part that draws anew only where the settings say so."""
    return (ResamplingSlow if settings.max_resamples else GroupSlow)(settings, tools)
