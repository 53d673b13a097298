"""What is shown of two values and their difference can be subtracted by its reader."""

import re
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fst_core.report import make_report
from fst_core.report.changes import GAINED, LOST, before_after
from fst_core.report.headline import findings
from fst_core.report.statistics import statistic
from fst_core.report.subtraction import subtraction
from tests.journals import synthetic_study
from tests.unit.test_report_headline import summary


def number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


@pytest.mark.parametrize("scale", [0.001, 1.0, 120.0, 5000.0])
@pytest.mark.parametrize("digits", [0, 1, 3])
def test_the_texts_subtract_whatever_the_values_are(scale: float, digits: int) -> None:
    random = Random(f"{scale} {digits}")
    for _ in range(500):
        first, second = (random.choice([random.random(), random.randint(0, 9) / 3]) * scale
                         for _ in range(2))  # fmt: skip
        told = subtraction(first, second, first - second, digits)
        assert told.exact
        assert number(told.minuend) - number(told.subtrahend) == number(told.difference)
        unit = 10.0 ** -len(told.difference.partition(".")[2])
        assert abs(float(number(told.difference)) - (first - second)) <= 1.1 * unit


@pytest.mark.parametrize(
    ("values", "digits", "texts"),
    [
        ((0.45, 0.13, 0.32), 1, ("0.45", "0.13", "0.32")),  # 0.5 - 0.1 is not 0.3
        ((0.5, 0.25, 0.25), 3, ("0.500", "0.250", "0.250")),
        ((0.0004, 0.0001, 0.0003), 3, ("0.0004", "0.0001", "0.0003")),  # not equal, so not 0
        ((2 / 3, 1 / 3, 1 / 3), 3, ("0.667", "0.333", "0.334")),
        ((15360.0, 3052.0, 12308.0), 0, ("15,360", "3,052", "12,308")),
        ((0.1, 0.3, -0.2), 3, ("0.100", "0.300", "-0.200")),
        ((0.3, 0.3 + 1e-12, -1e-12), 3, ("0.300", "0.300", "0.000")),
    ],
)
def test_as_many_decimals_as_it_takes(values: Any, digits: int, texts: tuple[str, ...]) -> None:
    told = subtraction(*values, digits)
    assert (told.minuend, told.subtrahend, told.difference) == texts


def test_a_difference_taken_seed_by_seed_is_called_so() -> None:
    assert not subtraction(0.6, 0.4, 0.1).exact
    found = {"arm": 0.6, "rl": 0.4, "difference": 0.1, "pairs": 2, "interval": [0.0, 0.2]}
    (_, sentence) = findings(summary({**found, "certain": False, "seeds": {"0": 0.0}}), "fst")
    assert "(difference seed by seed 0.100; " in sentence


@pytest.mark.parametrize(("arm", "rl"), [(0.0446, 0.0125), (0.0124, 0.0446), (0.5, 0.1234)])
def test_a_sentence_can_be_subtracted(arm: float, rl: float) -> None:
    found = {"arm": arm, "rl": rl, "difference": arm - rl, "pairs": 2, "interval": [0.0, 1.0]}
    found |= {"certain": False, "seeds": {"0": arm - rl}}
    (_, sentence) = findings(summary(found), "fst")
    texts = re.search(r"fst (\S+) against rl's (\S+) .*\(difference ([^; ]+);", sentence)
    assert texts and number(texts[1]) - number(texts[2]) == number(texts[3])


def test_every_row_against_rl_can_be_subtracted_unless_it_says_otherwise(tmp_path: Path) -> None:
    report = make_report(synthetic_study(tmp_path / "runs", seeds=(0, 1, 2)), tmp_path / "out")
    page = report.paths["report"].read_text()
    rows = page[page.index("Every arm against rl") :].partition("</table>")[0].split("<tr>")[2:]
    cells = [re.findall(r"<td>(.*?)</td>", row)[2:5] for row in rows]
    by_seed = [row for row in cells if "seed by seed" in row[2]]
    assert len(by_seed) < len(cells)
    for row in cells:
        if row not in by_seed and "–" not in row:
            assert number(row[0]) - number(row[1]) == number(row[2])


@pytest.mark.parametrize("sign", [GAINED, LOST])
@pytest.mark.parametrize("prefix", ["", "best_"])
def test_a_change_on_the_page_can_be_subtracted(sign: int, prefix: str) -> None:
    before, after = 0.1235, 0.4562
    difference = statistic({0: sign * (after - before)})
    names = ("before", "after", "difference")
    values = (statistic({0: before}), statistic({0: after}), difference)
    found = {f"{prefix}{name}": value for name, value in zip(names, values, strict=True)}
    shown = [number(cell.split("<")[0]) for cell in before_after(found, sign, prefix)]
    assert sign * (shown[1] - shown[0]) == shown[2]
