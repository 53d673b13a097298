"""Two values and their difference with as many decimals as it takes to subtract what is shown."""

import math
from dataclasses import dataclass, replace
from decimal import Decimal

from fst_core.report.markup import number_text
from fst_core.report.statistics import NEGLIGIBLE

MORE_DIGITS = 3
"""Most decimals beyond those asked for: 2/3 - 1/3 does not come out with any number of them."""


@dataclass(frozen=True, slots=True)
class Subtraction:
    """What is shown of two values and their difference."""

    minuend: str
    subtrahend: str
    difference: str
    digits: int
    """Decimals of the three."""
    exact: bool
    """Whether the difference is that of the two values: one taken seed by seed need not be."""


def subtraction(
    minuend: float | None, subtrahend: float | None, difference: float | None, digits: int = 3
) -> Subtraction:
    """Texts of which the third is the first less the second, as a reader subtracts them.

    The values are rounded to `digits` decimals, and to more where the difference of the rounded
    ones is not the rounded difference, or where a difference that is not 0 would read as 0. Where
    that takes more than `MORE_DIGITS`, the difference shown is that of the rounded values.
    """
    values = (minuend, subtrahend, difference)
    mine, theirs, left = (number_text(value, digits) for value in values)
    rough = Subtraction(mine, theirs, left, digits, exact=False)
    if minuend is None or subtrahend is None or difference is None:
        return rough
    if not math.isclose(minuend - subtrahend, difference, rel_tol=1e-9, abs_tol=NEGLIGIBLE):
        return rough
    known = (minuend, subtrahend, difference)
    finer = [_with(known, digits + more) for more in range(MORE_DIGITS + 1)]
    for told in (replace(rough, exact=True), *finer):
        if _comes_out(told, difference):
            return told
    shown = _number(finer[0].minuend) - _number(finer[0].subtrahend)
    return replace(finer[0], difference=_decimals(shown, digits))


def _with(values: tuple[float, float, float], digits: int) -> Subtraction:
    minuend, subtrahend, difference = (_decimals(value, digits) for value in values)
    return Subtraction(minuend, subtrahend, difference, digits, exact=True)


def _decimals(value: float | Decimal, digits: int) -> str:
    return f"{value:z,.{digits}f}"


def _number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _comes_out(told: Subtraction, difference: float) -> bool:
    shown = _number(told.difference)
    as_zero = shown == 0 and abs(difference) > NEGLIGIBLE
    return not as_zero and _number(told.minuend) - _number(told.subtrahend) == shown
