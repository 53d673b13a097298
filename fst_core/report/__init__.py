"""Reports: tables, figures and one HTML page from the journals of a study's runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fst_core.report.figures import all_figures, write_figures
from fst_core.report.html import page, with_interval
from fst_core.report.markup import number_text
from fst_core.report.runs import read_runs
from fst_core.report.summary import summarize, write_summary
from fst_core.report.tables import all_tables, write_parquet

__all__ = ["Report", "make_report", "summary_table"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: paths by name ("report", "summary", "tables/NAME", "figures/NAME")."""

    paths: Mapping[str, Path]
    summary: Mapping[str, Any]


def make_report(run_dirs: Sequence[Path], out_dir: Path) -> Report:
    """Write report.html, summary.json, tables/*.parquet and figures/*.svg from run folders.

    A run that died, was never evaluated or is damaged gets a sentence in the report; the rest of
    the report is still made. The same journals give the same files.
    """
    runs = read_runs([Path(folder) for folder in run_dirs])
    tables = all_tables(runs)
    summary = summarize(runs, tables["curves"])
    figures = all_figures(summary, tables)
    paths = {"summary": write_summary(summary, out_dir / "summary.json")}
    for kind, written in (
        ("tables", write_parquet(tables, out_dir / "tables")),
        ("figures", write_figures(figures, out_dir / "figures")),
    ):
        paths |= {f"{kind}/{name}": path for name, path in written.items()}
    paths["report"] = out_dir / "report.html"
    paths["report"].write_text(page(runs, summary, tables, figures), encoding="utf-8")
    return Report(paths, summary)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The summary for a terminal: one row per arm."""
    headers = (
        "arm", "runs", "final reward", "best", "seed context", "KL", "rollouts to rl's peak",
        "rollouts", "training s",
    )  # fmt: skip
    table = Table(*headers, title=summary["experiment"] or None)
    for name, arm in summary["arms"].items():
        table.add_row(name, *_cells(arm))
    return table


def _cells(arm: Mapping[str, Any]) -> list[str]:
    to_peak, used = arm["to_rl_peak"] or {"mean_curve": None, "defined": False}, arm["used"]
    point = to_peak["mean_curve"]
    missing = "not reached" if to_peak["defined"] else "–"
    training = used.get("slow_rollouts", 0) + used.get("fast_rollouts", 0)
    return [
        f"{len(arm['counted'])}/{arm['runs']}",
        with_interval(arm["final_reward"], 2),
        number_text(arm["best_reward"]["mean"], 2),
        number_text(arm["final_seed_reward"]["mean"], 2),
        number_text(arm["final_kl"]["mean"]),
        number_text(point["rollouts"], 0) if point else missing,
        number_text(training, 0),
        number_text(arm["seconds"]["training"]["mean"], 1),
    ]
