"""The report of a study as a task run."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from rich.console import Console

from tasks.show import artifact_key, mlflow_page

TABLE_WIDTH = 100

if TYPE_CHECKING:
    from fst_core.report import Report


@task(name="report", task_run_name="report {out_dir.name}", cache_policy=NO_CACHE)
def write_report(run_dirs: Sequence[Path], out_dir: Path) -> "Report":
    """Write a study's report files; the UI gets its summary, links and their paths."""
    from fst_core.report import make_report

    report = make_report(run_dirs, out_dir)
    markdown = report_markdown(report, run_dirs, out_dir.name)
    create_markdown_artifact(markdown, key=artifact_key(out_dir.name, "report"))
    return report


def report_markdown(report: "Report", run_dirs: Sequence[Path], title: str) -> str:
    """A report for the UI: its summary table, its runs in MLflow, where its files are."""
    from fst_core.report import summary_table

    console = Console(file=StringIO(), width=TABLE_WIDTH)
    with console.capture() as table:
        console.print(summary_table(report.summary))
    pages = [(folder.name, mlflow_page(folder)) for folder in run_dirs]
    lines = [f"# {title}", "", "```", table.get().rstrip(), "```", ""]
    lines += [f"- [{name} in MLflow]({page})" for name, page in pages if page is not None]
    lines += [f"- {name}: `{path}`" for name, path in report.paths.items()]
    return "\n".join(lines)
