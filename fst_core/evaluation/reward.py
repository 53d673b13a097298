"""Reward, divergence from the base model and length on held-out problems, under given contexts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fst_core.estimators.divergence import k1, k3
from fst_core.policy.base import Policy, TokenScores
from fst_core.records import Context, Problem, Rollout, StopReason, seed_of
from fst_core.rollouts import RollOut, messages_for

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measurements under one context; `rewards` is problems x samples, in [0, 1]."""

    context: Context
    metrics: Metrics
    rewards: tuple[tuple[float, ...], ...]
    rollouts: tuple[Rollout, ...]
    tasks: Mapping[str, Metrics] = field(default_factory=dict)
    """The same metrics over each environment's problems, where there are several."""


def evaluate(
    roll_out: RollOut,
    contexts: Sequence[Context],
    problems: Sequence[Problem],
    samples: int,
    seed: tuple[int | str, ...],
    scorer: Policy | None = None,
) -> list[Evaluation]:
    """Every context on every problem, `samples` rollouts each, in one engine call.

    All contexts see the same sampling seeds. `evaluation/reward` is mean@k and
    `evaluation/best_at_k` the mean over problems of the best of the k samples. With a scorer, means
    over completion tokens in nats: `evaluation/kl` (estimator k1: log pi - log pi_base of the
    sampled token), `kl_k3`, `kl_exact` (over the full vocabulary) and `entropy`.

    Args:
        seed: what sampling seeds are made of, beside a rollout's index.
        scorer: the policy whose divergence from its base is measured; None measures none.
    """
    pairs = [(c, p) for c in contexts for p in problems for _ in range(samples)]
    per_context = len(problems) * samples
    seeds = [seed_of(*seed, i % per_context) for i in range(len(pairs))]
    rollouts = roll_out(pairs, seeds)
    return [
        _under_context(
            context, problems, rollouts[i * per_context : (i + 1) * per_context], samples, scorer
        )
        for i, context in enumerate(contexts)
    ]


def _under_context(
    context: Context,
    problems: Sequence[Problem],
    rollouts: Sequence[Rollout],
    samples: int,
    scorer: Policy | None,
) -> Evaluation:
    scores = _score(scorer, context, problems, rollouts, samples) if scorer else []
    rewards_PS = np.array([r.verdict.reward for r in rollouts]).reshape(len(problems), samples)

    def metrics_of(chosen_P: Sequence[int]) -> Metrics:
        rows = [p * samples + s for p in chosen_P for s in range(samples)]
        kept = [scores[i] for i in rows] if scorer else []
        return summarise(rewards_PS[list(chosen_P)], [rollouts[i] for i in rows], kept)

    by_task: dict[str, list[int]] = {}
    for index, problem in enumerate(problems):
        by_task.setdefault(problem.environment, []).append(index)
    tasks = {name: metrics_of(mine) for name, mine in by_task.items()} if len(by_task) > 1 else {}
    rows = tuple(tuple(float(x) for x in row) for row in rewards_PS)
    return Evaluation(context, metrics_of(range(len(problems))), rows, tuple(rollouts), tasks)


def _score(
    scorer: Policy,
    context: Context,
    problems: Sequence[Problem],
    rollouts: Sequence[Rollout],
    samples: int,
) -> list[TokenScores]:
    prompts = scorer.prompts_of(
        [messages_for(context, p) for p in problems for _ in range(samples)]
    )
    return scorer.score(prompts, [r.completion for r in rollouts])


def summarise(
    rewards_PS: np.ndarray, rollouts: Sequence[Rollout], scores: Sequence[TokenScores] = ()
) -> Metrics:
    """Mean@k, mean best of k, mean length (tokens), share truncated; divergence from scores."""
    lengths = [len(r.completion.token_ids) for r in rollouts]
    truncated = [r.completion.stop_reason is StopReason.LENGTH for r in rollouts]
    return {
        "evaluation/reward": float(rewards_PS.mean()),
        "evaluation/best_at_k": float(rewards_PS.max(axis=1).mean()),
        "evaluation/length_tokens": float(np.mean(lengths)),
        "evaluation/truncated_frac": float(np.mean(truncated)),
        **(_divergence(scores) if scores else {}),
    }


def _divergence(scores: Sequence[TokenScores]) -> Metrics:
    def tokens(name: str) -> np.ndarray:
        return np.array([value for score in scores for value in getattr(score, name)])

    differences = tokens("logp") - tokens("base_logp")
    return {
        "evaluation/kl": k1(differences),
        "evaluation/kl_k3": k3(differences),
        "evaluation/kl_exact": float(tokens("kl").mean()),
        "evaluation/entropy": float(tokens("entropy").mean()),
    }
