"""Reports: tables, figures and one HTML page from the journals of one or more experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fst_core.report.chapter import Chapter, chapter_of
from fst_core.report.figures import write_figures
from fst_core.report.headline import headline
from fst_core.report.html import page
from fst_core.report.runs import RunLog, read_runs
from fst_core.report.studies import folder_name, studies_of
from fst_core.report.summary import by_experiment, write_summary
from fst_core.report.tables import write_parquet
from fst_core.report.terminal import summary_table

__all__ = ["Report", "make_report", "report_on", "summary_table"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was written, and what it says."""

    paths: Mapping[str, Path]
    """By name: "report", "summary", "tables/NAME", "figures/NAME"; where there are several
    experiments "tables/EXPERIMENT/NAME" and so on."""
    summary: Mapping[str, Any]
    """The summary of the experiment; of several {"studies": {experiment: summary}}."""

    @property
    def headlines(self) -> tuple[str, ...]:
        """What each experiment says first, behind its name."""
        studies = by_experiment(self.summary)
        return tuple(f"{name}: {headline(found)}" for name, found in studies.items())


def make_report(run_dirs: Sequence[Path], out_dir: Path) -> Report:
    """Write report.html, summary.json, tables/*.parquet and figures/*.svg from run folders.

    Runs are grouped by experiment. A run that died, was never evaluated or is damaged gets a
    sentence in the report; the rest of the report is still made. The same journals give the same
    files.
    """
    return report_on(read_runs(run_dirs), out_dir)


def report_on(runs: Sequence[RunLog], out_dir: Path) -> Report:
    """As `make_report`, of runs that have been read."""
    chapters = [chapter_of(study) for study in studies_of(runs)]
    summary = _summary(chapters)
    paths = {"summary": write_summary(summary, out_dir / "summary.json")}
    for chapter in chapters:
        paths |= _write(chapter, out_dir, alone=len(chapters) == 1)
    paths["report"] = out_dir / "report.html"
    paths["report"].write_text(page(chapters), encoding="utf-8")
    return Report(paths, summary)


def _summary(chapters: Sequence[Chapter]) -> Mapping[str, Any]:
    if len(chapters) == 1:
        return chapters[0].summary
    return {"studies": {chapter.study.experiment: chapter.summary for chapter in chapters}}


def _write(chapter: Chapter, out_dir: Path, alone: bool) -> dict[str, Path]:
    """Tables and figures of one experiment, in a folder of its own where there are several."""
    inside = "" if alone else f"{folder_name(chapter.study.experiment)}/"
    tables = write_parquet(chapter.tables, out_dir / "tables" / inside)
    figures = write_figures(chapter.figures, out_dir / "figures" / inside)
    return {
        **{f"tables/{inside}{name}": path for name, path in tables.items()},
        **{f"figures/{inside}{name}": path for name, path in figures.items()},
    }
