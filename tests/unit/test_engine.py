"""The transformers engine on the tiny policy: exact padding, seeded draws, honest log-probs."""

import math

import pytest
import torch

from fst_core.config import TinyPolicy
from fst_core.estimators.divergence import entropy, exact_kl
from fst_core.policy import language_model
from fst_core.policy.base import ContextTooLong, Sampling
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.noise import gumbel, seed_tensor
from fst_core.records import StopReason


@pytest.fixture(scope="module")
def policy() -> LanguageModelPolicy:
    torch.set_num_threads(1)
    return LanguageModelPolicy(TinyPolicy())


def prompt(policy: LanguageModelPolicy, system: str, user: str = "Say bab.") -> list[int]:
    chat = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return policy.prompt_ids(chat)


def test_same_call_same_completions(policy: LanguageModelPolicy) -> None:
    prompts = [prompt(policy, "Be brief."), prompt(policy, "Use capital letters. Be brief.")] * 4
    assert policy.generate(prompts, range(8)) == policy.generate(prompts, range(8))


def test_draws_do_not_depend_on_neighbours(policy: LanguageModelPolicy) -> None:
    short, long = prompt(policy, "Be brief."), prompt(policy, "Use capital letters. " * 6)
    alone = policy.generate([short], [7])[0]
    crowd = policy.generate([long, short, long], [1, 7, 2])[1]
    assert alone.token_ids == crowd.token_ids
    assert alone.logprobs == pytest.approx(crowd.logprobs, abs=1e-5)


def test_different_seeds_differ(policy: LanguageModelPolicy) -> None:
    done = policy.generate([prompt(policy, "Be brief.")] * 64, range(64))
    assert len({c.token_ids for c in done}) > 4


def test_log_probabilities_are_those_of_a_plain_forward_pass(policy: LanguageModelPolicy) -> None:
    prompts = [prompt(policy, "Be brief."), prompt(policy, "Use capital letters. " * 4)]
    for row, done in zip(prompts, policy.generate(prompts, [3, 4]), strict=True):
        ids = torch.tensor([[*row, *done.token_ids]])
        logits = policy.model(input_ids=ids).logits[0, len(row) - 1 : -1].float()
        expected = logits.log_softmax(-1)[range(len(done.token_ids)), list(done.token_ids)]
        assert list(done.logprobs) == pytest.approx(expected.tolist(), abs=1e-4)


def test_stop_token_and_length_limit(policy: LanguageModelPolicy) -> None:
    rows = [prompt(policy, "Be brief.")] * 32
    free = policy.generate(rows, range(32), Sampling(1.0, 40))
    stopped = [c for c in free if c.stop_reason is StopReason.STOP]
    assert stopped and all(c.token_ids[-1] in policy.stop_ids for c in stopped)
    assert all(not policy.stop_ids & set(c.token_ids[:-1]) for c in free)
    cut = policy.generate(rows, range(32), Sampling(1.0, 2))
    assert {c.stop_reason for c in cut if len(c.token_ids) == 2} >= {StopReason.LENGTH}


def test_small_engine_batches_change_nothing(policy: LanguageModelPolicy) -> None:
    rows = [prompt(policy, "Be brief. " * n) for n in (1, 3, 2, 5, 4)]
    whole = policy.generate(rows, range(5))
    policy.engine.batch_size = 2  # type: ignore[attr-defined]
    try:
        parts = policy.generate(rows, range(5))
    finally:
        policy.engine.batch_size = policy.config.batch_size  # type: ignore[attr-defined]
    assert [c.token_ids for c in whole] == [c.token_ids for c in parts]


def test_scores_are_those_of_the_two_models_token_by_token(policy: LanguageModelPolicy) -> None:
    rows = [prompt(policy, "Be brief."), prompt(policy, "Use capital letters. " * 3)]
    done = policy.generate(rows, [1, 2])
    for score in policy.score(rows, done):
        assert score.logp == score.base_logp and set(score.kl) == {0.0}
    changed = LanguageModelPolicy(TinyPolicy())
    with torch.no_grad():
        for parameter in changed.model.parameters():
            parameter.mul_(1.02)
    for row, completion, score in zip(rows, done, changed.score(rows, done), strict=True):
        ids = torch.tensor([[*row, *completion.token_ids]])
        picked = range(len(completion.token_ids)), list(completion.token_ids)
        logp_TV, base_TV = (
            m(input_ids=ids).logits[0, len(row) - 1 : -1].log_softmax(-1).detach()
            for m in (changed.model, policy.model)
        )
        close = {"abs": 1e-4}
        assert score.logp == pytest.approx(logp_TV[picked].tolist(), **close)
        assert score.base_logp == pytest.approx(base_TV[picked].tolist(), **close)
        kl = [exact_kl(p, q) for p, q in zip(logp_TV.numpy(), base_TV.numpy(), strict=True)]
        assert score.kl == pytest.approx(kl, **close)
        assert score.entropy == pytest.approx(entropy(logp_TV.numpy()).tolist(), **close)
        assert max(score.kl) > 1e-4


def test_scoring_in_small_batches_changes_nothing(
    policy: LanguageModelPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [prompt(policy, "Be brief. " * n) for n in (1, 3, 2)]
    done = policy.generate(rows, range(3))
    whole = policy.score(rows, done)
    monkeypatch.setattr(language_model, "SCORING_LOGITS", 1)
    for one, other in zip(whole, policy.score(rows, done), strict=True):
        assert one.logp == pytest.approx(other.logp, abs=1e-5)
        assert one.kl == pytest.approx(other.kl, abs=1e-5)


def test_cudnn_attention_is_off(policy: LanguageModelPolicy) -> None:
    """Its bf16 backward gives NaN where a query row is wholly masked (docs/LOG.md)."""
    assert policy.model is not None
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_prompt_past_the_window_is_refused(policy: LanguageModelPolicy) -> None:
    with pytest.raises(ContextTooLong, match="passes the model's window of"):
        policy.generate([[5] * 600], [0])


def test_the_engine_counts_what_it_generates(policy: LanguageModelPolicy) -> None:
    before = policy.engine.rollouts, policy.engine.tokens, policy.engine.calls
    done = policy.generate([prompt(policy, "Be brief.")] * 5, range(5))
    tokens = sum(len(c.token_ids) for c in done)
    after = policy.engine.rollouts, policy.engine.tokens, policy.engine.calls
    assert [b - a for a, b in zip(before, after, strict=True)] == [5, tokens, 1]


def test_gumbel_noise_samples_the_softmax() -> None:
    """Chi-square of 40,000 draws against the exact distribution: 4 degrees of freedom."""
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    seeds = seed_tensor([seed * 2654435761 % 2**63 for seed in range(40_000)], torch.device("cpu"))
    drawn = (probabilities.log() + gumbel(seeds, 3, 5)).argmax(-1)
    counts = torch.bincount(drawn, minlength=5)
    expected = probabilities * 40_000
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 23.5  # p = 1e-4


def test_gumbel_noise_moments_and_independence() -> None:
    noise = gumbel(seed_tensor(range(200), torch.device("cpu")), 0, 500).double()
    assert float(noise.mean()) == pytest.approx(0.57722, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.05)
    other = gumbel(seed_tensor(range(200), torch.device("cpu")), 1, 500).double()
    correlation = torch.corrcoef(torch.stack([noise.flatten(), other.flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.02
    assert torch.isfinite(noise).all()
