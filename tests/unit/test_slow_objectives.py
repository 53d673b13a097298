"""Every objective's loss, recomputed by hand, and what a step's pieces do to it.

The losses go through the trainer's own path with engine log-probabilities moved by hand, so that
importance weights differ from 1 and clips act; `mismatch = "correct"` makes them the denominator.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from fst_core.records import Context, Population
from fst_core.session import Session
from fst_core.slow.chunks import by_rows, by_tokens
from tests.runs import tiny_config

SHORT = Context("Be brief.")
LONG = Context("You are a helpful assistant.\nPut dashes between the characters.\nBe brief.")
LONGEST = 10
"""policy.max_new_tokens of the runs in here."""


def config_of(**slow: Any) -> Any:
    return tiny_config(
        fast={"type": "gepa", "metric_calls": 0},
        loop={"steps": 3, "problems_per_step": 8, "group_size": 8},
        slow={"micro_batch": 64, "warmup_steps": 1, "max_grad_norm": 1e9, **slow},
    )


class Step:
    """One slow step of 64 rollouts: its scored batch, its gradient and its metrics.

    Args:
        same: rollouts of the first problems of the step that get one reward, whatever they say.
    """

    def __init__(self, folder: Path, same: int = 0, **slow: Any):
        with Session(config_of(**slow), folder) as session:
            session.population = Population((SHORT, LONG))
            self.model = session.policy.model
            self.trainer = session.slow.trainer  # type: ignore[union-attr]
            session.slow.handover.on_pre_optimizer_step = self._keep  # type: ignore[union-attr]
            self.same, self.judge = same, self.trainer._calculate_rewards
            self.trainer._calculate_rewards = self._judged
            score = self.trainer._generate_and_score_completions
            self.trainer._generate_and_score_completions = lambda rows: self._note(score(rows))
            problems = session.problems.between(0, 1)
            report = session.slow.step(session.population, problems)  # type: ignore[union-attr]
            self.metrics, self.rollouts = report.metrics, report.rollouts
            self.rewards_PG = self.trainer.rewards_N.view(8, 8)

    def _judged(self, *given: Any) -> torch.Tensor:
        rewards: torch.Tensor = self.judge(*given)
        rewards[: self.same] = 0.5
        self.trainer.rewards_N = rewards[:, 0]
        return rewards

    def _note(self, batch: Any) -> Any:
        self.batch = batch
        return batch

    def _keep(self, *_: Any, model: Any, **__: Any) -> None:
        self.gradient = {n: p.grad.clone() for n, p in model.named_parameters()}

    def logp(self) -> torch.Tensor:
        """Log-probabilities (N, T) of the batch's completions by a plain forward pass."""
        batch = self.batch
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        width = batch["completion_ids"].shape[1]
        logits = self.model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
        chosen = batch["completion_ids"][..., None]
        return logits.log_softmax(-1).gather(2, chosen).squeeze(2)


def clipped(rho: torch.Tensor, advantage: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return -torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)


def by_hand(
    kind: str, rho: torch.Tensor, s: torch.Tensor, a: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The loss of one step (rows N, tokens T) as the papers have it.

    Args:
        rho: token importance weights (N, T); s: one a completion (N, 1); a: advantages (N, 1).
    """
    length = mask.sum(1)
    if kind == "grpo":
        return ((clipped(rho, a, 0.2, 0.2) * mask).sum(1) / length).mean()
    if kind == "dapo":
        return (clipped(rho, a, 0.2, 0.28) * mask).sum() / mask.sum()
    if kind == "reinforce++":
        return (clipped(rho, a, 0.2, 0.2) * mask).sum() / mask.sum()
    if kind == "dr_grpo":
        return ((clipped(rho, a, 0.2, 0.2) * mask).sum(1) / LONGEST).mean()
    if kind == "gspo":
        return clipped(s, a, 3e-4, 4e-4).mean()
    return (clipped(s, a, 0.2, 0.2).squeeze(1) * length).mean()  # rloo


def advantages_by_hand(kind: str, rewards_PG: torch.Tensor) -> torch.Tensor:
    centred = rewards_PG - rewards_PG.mean(1, keepdim=True)
    if kind == "dr_grpo":
        return centred
    if kind == "rloo":
        others = (rewards_PG.sum(1, keepdim=True) - rewards_PG) / 7
        return rewards_PG - others
    if kind == "reinforce++":
        return (rewards_PG - rewards_PG.mean()) / (rewards_PG.std() + 1e-4)
    return centred / (rewards_PG.std(1, keepdim=True) + 1e-4)


KINDS = ("grpo", "dapo", "dr_grpo", "gspo", "rloo", "reinforce++")


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_by_hand_however_it_is_cut(tmp_path: Path, kind: str) -> None:
    step = Step(tmp_path / "run", type=kind, mismatch="correct", zero_variance="keep", beta=0.0)
    advantage_PG = advantages_by_hand(kind, step.rewards_PG)
    torch.testing.assert_close(
        step.batch["advantages"].view(8, 8), advantage_PG, rtol=1e-4, atol=1e-5
    )
    assert advantage_PG.abs().max() > 0.1
    logp, mask = step.logp(), step.batch["completion_mask"]
    shift = torch.linspace(-0.6, 0.6, logp.numel()).view_as(logp)
    batch = {**step.batch, "sampling_per_token_logps": (logp - shift).detach()}
    rho = shift.exp()
    s = ((shift * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp()
    expected = by_hand(kind, rho, s, advantage_PG.view(-1, 1), mask)
    unclipped = by_hand(
        kind, *(torch.ones_like(x) for x in (rho, s)), advantage_PG.view(-1, 1), mask
    )
    assert expected.item() != pytest.approx(unclipped.item(), rel=1e-3, abs=1e-6)
    step.model.train()
    for pieces in ([batch], by_rows(batch, 24), by_tokens(batch, 300)):
        shares = [step.trainer.piece_loss(step.model, piece) for piece in pieces]
        assert sum(s.item() for s in shares) == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_on_policy_the_gradient_is_that_of_minus_a_log_pi(tmp_path: Path, kind: str) -> None:
    """With rho = 1 no clip acts: only the advantage and the normaliser of the sum differ."""
    step = Step(tmp_path / "run", type=kind, zero_variance="keep", learning_rate=1e-12, beta=0.0)
    assert step.metrics["slow/clip_frac"] == 0
    mask = step.batch["completion_mask"]
    advantage = advantages_by_hand(kind, step.rewards_PG).view(-1, 1)
    per_token = -advantage * step.logp() * mask
    normaliser = {
        "grpo": 64 * mask.sum(1, keepdim=True),
        "gspo": 64 * mask.sum(1, keepdim=True),
        "dr_grpo": torch.tensor(64.0 * LONGEST),
        "rloo": torch.tensor(64.0),
    }.get(kind, mask.sum())
    step.model.zero_grad()
    (per_token / normaliser).sum().backward()
    largest = max(g.abs().max().item() for g in step.gradient.values())
    assert largest > 1e-4
    within = {"rtol": 1e-3, "atol": max(1e-6, 1e-5 * largest)}  # sums over rows, other roundings
    for name, parameter in step.model.named_parameters():
        torch.testing.assert_close(step.gradient[name], parameter.grad, **within)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "gspo", "rloo", "dapo"])
@pytest.mark.parametrize("cut", [{"micro_batch": 16}, {"token_budget": 300}], ids=str)
def test_dropped_groups_leave_one_mean_over_the_rest(
    tmp_path: Path, kind: str, cut: dict[str, int]
) -> None:
    """In one pass or several, with or without filler: the mean over what has an advantage."""
    whole = Step(tmp_path / "keep", same=24, type=kind, beta=0.0, zero_variance="keep")
    parts = Step(tmp_path / "drop", same=24, type=kind, beta=0.0, zero_variance="drop", **cut)
    alive_P = whole.rewards_PG.amax(1) > whole.rewards_PG.amin(1)
    assert 0 < alive_P.sum() < 8
    share = alive_P.float().mean().item()
    if kind == "dapo":
        mask = whole.batch["completion_mask"]
        share = (mask.sum(1) * alive_P.repeat_interleave(8)).sum().item() / mask.sum().item()
    for name, ours in parts.gradient.items():
        torch.testing.assert_close(ours * share, whole.gradient[name], rtol=1e-3, atol=1e-6)


def test_a_context_s_own_baseline_reaches_the_trainer(tmp_path: Path) -> None:
    step = Step(tmp_path / "run", same=20, type="cispo", baseline="context", scale_by_std=False)
    blocks = step.rewards_PG.view(16, 4)
    alive = (blocks.amax(1) > blocks.amin(1)).repeat_interleave(4)
    expected = (blocks - blocks.mean(1, keepdim=True)).flatten()[alive]
    assert 0 < alive.sum() < 64
    found, mask = step.batch["advantages"], step.batch["completion_mask"].any(1)
    torch.testing.assert_close(found[mask], expected, rtol=1e-5, atol=1e-6)
