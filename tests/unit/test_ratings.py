"""TrueSkill against published and hand-computed values, and the choice of contexts by rating."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fst_core.fast.ratings import (
    DRAW_MARGIN,
    Rating,
    choose,
    of_crossover,
    of_mutation,
    rate,
    wins,
)

FRESH = Rating()
STRATEGIES = ("uniform", "ucb", "lucb", "softmax")


def test_the_draw_margin_is_that_of_ten_percent_draws() -> None:
    assert pytest.approx(0.74047, abs=1e-5) == DRAW_MARGIN


@pytest.mark.parametrize(
    ("before", "scores", "after", "precision"),
    [
        ([FRESH] * 2, (1, 0), [(29.3958, 7.1715), (20.6042, 7.1715)], 5e-5),
        ([FRESH] * 2, (1, 1), [(25, 6.4575), (25, 6.4575)], 5e-5),
        ([Rating(30, 5), Rating(20, 4)], (1, 1), [(26.7061, 4.0951), (22.1084, 3.5542)], 5e-5),
        (
            [FRESH] * 3,
            (0.9, 0.5, 0.1),
            [(31.6753, 6.6560), (25.0, 6.2079), (18.3246, 6.6560)],
            5e-5,
        ),
        ([FRESH] * 3, (1, 1, 0), [(27.552, 5.974), (27.557, 5.972), (19.891, 6.735)], 5e-4),
        ([FRESH] * 3, (0, 0, 0), [(25, 5.699), (25, 5.695), (25, 5.699)], 5e-4),
    ],
)
def test_ratings_after_a_match(before, scores, after, precision) -> None:
    for rating, (mu, sigma) in zip(rate(before, scores), after, strict=True):
        assert rating.mu == pytest.approx(mu, abs=precision)
        assert rating.sigma == pytest.approx(sigma, abs=precision)


def test_the_order_of_the_contexts_does_not_matter() -> None:
    first, second, third = rate([FRESH] * 3, (0.9, 0.5, 0.1))
    assert rate([FRESH] * 3, (0.1, 0.9, 0.5)) == [third, first, second]


def test_scores_within_a_hundredth_are_tied_and_ties_chain() -> None:
    near = rate([FRESH] * 3, (0.500, 0.492, 0.484))
    assert near == rate([FRESH] * 3, (0.5, 0.5, 0.5))
    assert rate([FRESH] * 2, (0.5, 0.48)) == rate([FRESH] * 2, (1, 0))


def test_one_context_alone_keeps_its_rating() -> None:
    assert rate([Rating(31, 3)], (0.2,)) == [Rating(31, 3)]
    assert rate([], ()) == []


@given(
    st.lists(
        st.tuples(st.floats(-80, 120), st.floats(0.05, 12), st.sampled_from((0.0, 0.4, 0.8))),
        min_size=2,
        max_size=6,
    )
)
def test_a_match_never_makes_a_rating_less_certain_or_infinite(members) -> None:
    before = [Rating(mu, sigma) for mu, sigma, _ in members]
    after = rate(before, [score for _, _, score in members])
    for old, new in zip(before, after, strict=True):
        assert abs(new.mu) < 1e4
        assert 0 < new.sigma <= (old.sigma**2 + (25 / 300) ** 2) ** 0.5 + 1e-9


def test_children_inherit_ratings() -> None:
    assert of_mutation(Rating(28, 3)) == Rating(28, pytest.approx(10**0.5))
    child = of_crossover([Rating(30, 2), Rating(20, 4)])
    assert child.mu == pytest.approx((30 / 4 + 20 / 16) / (1 / 4 + 1 / 16))  # 28
    assert child.sigma == pytest.approx((3.2 + 1) ** 0.5)


# u = mu + 2 sigma: 31, 34, 44, 29, 33;  l = mu - 2 sigma: 29, 22, 4, 21, 17
WINDOW = [Rating(30, 0.5), Rating(28, 3), Rating(24, 10), Rating(25, 2), Rating(25, 4)]


@pytest.mark.parametrize(
    ("strategy", "size", "chosen"),
    [
        ("ucb", 3, [2, 1, 4]),
        ("ucb", 2, [2, 4]),  # the newest takes the last place
        ("ucb", 1, [2]),
        ("lucb", 4, [0, 2, 1, 4]),
        ("lucb", 3, [0, 2, 4]),
        ("lucb", 1, [0]),
        ("lucb", 7, [0, 2, 1, 4, 3, 4, 4]),  # filled with the newest
        ("uniform", 1, [4]),
    ],
)
def test_choice_by_known_ratings(strategy, size, chosen) -> None:
    assert choose(WINDOW, size, strategy, random.Random(0)) == chosen


def test_uniform_draws_the_newest_and_others_once() -> None:
    drawn = [choose(WINDOW, 3, "uniform", random.Random(seed)) for seed in range(400)]
    assert all(row[0] == 4 and len(set(row)) == 3 for row in drawn)
    counts = Counter(n for row in drawn for n in row[1:])
    assert set(counts) == {0, 1, 2, 3} and min(counts.values()) > 150


def test_uniform_repeats_where_the_window_is_small() -> None:
    drawn = [choose(WINDOW[:2], 4, "uniform", random.Random(seed)) for seed in range(50)]
    assert all(len(row) == 4 for row in drawn) and {n for row in drawn for n in row} == {0, 1}
    assert len({tuple(row) for row in drawn}) > 5
    assert sorted(choose(WINDOW, 5, "uniform", random.Random(1))) == [0, 1, 2, 3, 4]


def test_softmax_prefers_high_bounds_and_forces_the_newest_in() -> None:
    drawn = [choose(WINDOW, 2, "softmax", random.Random(seed)) for seed in range(2000)]
    assert all(4 in row and len(set(row)) == 2 for row in drawn)
    first = Counter(choose(WINDOW, 1, "softmax", random.Random(seed))[0] for seed in range(4000))
    weights = [2.718281828 ** ((u - 44) / 44) for u in (31, 34, 44, 29, 33)]
    for n, weight in enumerate(weights):
        assert first[n] / 4000 == pytest.approx(weight / sum(weights), abs=0.03)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_single_context_fills_every_slot(strategy) -> None:
    assert choose([FRESH], 3, strategy, random.Random(0)) == [0, 0, 0]


def test_a_problem_is_won_alone_or_by_nobody() -> None:
    means = {
        "a": {"p": 1.0, "q": 0.5, "r": 0.0, "s": 0.2, "alone": 1.0},
        "b": {"p": 0.5, "q": 0.5, "r": 0.0, "s": 0.205},
        "c": {"p": 0.0, "q": 0.25, "r": 0.75, "s": 0.0},
    }
    assert wins(means) == {"a": ["p"], "b": [], "c": ["r"]}
