"""The seam of a report: a section is one question about a study, with its tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fst_core.report.markup import Markup
from fst_core.report.runs import RunLog


@dataclass(frozen=True, slots=True)
class Study:
    """The runs of one experiment as sections read them."""

    experiment: str
    runs: Sequence[RunLog]
    summary: Mapping[str, Any]
    """What `report.summary.summarize` says of the runs."""
    tables: Mapping[str, pd.DataFrame]
    """What `report.tables.all_tables` makes of the runs."""


@dataclass(frozen=True, slots=True)
class Section:
    """One question's answer: HTML, and the same as data."""

    name: str
    """Anchor in the page and key in summary.json: lowercase words joined by "_"."""
    title: str
    body: Sequence[Markup]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """Frames to be written as Parquet, by file stem."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """SVG texts (`report.figures.to_svg`), by file stem."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """The section's numbers as plain JSON types; null where undefined."""
