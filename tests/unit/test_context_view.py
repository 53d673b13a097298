"""What `fst contexts` shows of one run, and of several."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from fst_core.config.model import ConfigError
from fst_core.context_view import MOST_SHOWN, contexts_of
from tests.journals import fast_phase, start, synthetic_study


def told(folders: list[Path], cycle: int | None = None) -> list[str]:
    """The lines that a wide terminal shows."""
    console = Console(width=1000, file=io.StringIO(), record=True)
    for part in contexts_of(folders, cycle):
        console.print(part)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.fixture
def study(tmp_path: Path) -> list[Path]:
    """A run that evolved contexts, one that has none to evolve, and one that is damaged."""
    runs = synthetic_study(tmp_path, ("fst", "rl"), (0,))
    damaged = tmp_path / "zzz-s0"
    damaged.mkdir()
    (damaged / "journal.jsonl").write_text("{no event\n{none\n")
    return [*runs, damaged]


def test_of_a_study_each_run_is_told_in_a_line(study: list[Path]) -> None:
    fst, text, rl, damaged, hint = told(study)
    assert fst.startswith(f"{study[0]}: after cycle 3, 2 contexts of ")
    assert " on the cycle's anchors (train problems that score contexts)" in fst
    assert text.endswith("Put the answer in tags (3).")
    assert rl == f"{study[1]}: no fast phase has run here, so the contexts never changed"
    assert str(study[2]) in damaged
    assert hint == f"all of one run: fst contexts {study[0]}"


def test_of_a_study_one_cycle_may_be_asked_for(study: list[Path]) -> None:
    assert "after cycle 1, 2 contexts" in told(study, 1)[0]
    assert told(study, 9)[0] == f"{study[0]}: no fast phase of cycle 9; there are 0 to 3"
    assert not any("all of one run" in line for line in told(study, 9))


def test_of_one_run_all_is_shown(study: list[Path]) -> None:
    lines = told(study[:1])
    assert lines[0] == "contexts after the fast phase of cycle 3"
    assert any("slot 1: " in line for line in lines)
    legend = " ".join(lines)
    assert all(f"{word}: " in legend for word in ("anchors", "slot")) and "(c0 0.50: in" in legend
    with pytest.raises(ConfigError, match="the contexts never changed"):
        told(study[1:2])


def test_a_best_context_is_one_cut_line_that_no_terminal_obeys(tmp_path: Path) -> None:
    folders = [tmp_path / f"fst-s{seed}" for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        fast_phase(start(folder, "fst", seed), 0, 0, 0.5, "a\n\x1b[2Jb" + "c" * 1000)
    _, text, *_ = told(folders)
    assert len(text) < MOST_SHOWN + 10 and text.startswith("  a \N{REPLACEMENT CHARACTER}[2Jb")
