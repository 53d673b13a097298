"""Which candidates make the next population: the top K of the per-instance Pareto frontier."""

from collections import Counter
from collections.abc import Sequence

from gepa.gepa_utils import remove_dominated_programs


def instance_fronts(scores: Sequence[Sequence[float]]) -> dict[int, set[int]]:
    """Per anchor, the candidates with its best score; only anchors that tell candidates apart.

    An anchor on which every candidate ties, such as one that nobody solves, has all of them on its
    front and would count in everyone's favour; it is left out.

    Args:
        scores: one row per candidate, one column per anchor; in [0, 1], higher is better.
    """
    fronts: dict[int, set[int]] = {}
    for anchor, column in enumerate(zip(*scores, strict=True)):
        best = max(column)
        front = {index for index, score in enumerate(column) if score == best}
        if len(front) < len(column):
            fronts[anchor] = front
    return fronts


def top_of_frontier(scores: Sequence[Sequence[float]], size: int) -> list[int]:
    """The candidates that fill `size` slots, best first.

    Candidates left on the frontier once dominated ones are removed come first, by mean score, then
    by the number of anchors they lead, then by age; free slots take the others by mean score, then
    age. Fewer candidates than slots repeat cyclically, best first.

    Args:
        scores: one row per candidate (oldest first), one column per anchor; higher is better.
        size: K, the number of slots.
    Returns:
        `size` row indices, ordered by mean score, anchors led, age.
    Raises:
        ValueError: if there is no candidate.
    """
    if not scores:
        raise ValueError("a frontier needs at least one candidate")
    means = [sum(row) / len(row) for row in scores]
    fronts = remove_dominated_programs(instance_fronts(scores), scores=means)
    led = Counter(index for front in fronts.values() for index in front)

    def rank(index: int) -> tuple[float, int, int]:
        return -means[index], -led[index], index

    survivors = sorted(led, key=rank)
    others = sorted(set(range(len(scores))) - led.keys(), key=rank)
    chosen = sorted((survivors + others)[:size], key=rank)
    return [chosen[slot % len(chosen)] for slot in range(size)]
