"""The report of a study as a task run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tasks.show import artifact_key

if TYPE_CHECKING:
    from fst_core.report import Report


@task(name="report", task_run_name="report {out_dir.name}", cache_policy=NO_CACHE)
def write_report(run_dirs: Sequence[Path], out_dir: Path) -> "Report":
    """Write a study's report files; the UI gets their paths."""
    from fst_core.report import make_report

    report = make_report(run_dirs, out_dir)
    lines = [f"# {out_dir.name}", "", *(f"- {name}: `{p}`" for name, p in report.paths.items())]
    create_markdown_artifact("\n".join(lines), key=artifact_key(out_dir.name, "report"))
    return report
