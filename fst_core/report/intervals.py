"""Means and intervals as text and as table cells: one rule for the page and for the terminal."""

from collections.abc import Sequence
from typing import Any

from fst_core.report.markup import Markup, join, number_text, tag
from fst_core.report.statistics import FEWEST_SEEDS, without_spread
from fst_core.report.subtraction import subtraction


def with_interval(found: Any, digits: int = 3) -> str:
    """ "0.812 [0.700, 0.924]"; with two seeds "0.812 (0.800, 0.824)", for a t-interval over two
    is twelve standard errors wide and says nothing; with one "0.812 (1 seed)"; where all seeds
    have the same value "0.812 (all 3 equal)", for no spread is no certainty.

    Args:
        found: a statistic over seeds, as `report.statistics.statistic` makes it.
    """
    mean = number_text(found["mean"], digits)
    values = [value for value in found["seeds"].values() if value is not None]
    if len(values) == 1:
        return f"{mean} (1 seed)"
    if found["interval"] is None:
        return mean
    if without_spread(found["interval"]):
        return f"{mean} (all {len(values)} equal)"
    if len(values) < FEWEST_SEEDS:
        return f"{mean} ({', '.join(number_text(value, digits) for value in values)})"
    return f"{mean} {span_text(found['interval'], digits)}"


def estimate_cell(found: Any, digits: int = 3, shown: str = "") -> Markup:
    """`with_interval` as a table's cell, the interval below the mean, or below what is `shown`."""
    mean, *below = with_interval(found, digits).split(" ", 1)
    return join(shown or mean, *(tag("div", text, class_="soft span") for text in below))


def subtracted_cells(minuend: Any, subtrahend: Any, difference: Any) -> list[Markup]:
    """Cells of two statistics and their difference, whose means read as `subtraction` shows them.

    Args:
        minuend: a statistic over seeds, as the others.
        subtrahend: what is taken from it.
        difference: taken seed by seed.
    """
    told = subtraction(minuend["mean"], subtrahend["mean"], difference["mean"])
    return [
        estimate_cell(minuend, told.digits, told.minuend),
        estimate_cell(subtrahend, told.digits, told.subtrahend),
        estimate_cell(difference, told.digits, told.difference),
    ]


def span_text(bounds: Sequence[float] | None, digits: int = 3) -> str:
    """An interval as "[0.100, 0.200]"; – where it is undefined, "no spread" where it is a point."""
    if bounds is None:
        return "–"
    if without_spread(bounds):
        return "no spread"
    return f"[{', '.join(number_text(bound, digits) for bound in bounds)}]"
