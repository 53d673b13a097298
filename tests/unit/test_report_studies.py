"""Several experiments in one report: grouped, apart from each other, each as complete as alone."""

import json
import re
from pathlib import Path

import pytest

from fst_core.report import Report, make_report
from fst_core.report.figures import apart
from fst_core.report.markup import Markup, tag
from fst_core.report.runs import read_runs
from fst_core.report.sections import SECTIONS
from fst_core.report.studies import folder_name, studies_of
from tests.journals import end, evaluate, slow_step, start, synthetic_study


def rl_run(folder: Path, experiment: str, reward: float) -> Path:
    writer = start(folder, "rl", 0, name=experiment)
    evaluate(writer, 0, "seed", 0.0)
    slow_step(writer, 1, reward, 0.1)
    evaluate(writer, 1, "seed", reward, 0.1)
    end(writer, 1)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    root = tmp_path_factory.mktemp("two")
    first = synthetic_study(root / "first", arms=("rl", "fst"), seeds=(0,))
    second = rl_run(root / "second" / "rl-s0", "other", 0.75)
    return root / "out", make_report([*first, second], root / "out")


def test_each_experiment_has_its_own_files_and_summary(two) -> None:
    out, report = two
    assert all(path.exists() for path in report.paths.values())
    assert report.paths["tables/other/curves"] == out / "tables" / "other" / "curves.parquet"
    assert "figures/synthetic/populations" in report.paths
    assert "figures/other/populations" not in report.paths
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary) == ["studies"] and list(summary["studies"]) == ["synthetic", "other"]
    other = summary["studies"]["other"]
    assert other["arms"]["rl"]["final_reward"]["mean"] == 0.75
    assert other["rewards"]["final"][0]["arm"] == "rl"


def test_page_has_a_heading_an_opening_and_links_per_experiment(two) -> None:
    page = two[1].paths["report"].read_text()
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    anchors = set(re.findall(r'<a href="#([^"]+)"', page))
    assert {"synthetic-study", "other-study", "synthetic-rewards", "other-rewards"} <= anchors
    assert anchors <= set(ids)
    assert page.count('class="lead"') == 2 and "rl is the only arm" in page


def test_one_experiment_has_plain_anchors_and_links(tmp_path: Path) -> None:
    report = make_report([rl_run(tmp_path / "rl-s0", "alone", 0.5)], tmp_path / "out")
    page = report.paths["report"].read_text()
    anchors = re.findall(r'<a href="#([^"]+)"', page)
    assert anchors[0] == "summary" and {"rewards", "settings", "provenance"} <= set(anchors)
    assert "<title>Fast-slow training: alone</title>" in page
    assert report.summary["experiment"] == "alone" and "rewards" in report.summary


def test_the_same_arm_and_seed_of_two_experiments_are_two_runs(tmp_path: Path) -> None:
    folders = [rl_run(tmp_path / name / "rl-s0", name, 0.5) for name in ("a", "b")]
    runs = read_runs(folders)
    assert [run.experiment for run in runs] == ["a", "b"] and not any(run.note for run in runs)
    assert [study.experiment for study in studies_of(runs)] == ["a", "b"]


def test_a_folder_without_config_belongs_to_those_beside_it(tmp_path: Path) -> None:
    folders = [rl_run(tmp_path / name / "rl-s0", name, 0.5) for name in ("a", "b")]
    for empty in (tmp_path / "b" / "rl-s1", tmp_path / "c" / "rl-s2"):
        empty.mkdir(parents=True)
        folders.append(empty)
    assert [run.experiment for run in read_runs(folders)] == ["a", "b", "b", "c"]
    assert [run.experiment for run in read_runs([folders[0], folders[3]])] == ["a", "a"]


def test_no_runs_make_one_empty_study(tmp_path: Path) -> None:
    [study] = studies_of([])
    assert [section(study) for section in SECTIONS] == [None] * len(SECTIONS)
    assert make_report([], tmp_path).summary["arms"] == {}


@pytest.mark.parametrize(
    ("name", "folder"),
    [("demo", "demo"), ("../up", "_up"), ("a b/c", "a_b_c"), ("..", "unnamed"), ("", "unnamed")],
)
def test_experiment_names_become_harmless_folders(name: str, folder: str) -> None:
    assert folder_name(name) == folder


def test_apart_renames_figure_ids_and_no_text() -> None:
    figure = Markup(
        '<g clip-path="url(#p0123456789)"/><path id="p0123456789"/><use href="#m0123456789"/>'
    )
    text = tag("p", 'clip-path="url(#p0123456789)" id="p0123456789"')
    renamed = apart(Markup(figure + text), "b-")
    assert renamed == figure.replace("p0123456789", "b-p0123456789").replace("m01", "b-m01") + text
