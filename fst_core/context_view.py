"""The contexts of runs for a terminal.

Of one run: lineage tree, texts, anchor scores, diffs to parents. Of several: the best of each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from fst_core.config.model import ConfigError
from fst_core.counting import counted, shortened
from fst_core.journal import JournalError, effective, read_events
from fst_core.lineage import known_texts, line_diff, mean_score
from fst_core.progress import score_text
from fst_core.records import content_id

MOST_SHOWN = 200
MEANS_SHOWN = 4
"""Characters of a run's best context in the list of a study's runs."""
LEGEND = (
    "A line: id, what wrote it (seed: the config's own), the cycle it was written in. anchors: "
    "mean reward on the train problems that scored contexts in a cycle (c0 0.50: in cycle 0; each "
    "cycle draws its own). slot: place in the population, 0 the best; the others are ancestors."
)
STYLES = {"+": "green", "-": "red", " ": "dim"}


@dataclass
class Member:
    """A context that some slot held: where it comes from, and its anchor mean per cycle."""

    text: str
    parents: tuple[str, ...] = ()
    operator: str = "seed"
    born: int = 0
    parts: Mapping[str, str] = field(default_factory=dict)
    means: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lineage:
    """Every context a run held up to a cycle, and the slots after that cycle, best first."""

    members: Mapping[str, Member]
    texts: Mapping[str, str]
    slots: tuple[str, ...]
    cycle: int


def contexts_of(folders: Sequence[Path], cycle: int | None = None) -> Iterator[RenderableType]:
    """What there is to see of the contexts of some runs: all of one, the best of each of several.

    Args:
        cycle: cycle to look at; None takes the last of each run.
    Raises:
        ConfigError: if there is one run and it has no such fast phase.
        JournalError: if there is one run and its journal is damaged.
    """
    if len(folders) > 1:
        yield from _best_of_each(folders, cycle)
        return
    lineage = read_lineage(folders[0], cycle)
    yield lineage_tree(lineage)
    yield Text(LEGEND, style="dim")
    yield from slot_panels(lineage)


def _best_of_each(folders: Sequence[Path], cycle: int | None) -> Iterator[Text]:
    whole: Path | None = None
    for folder in folders:
        try:
            lineage = read_lineage(folder, cycle)
        except (ConfigError, JournalError) as error:
            yield Text(str(error))
            continue
        whole = whole or folder
        yield _best(folder, lineage)
    if whole is not None:
        yield Text(f"all of one run: fst contexts {whole}", style="dim")


def _best(folder: Path, lineage: Lineage) -> Text:
    """One line on a run's contexts, and below it how the best of them begins."""
    best = lineage.members[lineage.slots[0]]
    held = f"{counted(len(lineage.slots), 'context')} of {len(lineage.members)} seen"
    mean = f"; the best {score_text(best.means[max(best.means)])}" if best.means else ""
    text = visible(" ".join(best.text.split()))
    cut = shortened(text, MOST_SHOWN)
    told = f": after cycle {lineage.cycle}, {held}{mean}\n  {cut}"
    return Text.assemble((str(folder), "bold"), told)


def read_lineage(folder: Path, cycle: int | None = None) -> Lineage:
    """The lineage in a run's journal, up to one cycle or to the last.

    Raises:
        ConfigError: if the folder holds no run, or no fast phase of that cycle.
        JournalError: if the journal is damaged.
    """
    events = effective(read_events(folder / "journal.jsonl"))
    if not events:
        raise ConfigError(f"{folder}: no run here (no journal.jsonl with events)")
    phases = [event for event in events if event["kind"] == "fast"]
    known = [event["cycle"] for event in phases]
    config: dict[str, Any] = next(
        (event["config"] for event in events if event["kind"] == "run"), {}
    )
    if not phases:
        raise ConfigError(f"{folder}: no fast phase has run here, so {_unchanged(folder, config)}")
    last = known[-1] if cycle is None else cycle
    if last not in known:
        raise ConfigError(f"{folder}: no fast phase of cycle {last}; there are 0 to {known[-1]}")
    members: dict[str, Member] = {}
    for event in phases[: known.index(last) + 1]:
        _remember(members, event)
    contexts = phases[known.index(last)]["evolution"]["population"]["contexts"]
    slots = tuple(dict.fromkeys(content_id(context["text"]) for context in contexts))
    return Lineage(members, known_texts(config, events), slots, last)


def _unchanged(folder: Path, config: Mapping[str, Any]) -> str:
    """What the contexts of a run without fast phases are."""
    start = config.get("contexts", {}).get("start_from")
    if start is None:
        return "the contexts never changed"
    return f"its contexts are those of {start}: fst contexts {folder.parent.parent / start}"


def visible(text: str) -> str:
    """Text without characters that a terminal would obey: a context may hold anything."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _remember(members: dict[str, Member], event: Mapping[str, Any]) -> None:
    evolution = event["evolution"]
    population = evolution["population"]
    scored = [(c["context"], c["scores"]) for c in evolution["candidates"]]
    rows = population["scores"] or [[]] * len(population["contexts"])
    for context, scores in [*scored, *zip(population["contexts"], rows, strict=True)]:
        name = content_id(context["text"])
        facts = (context["text"], tuple(context["parents"]), context["operator"], context["cycle"])
        member = members.setdefault(name, Member(*facts, context.get("parts", {})))
        mean = mean_score(scores)
        if mean is not None:
            member.means[event["cycle"]] = mean


def ancestors(lineage: Lineage) -> set[str]:
    """The slots and every context they descend from."""
    wanted, waiting = set[str](), list(lineage.slots)
    while waiting:
        name = waiting.pop()
        if name in lineage.members and name not in wanted:
            wanted.add(name)
            waiting += lineage.members[name].parents
    return wanted


def lineage_tree(lineage: Lineage) -> Tree:
    """The slots and their ancestors, each below its first known parent."""
    wanted = ancestors(lineage)
    tree = Tree(Text(f"contexts after the fast phase of cycle {lineage.cycle}", style="bold"))
    placed: set[str] = set()

    def grow(branch: Tree, parent: str | None) -> None:
        for name in sorted(wanted, key=lambda n: (lineage.members[n].born, n)):
            known = [p for p in lineage.members[name].parents if p in wanted]
            if name not in placed and (known[0] if known else None) == parent:
                placed.add(name)
                grow(branch.add(_label(lineage, name)), name)

    grow(tree, None)
    return tree


def _label(lineage: Lineage, name: str) -> Text:
    member = lineage.members[name]
    label = Text(name, style="cyan")
    label.append(f"  {member.operator}, cycle {member.born}", style="default")
    if member.means:
        label.append(f"  anchors {_means(member.means)}", style="default")
    if name in lineage.slots:
        label.append(f"  slot {lineage.slots.index(name)}", style="bold green")
    if len(member.parents) > 1:
        label.append(f"  also from {', '.join(member.parents[1:])}", style="dim")
    return label


def _means(means: Mapping[int, float]) -> str:
    """The newest anchor means, oldest first; each against the weights of its cycle."""
    newest = [f"c{cycle} {mean:.2f}" for cycle, mean in sorted(means.items())[-MEANS_SHOWN:]]
    return " ".join(["…"] * (len(means) > MEANS_SHOWN) + newest)


def slot_panels(lineage: Lineage) -> Iterator[RenderableType]:
    """For each distinct slot: its text and the difference to each parent."""
    for place, name in enumerate(lineage.slots):
        member = lineage.members[name]
        parts: list[RenderableType] = [Text(visible(member.text))]
        if member.parts:
            parts = [
                Text.assemble((f"{component}: ", "bold"), visible(text))
                for component, text in member.parts.items()
            ]
        for parent in member.parents:
            if parent in lineage.texts:
                parts.append(Text(f"\nagainst parent {parent}", style="bold"))
                parts.append(diff_text(line_diff(lineage.texts[parent], member.text)))
        score = f", anchor mean {member.means[max(member.means)]:.3f}" if member.means else ""
        title = Text(f"slot {place}: {name} by {member.operator}{score}")
        yield Panel(Group(*parts), title=title, title_align="left")


def diff_text(pairs: Sequence[tuple[str, str]]) -> Text:
    """Signed lines in colour."""
    text = Text()
    for number, (sign, line) in enumerate(pairs):
        text.append(("\n" if number else "") + f"{sign} {visible(line)}", style=STYLES[sign])
    return text
