"""Transfer from easy to hard problems, with and without contexts."""

from collections.abc import Mapping
from pathlib import Path

from fst_core.report.transfer import section
from tests.journals import end, fast_phase, suite
from tests.unit.section_studies import answer, begin, read_study, told

HARD = "easy to hard"


def fst_run(root: Path, seed: int, after: Mapping[str, list[list[int]]]) -> None:
    """Reward .25 without a context and .5 under the seed before training, `after` at its end."""
    writer = begin(root, "fst", seed, like="fst")
    suite(writer, 0, "long sums", HARD, "none", 0.25, rewards=[[0, 0], [1, 0]])
    suite(writer, 0, "long sums", HARD, "seed", 0.5, rewards=[[0, 1], [1, 0]])
    fast_phase(writer, 0, 0, 0.5)
    for context, rewards in after.items():
        suite(writer, 8, "long sums", HARD, context, 0.0, rewards=rewards)
    end(writer, 8)


AFTER = {"none": [[1, 0], [1, 0]], "seed": [[1, 1], [1, 0]], "best": [[1, 1], [1, 1]]}


def test_other_axes_are_no_transfer(tmp_path: Path) -> None:
    suite(begin(tmp_path, "rl", 0), 0, "poems", "cross domain", "none", 0.5)
    assert section(read_study(tmp_path)) is None


def test_gains_by_hand(tmp_path: Path) -> None:
    fst_run(tmp_path, 0, AFTER)
    found = answer(section, tmp_path)
    gains = found.summary["gains"]["long sums"]
    assert list(gains) == ["none", "seed", "best"]
    assert gains["none"]["fst"]["difference"]["mean"] == 0.25
    assert gains["seed"]["fst"]["difference"]["mean"] == 0.25
    # before evolution the best context is the seed: .5 -> 1
    assert gains["best"]["fst"]["difference"]["mean"] == 0.5
    assert gains["best"]["fst"]["over_problems"] == [0.5, 0.5]
    added = found.summary["context_after"]["long sums"]["fst"]
    assert added["none"]["difference"]["mean"] == 0.5
    assert added["seed"]["difference"]["mean"] == 0.25
    assert "Gain = after - before" in told(found)


def test_missing_contexts_and_unfinished_runs(tmp_path: Path) -> None:
    fst_run(tmp_path, 0, AFTER)
    fst_run(tmp_path, 1, {"none": [[1, 1], [1, 1]]})  # died before the contexts were measured
    rl = begin(tmp_path, "rl", 0)
    suite(rl, 0, "long sums", HARD, "none", 0.25)
    found = answer(section, tmp_path)
    page = told(found)
    assert "Under the seed context: fst-s1 was not measured after training" in page
    assert "Without a context: rl-s0 was not measured after training" in page
    gains = found.summary["gains"]["long sums"]
    assert gains["none"]["fst"]["difference"]["seeds"] == {"0": 0.25, "1": 0.75}
    assert gains["seed"]["fst"]["difference"]["seeds"] == {"0": 0.25, "1": None}
    added = found.summary["context_after"]["long sums"]
    assert added["fst"]["none"]["difference"]["seeds"] == {"0": 0.5, "1": None}
    assert added["rl"]["none"]["difference"]["mean"] is None
