"""One self-contained HTML page about studies: no script, no network, everything escaped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fst_core.report.changes import shown_figure
from fst_core.report.chapter import Chapter
from fst_core.report.figures import apart
from fst_core.report.glossary import words
from fst_core.report.headline import headline
from fst_core.report.markup import Markup, join, tag
from fst_core.report.overview import overview, rewards_by_seed
from fst_core.report.record import contexts, provenance, samples, settings
from fst_core.report.studies import folder_name
from fst_core.report.style import CSS

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
CAPTIONS = {
    "reward_by_step": "Reward against slow steps. Left: the context each arm is judged by; right: "
    "every arm under the seed context, which shows what went into the weights. Thin: seeds; bold: "
    "their mean; thin and dashed: runs that are not counted.",
    "reward_by_rollouts": "Reward against the rollouts training used in both loops. Bold: means "
    "over seeds at the same step, here and in the next two figures.",
    "reward_by_kl": "Reward against the distance from the base model, under the judged context.",
    "reward_by_seconds": "Reward against training wall time; evaluation is left out.",
    "populations": "Mean reward on its anchors (train problems) of the context in every slot, at "
    "each cycle; colour: the operator that wrote it. Lines join a context to itself or to its "
    "parents in the cycle before. Every cycle draws its own anchors, so a fall from one to the "
    "next may be harder anchors.",
    "seconds": "Where the wall time went, mean over the runs of an arm; other: start-up, "
    "checkpoints and waiting.",
}
WIDE = frozenset({"reward_by_step", "populations"})


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a chapter that the table of contents names."""

    anchor: str
    title: str
    body: Sequence[Markup]


def page(chapters: Sequence[Chapter]) -> str:
    """The whole page as text: one chapter a study."""
    alone = len(chapters) == 1
    title = f"Fast-slow training: {_title(chapters[0]) if alone else f'{len(chapters)} studies'}"
    parts = [(chapter, _parts(chapter, "" if alone else _prefix(chapter))) for chapter in chapters]
    body = tag(
        "body",
        tag("h1", title),
        *(_opening(chapter) for chapter in chapters if alone),
        _contents(parts),
        *(_chapter(chapter, mine, alone) for chapter, mine in parts),
    )
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("title", title),
        tag("style", Markup(CSS)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _title(chapter: Chapter) -> str:
    return chapter.study.experiment or "no runs"


def _prefix(chapter: Chapter) -> str:
    return f"{folder_name(chapter.study.experiment)}-"


def _opening(chapter: Chapter) -> Markup:
    """Why this task was chosen, where the config says it, and what came out."""
    why = chapter.study.summary["why"]
    told = tag("p", why, class_="soft") if why else ""
    return join(told, tag("p", headline(chapter.study.summary), class_="lead"))


def _contents(parts: Sequence[tuple[Chapter, Sequence[Part]]]) -> Markup:
    """Links to every part; with several studies, one line a study."""
    lines = []
    for chapter, mine in parts:
        links = [_link(part) for part in mine]
        if len(parts) > 1:
            study = tag("a", tag("strong", _title(chapter)), href=f"#{_prefix(chapter)}study")
            links.insert(0, study)
        lines.append(tag("p", *(join(link, " ") for link in links)))
    return tag("nav", *lines, **{"aria-label": "Contents"})


def _link(part: Part) -> Markup:
    """To a part, by the words of its title before a colon."""
    return tag("a", part.title.partition(":")[0], href=f"#{part.anchor}")


def _chapter(chapter: Chapter, parts: Sequence[Part], alone: bool) -> Markup:
    sections = [tag("section", tag("h2", part.title, id=part.anchor), *part.body) for part in parts]
    if alone:
        return join(*sections)
    heading = tag("h1", _title(chapter), id=f"{_prefix(chapter)}study", class_="study")
    return join(heading, _opening(chapter), apart(join(*sections), _prefix(chapter)))


def _parts(chapter: Chapter, prefix: str) -> list[Part]:
    """The parts in reading order; empty ones are left out."""
    study = chapter.study
    parts = [
        Part("summary", "Summary", [*overview(study.runs, study.summary), words()]),
        Part("curves", "Curves and time", list(_curves(chapter))),
        *(Part(section.name, section.title, section.body) for section in chapter.sections),
        Part("by_seed", "Every evaluation", list(rewards_by_seed(study.summary))),
        Part("contexts", "Contexts", list(contexts(study.runs))),
        Part("samples", "Sample rollouts", list(samples(study.runs))),
        Part("settings", "Settings", [settings(study.tables["settings"], study.runs)]),
        Part("provenance", "Provenance", [provenance(study.runs)]),
    ]
    return [Part(f"{prefix}{part.anchor}", part.title, part.body) for part in parts if part.body]


def _curves(chapter: Chapter) -> Iterator[Markup]:
    drawn = [
        shown_figure(svg, CAPTIONS[name], "wide" if name in WIDE else "half")
        for name, svg in chapter.curves.items()
    ]
    if drawn:
        yield tag("div", *drawn, class_="figures")
