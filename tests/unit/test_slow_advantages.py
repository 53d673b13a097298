"""Advantages of eight rollouts, two problems of four under two contexts, by hand."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from fst_core.config import PolicyGradient
from fst_core.slow.advantages import advantages, mixed
from tests.runs import tiny_config

REWARDS = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5])
"""Of problem 1 under contexts 1, 1, 2, 2, then of problem 2 likewise."""


def settings(**given: Any) -> PolicyGradient:
    return PolicyGradient(type="any", **given)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("problem", [0.25, -0.75, 0.25, 0.25, 0, 0, 0, 0]),
        ("context", [0.5, -0.5, 0, 0, 0, 0, 0, 0]),
        ("batch", [0.375, -0.625, 0.375, 0.375, -0.125, -0.125, -0.125, -0.125]),
        ("leave_one_out", [1 / 3, -1, 1 / 3, 1 / 3, 0, 0, 0, 0]),
    ],
)
def test_reward_minus_each_baseline(baseline: str, expected: list[float]) -> None:
    given = settings(baseline=baseline, scale_by_std=False)
    found = advantages(REWARDS, given, group=4, contexts=2)
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        # Bessel's: sqrt((3 x 0.0625 + 0.5625) / 3) = 0.5
        ("problem", [0.25 / 0.5001, -0.75 / 0.5001, 0.25 / 0.5001, 0.25 / 0.5001, 0, 0, 0, 0]),
        # sqrt((0.25 + 0.25) / 1)
        ("context", [0.5 / 0.707207, -0.5 / 0.707207, 0, 0, 0, 0, 0, 0]),
        # sqrt((3 x 0.375^2 + 0.625^2 + 4 x 0.125^2) / 7) = sqrt(0.875 / 7) = 0.353553
        ("batch", [x / 0.353653 for x in (0.375, -0.625, 0.375, 0.375, *[-0.125] * 4)]),
    ],
)
def test_over_the_standard_deviation_of_its_own_block(baseline: str, expected: list[float]) -> None:
    found = advantages(REWARDS, settings(baseline=baseline), group=4, contexts=2)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-6)


def test_over_the_standard_deviation_of_the_step_s_advantages() -> None:
    """sqrt((3 x 0.0625 + 0.5625) / 7) = 0.327327: equal groups count among the seven."""
    found = advantages(REWARDS, settings(std_over="batch"), group=4, contexts=2)
    expected = torch.tensor([0.25, -0.75, 0.25, 0.25, 0, 0, 0, 0]) / 0.327427
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("problem", [True] * 4 + [False] * 4),
        ("leave_one_out", [True] * 4 + [False] * 4),
        ("context", [True] * 2 + [False] * 6),
        ("batch", [True] * 8),
    ],
)
def test_what_has_no_signal_is_told_by_the_baseline_s_own_blocks(
    baseline: str, expected: list[bool]
) -> None:
    found = mixed(REWARDS, settings(baseline=baseline), group=4, contexts=2)
    assert found.tolist() == expected


def test_rewards_that_are_equal_are_so_whatever_their_mean_rounds_to() -> None:
    rewards = torch.full((12,), 0.1)
    assert not mixed(rewards, settings(), group=12, contexts=2).any()


def test_a_baseline_over_one_rollout_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match=r"raise loop\.group_size, lower contexts\.size"):
        tiny_config(slow={"baseline": "context"}, contexts={"size": 4})
    tiny_config(slow={"baseline": "context"}, contexts={"size": 2})
