"""Arms x seeds side by side: the study a config describes, its report, and where to look.

    python -m flows.compare configs/tiny/demo.toml

Runs that are not finished go on at their last checkpoint and finished ones are kept, unless
--fresh removes them first.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow, tags
from prefect.task_runners import ThreadPoolTaskRunner
from rich.console import Console

from flows.server import prefect_server
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.offline import remove_run
from fst_core.study import expand, run_folder
from tasks.report import write_report
from tasks.runs import PROCESSES, Order, run_process, with_data
from tasks.track import track_report

if TYPE_CHECKING:
    from fst_core.report import Report


class StudyFailed(RuntimeError):
    """Some runs of a study failed; the report over the others was made."""


@dataclass
class Comparison:
    """What a study came to."""

    folder: Path
    report: "Report"
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by part."""
    failures: tuple[str, ...] = ()
    """One message per run that failed."""


@flow(name="compare", flow_run_name="compare {config_path}")
def compare(
    config_path: str,
    arms: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    jobs: int | None = None,
    overrides: tuple[str, ...] = (),
    runs: str = "runs",
    data: str | None = None,
    track: bool = True,
) -> Comparison:
    """Train every arm with every seed, at most `jobs` at once, and report on all of them.

    Raises:
        ConfigError: before anything starts, if one of the runs cannot be run.
        StudyFailed: after the report, if runs failed.
    """
    comparison = study(config_path, arms, seeds, jobs, with_data(overrides, data), runs, track)
    if comparison.failures:
        raise StudyFailed("\n".join(comparison.failures))
    return comparison
