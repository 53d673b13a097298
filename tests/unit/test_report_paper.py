"""The paper's figures beside the study's, and a word where the study has none."""

from collections.abc import Sequence
from pathlib import Path

from fst_core.report.paper import section
from tests.journals import end, evaluate, quadrant, slow_step
from tests.unit.section_studies import answer, begin, read_study, told


def run(root: Path, arm: str, rewards: Sequence[float], kl: float) -> None:
    writer = begin(root, arm, 0, like=arm)
    context = "best" if arm == "fst" else "seed"
    for step, reward in enumerate(rewards):
        if step:
            slow_step(writer, step, 0.0, 0.0)
        evaluate(writer, step, context, reward, kl * reward)
    quadrant(writer, len(rewards) - 1, "seed", 0.02)
    end(writer, len(rewards) - 1)


def rows(root: Path) -> dict[str, str]:
    return {name: ours for name, _, ours in answer(section, root).summary["rows"]}


def test_ours_beside_theirs(tmp_path: Path) -> None:
    run(tmp_path, "rl", [0.0, 0.0, 0.4, 0.8], kl=0.5)
    run(tmp_path, "fst", [0.0, 0.8, 0.8, 0.8], kl=0.25)
    found = rows(tmp_path)
    assert found["steps to rl's running peak"] == "3.0 times fewer, on the mean curves"
    assert found["KL to base saved at matched reward"] == "50% (mean over 1 seed)"
    assert found["asymptote A"] == "fst not identifiable, rl not identifiable"
    assert found["step at which reward leaves zero"] == "fst at step 1 against rl at step 2"
    quadrants = "reward in %: base / weights only / contexts only / both"
    assert found[quadrants] == "2.0 / not measured / not measured / 80.0"
    text = told(answer(section, tmp_path))
    assert "HoVer-hard 2.0 / 11.6 / 10.6 / 21.2" in text and "another model" in text


def test_undefined_and_not_reached_are_words(tmp_path: Path) -> None:
    run(tmp_path, "rl", [0.5, 0.9], kl=0.5)
    run(tmp_path, "fst", [0.5, 0.1], kl=0.5)
    found = rows(tmp_path)
    assert found["steps to rl's running peak"] == "not reached"
    assert found["KL to base saved at matched reward"].startswith("undefined: No reward above")
    assert found["step at which reward leaves zero"] == "neither starts at zero"


def test_without_rl_or_without_a_challenger_nothing_is_compared(tmp_path: Path) -> None:
    run(tmp_path / "a", "fst", [0.0, 0.5], kl=0.1)
    run(tmp_path / "b", "rl", [0.0, 0.5], kl=0.1)
    assert section(read_study(tmp_path / "a")) is None
    assert section(read_study(tmp_path / "b")) is None
