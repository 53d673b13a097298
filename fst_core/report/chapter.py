"""One experiment of a report: what was measured, and every question's answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fst_core.report.figures import all_figures
from fst_core.report.section import Section, Study
from fst_core.report.sections import sections_of


@dataclass(frozen=True, slots=True)
class Chapter:
    """A study with the figures of its curves and the sections its data answer."""

    study: Study
    curves: Mapping[str, str]
    """SVG texts of curves, contexts and time, by file stem."""
    sections: Sequence[Section]

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by file stem."""
        mine = dict(self.study.tables)
        return mine | {n: table for section in self.sections for n, table in section.tables.items()}

    @property
    def figures(self) -> dict[str, str]:
        """Every figure as SVG text, by file stem."""
        mine = dict(self.curves)
        return mine | {name: svg for part in self.sections for name, svg in part.figures.items()}

    @property
    def summary(self) -> dict[str, Any]:
        """The study's summary, with each section's numbers under the section's name."""
        return {**self.study.summary, **{part.name: part.summary for part in self.sections}}


def chapter_of(study: Study) -> Chapter:
    """Draw the curves of a study and ask every question of it."""
    return Chapter(study, all_figures(study.summary, study.tables), sections_of(study))
