"""Slow parts that imitate: what they train on, with which weight, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from fst_core.config.model import ConfigError
from fst_core.environments.directives import DirectivesEnvironment
from fst_core.records import Context, Population, Problem
from fst_core.session import Session
from tests.runs import run, tiny_config

SHORT = Context("Be brief.")
LONG = Context("You are a helpful assistant.\nPut dashes between the characters.\nBe brief.")
LONGEST = 20
"""policy.max_new_tokens of the runs in here."""


def config_of(**slow: Any) -> Any:
    return tiny_config(
        fast={"type": "gepa", "metric_calls": 0},
        policy={"max_new_tokens": LONGEST},
        loop={"steps": 3, "problems_per_step": 4, "group_size": 8},
        slow={"micro_batch": 32, "warmup_steps": 1, "max_grad_norm": 1e9, **slow},
    )


class Step:
    """One slow step of four problems under two contexts: scored batch, gradient, metrics.

    Args:
        rewards: of the step's 32 rollouts, in place of the judge's.
    """

    def __init__(self, folder: Path, rewards: torch.Tensor | None = None, **slow: Any):
        with Session(config_of(learning_rate=1e-12, **slow), folder) as session:
            session.population = Population((SHORT, LONG))
            self.policy, self.judge = session.policy, session.tasks
            self.trainer = session.slow.trainer  # type: ignore[union-attr]
            session.slow.handover.on_pre_optimizer_step = self._keep  # type: ignore[union-attr]
            score, weigh = self.trainer._generate_and_score_completions, self.trainer.weigh
            self.trainer._generate_and_score_completions = lambda rows: self._note(score(rows))
            if rewards is not None:
                self.trainer.weigh = lambda _: weigh(rewards)
            self.problems = session.problems.between(0, 1)
            report = session.slow.step(session.population, self.problems)  # type: ignore[union-attr]
            self.metrics, self.rollouts = report.metrics, report.rollouts

    def _note(self, batch: Any) -> Any:
        self.batch = batch
        return batch

    def _keep(self, *_: Any, model: Any, **__: Any) -> None:
        self.gradient = {n: p.grad.clone() for n, p in model.named_parameters()}

    def logp(self, prompt: list[int], completion: list[int]) -> torch.Tensor:
        """Log-probabilities of one completion, unpadded, by a plain forward pass."""
        logits = self.policy.model(torch.tensor([prompt + completion])).logits[0]
        chosen = torch.tensor(completion)[:, None]
        return logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, chosen).squeeze(1)

    def answer_logp(self, problem: Problem, context: Context) -> torch.Tensor:
        chat = [{"role": "system", "content": context.text}, *map(dict, problem.messages)]
        text = self.judge.solution(problem)
        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        prompt = self.policy.prompt_ids(chat)
        return self.logp(prompt, [*ids, self.policy.tokenizer.eos_token_id])

    def drawn_logp(self, row: int) -> torch.Tensor:
        rollout = self.rollouts[row]
        context = {c.id: c for c in (SHORT, LONG)}[rollout.context_id]
        chat = [{"role": "system", "content": context.text}]
        chat += [dict(m) for m in self.problems[row // 8].messages]
        return self.logp(self.policy.prompt_ids(chat), list(rollout.completion.token_ids))

    def assert_gradient_of(self, loss: torch.Tensor) -> None:
        self.policy.model.zero_grad()
        loss.backward()
        assert max(g.abs().max().item() for g in self.gradient.values()) > 1e-4
        for name, parameter in self.policy.model.named_parameters():
            torch.testing.assert_close(self.gradient[name], parameter.grad, rtol=1e-3, atol=1e-6)


# --- expert iteration ----------------------------------------------------------------------------

SOME = torch.tensor([1.0, 0.9, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0] + [0.0] * 8 + [0.5] * 8 + [1.0] * 8)


@pytest.mark.parametrize(("threshold", "accepted"), [(1.0, 10), (0.5, 19)])
@pytest.mark.parametrize("cut", [{}, {"micro_batch": 8}, {"token_budget": 150}], ids=str)
def test_expert_is_the_mean_nll_of_accepted_rollouts(
    tmp_path: Path, threshold: float, accepted: int, cut: dict[str, int]
) -> None:
    step = Step(tmp_path / "run", SOME, type="expert", threshold=threshold, **cut)
    rows = [i for i, reward in enumerate(SOME.tolist()) if reward >= threshold]
    assert len(rows) == accepted and len(step.rollouts) == 32
    loss = -torch.cat([step.drawn_logp(i) for i in rows]).mean()
    assert step.metrics["slow/loss"] == pytest.approx(loss.item(), rel=1e-3)
    assert step.metrics["slow/accepted_frac"] == pytest.approx(accepted / 32)
    step.assert_gradient_of(loss)


def test_a_step_without_any_accepted_rollout_learns_nothing(tmp_path: Path) -> None:
    step = Step(tmp_path / "run", torch.zeros(32), type="expert")
    assert step.metrics["slow/loss"] == 0 and step.metrics["slow/skipped"] == 0
    assert all(not gradient.any() for gradient in step.gradient.values())


# --- given answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [{}, {"micro_batch": 4}, {"token_budget": 150}], ids=str)
def test_sft_is_the_mean_nll_of_each_answer_once_under_each_context(
    tmp_path: Path, cut: dict[str, int]
) -> None:
    step = Step(tmp_path / "run", type="sft", **cut)
    pairs = [(problem, context) for problem in step.problems for context in (SHORT, LONG)]
    loss = -torch.cat([step.answer_logp(*pair) for pair in pairs]).mean()
    assert step.metrics["slow/loss"] == pytest.approx(loss.item(), rel=1e-3)
    assert step.batch["completion_mask"].any(1).sum() == 8
    step.assert_gradient_of(loss)


def test_sft_makes_no_rollouts_and_measures_nothing_on_rewards(tmp_path: Path) -> None:
    config = config_of(type="sft", learning_rate=1e-3)
    assert config.slow.rollouts(config) == 0
    slow = [e for e in run(config, tmp_path / "run") if e["kind"] == "slow"]
    assert len(slow) == 3 and slow[-1]["ledger"]["slow_rollouts"] == 0
    assert not any(("reward" in name or "mismatch" in name) for name in slow[-1]["metrics"])
    assert slow[-1]["metrics"]["slow/loss"] < slow[0]["metrics"]["slow/loss"]


def test_an_environment_without_answers_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectivesEnvironment, "solution", lambda self, problem: None)
    for kind in ("sft", "hpt"):
        with (
            pytest.raises(ConfigError, match=rf'"{kind}" trains on given answers, but .* none'),
            Session(config_of(type=kind), tmp_path / kind),
        ):
            pass


def test_an_answer_longer_than_the_policy_may_write_is_refused(tmp_path: Path) -> None:
    config = config_of(type="sft")
    short = config.policy.model_copy(update={"max_new_tokens": 2})
    with (
        Session(config.model_copy(update={"policy": short}), tmp_path / "run") as session,
        pytest.raises(ConfigError, match=r"tokens, but policy\.max_new_tokens = 2; raise it"),
    ):
        session.step()


# --- hybrid post-training ------------------------------------------------------------------------

MIXED = torch.tensor([0.0, 0.5, *[0.0] * 6, 1.0, *[0.0] * 7, *[1.0, 0.0] * 4, *[0.0] * 8])
"""Success rates of four problems: 0, 1/8, 1/2, 0."""


def dr_grpo(step: Step, problem: int) -> torch.Tensor:
    """Dr. GRPO's loss of one problem."""
    rewards = MIXED[8 * problem : 8 * problem + 8]
    rows = enumerate(rewards - rewards.mean(), 8 * problem)
    return sum(-a * step.drawn_logp(i).sum() / LONGEST for i, a in rows) / 8  # type: ignore[return-value]


def sft(step: Step, problem: int) -> torch.Tensor:
    """The mean over contexts of an answer's mean negative log-likelihood."""
    logps = [step.answer_logp(step.problems[problem], context) for context in (SHORT, LONG)]
    return -sum(logp.mean() for logp in logps) / 2  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("gamma", "given"), [(0.0, {0, 3}), (0.125, {0, 1, 3}), (1.0, {0, 1, 2, 3})]
)
@pytest.mark.parametrize(
    "cut", [{}, {"micro_batch": 8}, {"token_budget": 150, "zero_variance": "drop"}], ids=str
)
def test_hpt_is_sft_where_the_success_rate_is_at_most_gamma(
    tmp_path: Path, gamma: float, given: set[int], cut: dict[str, Any]
) -> None:
    step = Step(tmp_path / "run", MIXED, type="hpt", gamma=gamma, **cut)
    loss = sum(sft(step, p) if p in given else dr_grpo(step, p) for p in range(4)) / 4
    assert step.metrics["slow/given_frac"] == pytest.approx(len(given) / 4)
    step.assert_gradient_of(loss)  # type: ignore[arg-type]


def test_hpt_compares_with_the_engine_only_what_the_engine_drew(tmp_path: Path) -> None:
    step = Step(tmp_path / "some", MIXED, type="hpt")
    assert 0 < step.metrics["slow/mismatch_max"] < 1e-4
    step = Step(tmp_path / "none", MIXED, type="hpt", gamma=1.0)
    assert step.metrics["slow/mismatch_max"] == 0


@pytest.mark.parametrize("change", [{"beta": 0.1}, {"mismatch": "correct"}], ids=str)
def test_hpt_refuses_what_needs_the_answers_to_have_been_drawn(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"set slow\.beta = 0 and slow\.mismatch"):
        config_of(type="hpt", **change)
