import pytest

from fst_core.fast.frontier import instance_fronts, top_of_frontier


def test_fronts_leave_out_anchors_that_tell_nothing():
    scores = [[0.0, 1.0, 1.0], [0.0, 1.0, 0.5]]
    assert instance_fronts(scores) == {2: {0}}


def test_a_specialist_beats_a_dominated_candidate_with_the_same_mean():
    generalist, specialist, dominated = [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]
    assert top_of_frontier([generalist, dominated, specialist], 2) == [0, 2]


def test_slots_are_ordered_by_mean_then_anchors_led_then_age():
    scores = [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert top_of_frontier(scores, 3) == [1, 0, 2]
    assert top_of_frontier([[0, 0, 1, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 1]], 3) == [1, 0, 2]


def test_free_slots_take_the_best_of_the_others():
    best, poor, middling = [1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0]
    assert top_of_frontier([poor, best, middling], 2) == [1, 2]
    assert top_of_frontier([poor, best, middling], 3) == [1, 2, 0]


def test_fewer_candidates_than_slots_repeat_best_first():
    assert top_of_frontier([[0.0], [1.0], [0.5]], 5) == [1, 2, 0, 1, 2]
    assert top_of_frontier([[0.3, 0.1]], 4) == [0, 0, 0, 0]


def test_ties_go_to_the_older_candidate():
    assert top_of_frontier([[0, 0], [0, 0], [0, 0]], 2) == [0, 1]
    assert top_of_frontier([[0.5, 0.5], [0.5, 0.5]], 1) == [0]


def test_an_empty_frontier_is_an_error():
    with pytest.raises(ValueError, match="at least one candidate"):
        top_of_frontier([], 2)
