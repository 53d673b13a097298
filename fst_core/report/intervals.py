"""Means and intervals as text and as table cells: one rule for the page and for the terminal."""

from collections.abc import Sequence
from typing import Any

from fst_core.report.markup import Markup, join, number_text, tag
from fst_core.report.summary import FEWEST_SEEDS


def with_interval(found: Any, digits: int = 3) -> str:
    """ "0.812 [0.700, 0.924]"; with two seeds "0.812 (0.800, 0.824)", for a t-interval over two
    is twelve standard errors wide and says nothing; with one "0.812 (1 seed)".

    Args:
        found: a statistic over seeds, as `report.summary.statistic` makes it.
    """
    mean = number_text(found["mean"], digits)
    values = [value for value in found["seeds"].values() if value is not None]
    if len(values) == 1:
        return f"{mean} (1 seed)"
    if found["interval"] is None:
        return mean
    if len(values) < FEWEST_SEEDS:
        return f"{mean} ({', '.join(number_text(value, digits) for value in values)})"
    return f"{mean} {span_text(found['interval'], digits)}"


def estimate_cell(found: Any) -> Markup:
    """`with_interval` as a table's cell, the interval below the mean."""
    mean, *below = with_interval(found).split(" ", 1)
    return join(mean, *(tag("div", text, class_="soft span") for text in below))


def span_text(bounds: Sequence[float] | None, digits: int = 3) -> str:
    """An interval as "[0.100, 0.200]"; – where it is undefined."""
    if bounds is None:
        return "–"
    return f"[{', '.join(number_text(bound, digits) for bound in bounds)}]"
