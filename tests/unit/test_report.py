"""The report page: complete, escaped, self-contained, the same for the same journals."""

import copy
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from fst_core.counting import counted
from fst_core.report import Report, make_report, summary_table
from fst_core.report.contexts import diff
from fst_core.report.figures import HALF, _parts, arm_styles, draw_curves, legend_of
from fst_core.report.glossary import WORDS
from fst_core.report.headline import headline
from fst_core.report.markup import Markup, esc, number_text, tag
from fst_core.report.record import TEXT_SHOWN_CHARACTERS
from fst_core.report.runs import read_runs
from fst_core.report.tables import curves
from tests.journals import HOSTILE, evaluate, fast_phase, sample_rollouts, start, synthetic_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Report]:
    root = tmp_path_factory.mktemp("study")
    folders = synthetic_study(root / "synthetic")
    return folders, make_report(folders, root / "out")


def page_of(report: Report) -> str:
    return report.paths["report"].read_text()


class Tags(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.names.append(name)


def test_everything_is_written(study) -> None:
    _, report = study
    assert all(path.exists() for path in report.paths.values())
    wanted = {
        "report", "summary", "tables/curves", "tables/training", "tables/populations",
        "tables/cycles", "tables/settings", "figures/reward_by_step",
        "figures/reward_by_rollouts", "figures/reward_by_kl", "figures/reward_by_seconds",
        "figures/populations", "figures/seconds",
        "tables/rewards", "tables/divergence", "tables/kl_saved", "tables/efficiency",
        "tables/asymptote", "tables/quadrants", "tables/escape", "tables/paper",
        "figures/rewards", "figures/divergence", "figures/asymptote", "figures/quadrants",
    }  # fmt: skip
    assert set(report.paths) == wanted


def test_headline_says_where_fst_wins_and_where_not(study) -> None:
    said = headline(study[1].summary)
    ahead, behind = said.split("rl ", 1)[0], said[said.index("rl ", said.index("on:")) :]
    for label in ("rollouts to rl's peak reward", "KL to the base model", "final reward"):
        assert label in ahead
    assert "final reward under the seed context" in behind and "training wall time" in behind
    assert esc(said) in page_of(study[1])


def test_a_page_without_a_reason_says_nothing_of_one(tmp_path: Path) -> None:
    for why, told in (("", False), ("small enough", True)):
        writer = start(tmp_path / f"{told}" / "rl-s0", "rl", 0, why=why)
        evaluate(writer, 0, "seed", 0.5)
        page = page_of(make_report([writer.path.parent], tmp_path / f"out-{told}"))
        assert "No reason" not in page and ('<p class="soft">small enough</p>' in page) is told


def test_every_word_of_the_summary_table_is_explained(study) -> None:
    page = page_of(study[1])
    assert "<summary>Words of this page</summary>" in page
    assert all(tag("strong", word) in page for word in WORDS)


def test_slow_time_is_split_only_where_generation_was_timed() -> None:
    seconds = dict.fromkeys(("fast", "slow", "evaluation", "other", "total"), 2.0)
    for generate, told in ((None, {"slow"}), (0.5, {"slow: generate", "slow: update"})):
        parts = _parts({**seconds, "slow_generate": generate})
        assert {name for name, width in parts.items() if "slow" in name and width} == told


def test_headline_without_rl_and_without_anything(tmp_path: Path) -> None:
    gepa = synthetic_study(tmp_path / "runs", arms=("gepa",), seeds=(0,))
    alone = make_report(gepa, tmp_path / "a").summary
    assert headline(alone) == "Nothing is compared: there is no evaluated rl run (evaluated: gepa)."
    nothing = make_report([], tmp_path / "b").summary
    assert headline(nothing).startswith("No run has an evaluation yet")


def test_rl_that_never_learns_is_no_benchmark(tmp_path: Path) -> None:
    folders = []
    for arm in ("rl", "fst"):
        writer = start(tmp_path / f"{arm}-s0", arm, 0)
        evaluate(writer, 0, "seed", 0.0)
        evaluate(writer, 4, "seed" if arm == "rl" else "best", 0.0)
        folders.append(writer.path.parent)
    report = make_report(folders, tmp_path / "out")
    assert "for want of data, on: rollouts to rl's peak reward" in headline(report.summary)
    page = page_of(report)
    assert "rl never rose above its first evaluation" in page
    assert page.count("<td>no peak</td>") == 4 and "rl&#x27;s peak</text>" not in page
    assert "rl's peak" not in report.paths["figures/reward_by_step"].read_text()
    text = terminal(report.summary, 80)
    assert text.count("no peak") == 3 and "no peak: rl never rose" in text


def test_hostile_text_is_escaped_everywhere(tmp_path: Path) -> None:
    writer = start(
        tmp_path / "fst-s0", "fst", 0, why=HOSTILE, contexts={"seed": HOSTILE, "size": 2}
    )
    evaluate(writer, 0, "seed", 0.0)
    fast_phase(writer, 0, 0, 0.5, text=HOSTILE + "\x1b\u202e")
    sample_rollouts(writer, 0, "slow", HOSTILE)
    writer.events[-1]["sample"][0]["feedback"] = [HOSTILE]
    writer.add("rollouts", step=0, loop=HOSTILE, sample=writer.events[-1]["sample"])
    page = page_of(make_report([writer.path.parent], tmp_path / "out"))
    assert "<script" not in page and "script" not in Tags(page).names
    assert page.count("&lt;script&gt;alert") >= 5
    assert "\x1b" not in page and "\u202e" not in page


def test_page_needs_no_network_and_no_script(study) -> None:
    page = page_of(study[1])
    assert not {"script", "link", "img", "iframe", "object"} & set(Tags(page).names)
    outside = re.findall(r"(?:src|href|url|@import)\s*[=(]?\s*[\"']?(https?:[^\"')\s]*)", page)
    assert outside == []
    assert "prefers-color-scheme: dark" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_dead_and_empty_runs_appear_and_the_rest_is_made(study, tmp_path: Path) -> None:
    folders, _ = study
    died = start(tmp_path / "rl-s8", "rl", 8)
    (tmp_path / "fst-s9").mkdir()
    report = make_report([*folders, died.path.parent, tmp_path / "fst-s9"], tmp_path / "out")
    page = page_of(report)
    assert "<strong>rl-s8</strong>: The run has not ended" in page
    assert "<strong>fst-s9</strong>: No journal was found" in page
    assert report.summary["arms"]["rl"]["counted"] == ["rl-s0", "rl-s1"]


def test_same_journals_give_the_same_files(study, tmp_path: Path) -> None:
    folders, first = study
    second = make_report(folders, tmp_path / "again")
    for name, path in first.paths.items():
        assert path.read_bytes() == second.paths[name].read_bytes(), name


def test_figures_are_xml_that_takes_the_text_colour(study) -> None:
    for name, path in study[1].paths.items():
        if name.startswith("figures/"):
            svg = path.read_text()
            ElementTree.fromstring(svg)
            assert "currentColor" in svg and "#123457" not in svg and "#000000" not in svg


def test_contexts_show_diff_and_lineage(study) -> None:
    page = page_of(study[1])
    assert "<ins>+ Put the answer in tags (0).</ins>" in page
    assert "Diff to parent" in page and "4 proposals, 1 accepted" in page


def test_provenance_and_settings_are_on_the_page(study) -> None:
    page = page_of(study[1])
    for text in ("0123456789abcdef", "10 beads", "train.jsonl", "small enough to check by hand"):
        assert text in page
    apart, _, folded = page.partition('id="settings"')[2].partition("<details>")
    assert "<td><code>fast.metric_calls</code></td>" in apart
    assert (
        "evaluation.problems" not in apart and "<td><code>evaluation.problems</code></td>" in folded
    )
    assert re.search(r"<tr><td><code>loop.steps</code></td>", page)


def terminal(summary, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(summary_table(summary))
    return console.export_text()


def test_summary_table_has_one_row_per_arm(study) -> None:
    text = terminal(study[1].summary, 200)
    assert all(arm in text for arm in ("base", "rl", "gepa", "fst"))
    assert re.search(r" not +\d[^\n]*\n.* reached", text)


def test_summary_table_is_whole_in_80_columns(study, tmp_path: Path) -> None:
    three = synthetic_study(tmp_path / "runs", arms=("rl", "fst"), seeds=(0, 1, 2))
    for summary in (study[1].summary, make_report(three, tmp_path / "out").summary):
        text = terminal(summary, 80)
        for arm in summary["arms"].values():
            assert number_text(arm["final_reward"]["mean"], 2) in text
            assert number_text(arm["seconds"]["training"]["mean"], 1) in text
        assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert re.search(r"\[0\.\d\d, 0\.\d\d\]", text)  # an interval stands on one line


def test_no_number_is_cut_for_the_name_of_an_arm(study) -> None:
    arm = copy.deepcopy(study[1].summary["arms"]["fst"])
    arm["used"] = {"slow_rollouts": 1_234_567}
    arm["to_rl_peak"]["mean_curve"]["rollouts"] = 1_234_000
    arm["seconds"]["training"]["mean"] = 12_345.6
    names = ["from-base-plasticity" * times for times in (1, 2)]
    summary = {**study[1].summary, "arms": dict.fromkeys(names, arm)}
    text = terminal(summary, 80)
    for number in ("1,234,567", "1,234,000", "12,346"):
        assert text.count(number) == len(names)


def test_the_summary_table_names_the_context_an_arm_is_judged_by(study, tmp_path: Path) -> None:
    text = terminal(study[1].summary, 80)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.split()}
    judged = {arm: rows[arm][2] for arm in ("base", "rl", "gepa", "fst")}
    assert judged == {"base": "seed", "rl": "seed", "gepa": "best", "fst": "best"}
    assert "final reward: under the context an arm is judged by" in text
    assert "no peak" not in text
    empty = start(tmp_path / "fst-s0", "fst", 0).path.parent
    row = next(
        line.split()
        for line in terminal(make_report([empty], tmp_path / "out").summary, 80).splitlines()
        if line.strip().startswith("fst")
    )
    assert row[2] == "–"


def test_an_unfinished_arm_is_marked_in_the_terminal(study, tmp_path: Path) -> None:
    died = start(tmp_path / "fst-s0", "fst", 0)
    evaluate(died, 0, "seed", 0.9)
    never = start(tmp_path / "gepa-s0", "gepa", 0)
    ended = synthetic_study(tmp_path / "ended", arms=("rl",), seeds=(0, 1))
    folders = [*ended, died.path.parent, never.path.parent]
    text = terminal(make_report(folders, tmp_path / "out").summary, 80)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.split()}
    assert rows["fst"][1] == "1/1*" and rows["rl"][1] == "2/2" and rows["gepa"][1] == "0/1"
    assert "* unfinished: " in text and max(map(len, text.splitlines())) <= 80
    assert "unfinished" not in terminal(study[1].summary, 80)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_run_that_is_left_out_changes_only_its_note(tmp_path: Path, swapped: bool) -> None:
    good = synthetic_study(tmp_path / "runs", arms=("fst",), seeds=(0,))
    other = start(tmp_path / "other" / "fst-s0", "fst", 0, threads=7)
    sample_rollouts(other, 0, "slow", "of the other")
    both = [other.path.parent, *good] if swapped else [*good, other.path.parent]
    alone, made = make_report(good, tmp_path / "a"), make_report(both, tmp_path / "b")
    assert made.summary["arms"]["fst"] == {**alone.summary["arms"]["fst"], "runs": 2}
    for name, path in alone.paths.items():
        if name.startswith(("tables/", "figures/")):
            assert path.read_bytes() == made.paths[name].read_bytes(), name
    page = page_of(made)
    assert "of the other" not in page and "Left out: the same arm and seed as runs/fst-s0" in page
    assert page.count("first and last of each kind") == 1


def test_markup_escapes_children_and_attributes() -> None:
    assert tag("p", "<b>", title='"><i>') == '<p title="&quot;&gt;&lt;i&gt;">&lt;b&gt;</p>'
    assert tag("p", Markup("<b></b>")) == "<p><b></b></p>"
    assert esc("a\x00b\ud800") == "a\u2400b\ufffd"


@pytest.mark.parametrize(("count", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps")])
def test_counted(count: int, text: str) -> None:
    assert counted(count, "step") == text


def test_one_of_a_thing_stands_in_the_singular(tmp_path: Path) -> None:
    writer = start(tmp_path / "fst-s0", "fst", 0)
    evaluate(writer, 0, "best", 0.5)
    keys = ("metric_calls", "generate_calls", "reflection_calls", "proposals", "accepted")
    slot, rest = (
        {"text": text, "parents": [], "cycle": 0, "operator": "seed"} for text in ("a", "b")
    )
    evolution = {
        **dict.fromkeys(keys, 1),
        "population": {"contexts": [slot], "scores": [[1.0]]},
        "candidates": [{"context": rest, "scores": [1.0]}],
    }
    writer.add("fast", cycle=0, step=0, evolution=evolution, seconds=1.0, ledger=writer.ledger)
    sample_rollouts(writer, 0, "fast", "x" * (TEXT_SHOWN_CHARACTERS + 1))
    page = page_of(make_report([writer.path.parent], tmp_path / "out"))
    assert "1 accepted candidate that" in page and "1 more character]" in page
    assert re.findall(r"\b1 (?:[a-z]+ )?[a-z]+s\b(?! was| is| has)", page) == []


def test_diff_marks_lines() -> None:
    assert diff("a\nb", "a\nc<") == "<pre>  a\n<del>- b</del><ins>+ c&lt;</ins></pre>"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 3, "–"),
        (0.12345, 3, "0.123"),
        (12345.6, 3, "12,346"),
        (8.0, 0, "8"),
        (150, 1, "150.0"),
    ],
)
def test_number_text(value: float | None, digits: int, text: str) -> None:
    assert number_text(value, digits) == text


ARMS = ("base", "gepa", "rl", "fst")
CHOICES = [(arm,) for arm in ARMS] + list(combinations(ARMS, 2))


@pytest.mark.parametrize("arms", CHOICES, ids="-".join)
def test_every_choice_of_arms_has_a_report(tmp_path: Path, arms: tuple[str, ...]) -> None:
    report = make_report(synthetic_study(tmp_path / "runs", arms, [0]), tmp_path / "out")
    assert set(report.summary["arms"]) == set(arms)
    assert all(arm in page_of(report) for arm in arms)


def test_an_arm_that_learns_nothing_is_compared_with_nothing(study) -> None:
    summary = study[1].summary
    assert "base" in summary["arms"] and "base" not in summary["comparisons"]
    for part in ("escape", "efficiency"):
        assert "base" not in json.dumps(summary[part])


LONG = "an-arm-with-a-name-that-is-very-long-{}"


@pytest.mark.parametrize("name", ["arm{}", LONG])
@pytest.mark.parametrize("arms", [1, 9])
def test_a_legend_fits_its_figure_and_covers_no_panel(name: str, arms: int) -> None:
    figure = Figure(figsize=(HALF, 3.7), layout="constrained")
    axis = figure.subplots()
    legend_of(figure, arm_styles([name.format(i) for i in range(arms)]))
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= figure.bbox.width
    assert legend.y0 >= axis.get_window_extent().y1
    assert axis.get_window_extent().height > 2.2 * figure.dpi  # further lines take none of it


@pytest.mark.parametrize("peak", [None, {"reward": 0.5}])
def test_the_legend_names_rls_peak_where_it_is_drawn(study, peak) -> None:
    runs = read_runs(study[0])
    table = curves(runs)
    figure = draw_curves(table, {run.id for run in runs}, "rollouts", peak)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("rl's peak" in labels) is (peak is not None)
