"""The 2 x 2 by hand: cells, effects, their interval over problems, and what older journals lack."""

from pathlib import Path

import pytest

from fst_core.report.quadrants import section
from tests.journals import JournalWriter, end, evaluate, quadrant
from tests.unit.section_studies import answer, begin, read_study, told


def rows(*values: float) -> list[list[float]]:
    return [[value, value] for value in values]


def fst(root: Path, seed: int = 0, quadrants: bool = True) -> JournalWriter:
    """base .1 -> contexts .3, weights .4, both .8, on two problems."""
    writer = begin(root, "fst", seed, like="fst")
    evaluate(writer, 0, "seed", 0.2, rewards=rows(0.2, 0.2))
    evaluate(writer, 2, "seed", 0.4, rewards=rows(0.3, 0.5))
    evaluate(writer, 2, "best", 0.8, rewards=rows(0.7, 0.9))
    if quadrants:
        quadrant(writer, 2, "seed", 0.1, rewards=rows(0.1, 0.1))
        quadrant(writer, 2, "best", 0.3, rewards=rows(0.2, 0.4))
    end(writer, 2)
    return writer


def means(items) -> dict[str, float]:
    return {name: item["mean"] for name, item in items.items()}


def test_cells_and_effects_by_hand(tmp_path: Path) -> None:
    fst(tmp_path)
    found = answer(section, tmp_path)
    arm = found.summary["arms"]["fst"]
    assert means(arm["cells"]) == pytest.approx(
        {"base x seed": 0.1, "base x best": 0.3, "trained x seed": 0.4, "trained x best": 0.8}
    )
    assert means(arm["effects"]) == pytest.approx(
        {"weights only": 0.3, "contexts only": 0.2, "both": 0.7, "interaction": 0.2}
    )
    # problem by problem the interaction is .7 - .3 - .2 + .1 = .3 and .9 - .5 - .4 + .1 = .1
    assert arm["effects"]["interaction"]["over_problems"] == pytest.approx([0.1, 0.3])
    said = told(found)
    assert "weights only +0.300, contexts only +0.200, both +0.700, interaction +0.200" in said
    assert "the largest part in the mean is that of the weights alone" in said


def test_arms_with_one_channel_have_only_its_cells(tmp_path: Path) -> None:
    rl = begin(tmp_path, "rl", 0)
    evaluate(rl, 0, "seed", 0.2)
    evaluate(rl, 2, "seed", 0.6)
    quadrant(rl, 2, "seed", 0.1)
    end(rl, 2)
    gepa = begin(tmp_path, "gepa", 0, like="gepa")
    evaluate(gepa, 2, "seed", 0.1)
    evaluate(gepa, 2, "best", 0.4)
    end(gepa, 2)
    arms = answer(section, tmp_path).summary["arms"]
    assert means(arms["rl"]["cells"]) == {"base x seed": 0.1, "trained x seed": 0.6}
    assert means(arms["rl"]["effects"]) == pytest.approx({"weights only": 0.5})
    assert means(arms["gepa"]["cells"]) == {"base x seed": 0.1, "base x best": 0.4}
    assert means(arms["gepa"]["effects"]) == pytest.approx({"contexts only": 0.3})


def test_older_journals_fall_back_to_step_0_and_say_what_is_missing(tmp_path: Path) -> None:
    fst(tmp_path, quadrants=False)
    found = answer(section, tmp_path)
    cells = found.summary["arms"]["fst"]["cells"]
    assert cells["base x seed"]["mean"] == 0.2 and "base x best" not in cells
    assert "fst: base x seed is the evaluation at step 0" in told(found)
    assert "fst: base x best was not measured." in told(found)


def test_a_run_from_other_weights_has_no_base_cell_without_quadrants(tmp_path: Path) -> None:
    writer = begin(tmp_path, "rl", 0, start_from="demo/rl-s0")
    evaluate(writer, 0, "seed", 0.2)
    evaluate(writer, 2, "seed", 0.6)
    end(writer, 2)
    found = answer(section, tmp_path)
    assert "base x seed" not in found.summary["arms"]["rl"]["cells"]
    assert "no gain can be told" in told(found)


def test_a_cell_that_is_not_a_number_in_one_seed_is_told(tmp_path: Path) -> None:
    fst(tmp_path, 0)
    writer = begin(tmp_path, "fst", 1, like="fst")
    nan = float("nan")
    evaluate(writer, 2, "seed", nan, rewards=rows(nan, nan))
    evaluate(writer, 2, "best", 0.8)
    end(writer, 2)
    found = answer(section, tmp_path)
    assert "fst: trained x seed has a finite reward in 1 of 2 runs." in told(found)
    assert found.summary["arms"]["fst"]["effects"]["weights only"]["n"] == 1


def test_a_study_of_base_alone_has_no_quadrants(tmp_path: Path) -> None:
    writer = begin(tmp_path, "base", 0, like="base")
    evaluate(writer, 0, "seed", 0.2)
    end(writer, 0)
    assert section(read_study(tmp_path)) is None
