"""Runs grouped into studies: one experiment each, with its tables and its summary."""

import re
from collections.abc import Sequence

from fst_core.report.runs import RunLog
from fst_core.report.section import Study
from fst_core.report.summary import summarize
from fst_core.report.tables import all_tables


def studies_of(runs: Sequence[RunLog]) -> list[Study]:
    """One study per experiment, in the order of their first runs; an empty one of no runs."""
    names = dict.fromkeys(run.experiment for run in runs) or {"": None}
    return [_study(name, [run for run in runs if run.experiment == name]) for name in names]


def _study(experiment: str, runs: Sequence[RunLog]) -> Study:
    tables = all_tables(runs)
    return Study(experiment, runs, summarize(runs, tables["curves"]), tables)


def folder_name(experiment: str) -> str:
    """The experiment's name as a folder or an anchor: letters, digits and . + - _, none hidden."""
    return re.sub(r"[^\w.+-]", "_", experiment).lstrip(".") or "unnamed"
