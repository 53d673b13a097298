"""Reward, KL to the base model and length on held-out problems, under given contexts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fst_core.policy.base import Policy
from fst_core.records import Context, Problem, Rollout, StopReason, seed_of
from fst_core.rollouts import RollOut, messages_for


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measurements under one context; `rewards` is problems x samples, in [0, 1]."""

    context: Context
    metrics: dict[str, float]
    rewards: tuple[tuple[float, ...], ...]
    rollouts: tuple[Rollout, ...]


def evaluate(
    policy: Policy,
    roll_out: RollOut,
    contexts: Sequence[Context],
    problems: Sequence[Problem],
    samples: int,
    run_seed: int,
    step: int,
    kl: bool,
) -> list[Evaluation]:
    """Every context on every problem, `samples` rollouts each, in one engine call.

    All contexts see the same sampling seeds. `evaluation/reward` is mean@k and
    `evaluation/best_at_k` the mean over problems of the best of the k samples; `evaluation/kl` is
    the mean over completion tokens of log pi - log pi_base (estimator k1, nats per token).
    """
    pairs = [(c, p) for c in contexts for p in problems for _ in range(samples)]
    per_context = len(problems) * samples
    seeds = [seed_of(run_seed, "evaluation", step, i % per_context) for i in range(len(pairs))]
    rollouts = roll_out(pairs, seeds)
    results = []
    for index, context in enumerate(contexts):
        part = rollouts[index * per_context : (index + 1) * per_context]
        rewards_PS = np.array([r.verdict.reward for r in part]).reshape(len(problems), samples)
        metrics = summarise(rewards_PS, part)
        if kl:
            metrics["evaluation/kl"] = mean_kl(policy, context, problems, part, samples)
        rows = tuple(tuple(float(x) for x in row) for row in rewards_PS)
        results.append(Evaluation(context, metrics, rows, tuple(part)))
    return results


def summarise(rewards_PS: np.ndarray, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean@k, mean best of k, mean length (tokens) and share of truncated completions."""
    lengths = [len(r.completion.token_ids) for r in rollouts]
    truncated = [r.completion.stop_reason is StopReason.LENGTH for r in rollouts]
    return {
        "evaluation/reward": float(rewards_PS.mean()),
        "evaluation/best_at_k": float(rewards_PS.max(axis=1).mean()),
        "evaluation/length_tokens": float(np.mean(lengths)),
        "evaluation/truncated_frac": float(np.mean(truncated)),
    }


def mean_kl(
    policy: Policy,
    context: Context,
    problems: Sequence[Problem],
    rollouts: Sequence[Rollout],
    samples: int,
) -> float:
    """KL(pi || pi_base) in nats per token on the policy's own completions (estimator k1)."""
    prompts = [
        policy.prompt_ids(messages_for(context, p)) for p in problems for _ in range(samples)
    ]
    differences = policy.kl_to_base(prompts, [r.completion for r in rollouts])
    tokens = [value for row in differences for value in row]
    return float(np.mean(tokens))
