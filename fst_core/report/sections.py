"""The questions a report asks of a study, in reading order."""

from collections.abc import Callable

from fst_core.report import (
    ablation,
    asymptote,
    continual,
    divergence,
    efficiency,
    escape,
    forgetting,
    paper,
    plasticity,
    posthoc,
    quadrants,
    rewards,
    transfer,
)
from fst_core.report.section import Section, Study

SECTIONS: tuple[Callable[[Study], Section | None], ...] = (
    ablation.section,
    rewards.section,
    divergence.section,
    efficiency.section,
    asymptote.section,
    quadrants.section,
    escape.section,
    forgetting.section,
    transfer.section,
    plasticity.section,
    posthoc.section,
    continual.section,
    paper.section,
)


def sections_of(study: Study) -> list[Section]:
    """The answers to the questions that the study's data speak to."""
    answers = (section(study) for section in SECTIONS)
    return [answer for answer in answers if answer is not None]
