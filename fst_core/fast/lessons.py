"""Playbooks and lessons: what a line was good for, and how a playbook changes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean

from fst_core.records import Population, Rollout


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on numbered lines; `ids` are those it takes the place of."""

    kind: str
    ids: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A lesson (one line, or the two of a worked example) and what it was good for."""

    id: str
    text: str
    helpful: int = 0
    harmful: int = 0
    tests: int = 0
    """Phases whose rollouts compared the playbook with and without it, also where none told."""

    @property
    def score(self) -> float:
        """Help minus harm in standard deviations of a fair coin; 0 while no problem told."""
        return (self.helpful - self.harmful) / sqrt(self.helpful + self.harmful or 1)


@dataclass(frozen=True, slots=True)
class Playbook:
    """The lines below a header, oldest first; `left_out` says which line a context id lacks."""

    header: str
    lines: tuple[Line, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    born: int = 0
    """Lines so far, retired ones included."""

    def text(self, without: str | None = None) -> str:
        """The context, with or without one line."""
        lines = [line.text for line in self.lines if line.id != without]
        return "\n".join([*filter(None, [self.header]), *lines])


def playbook_of(population: Population) -> Playbook:
    """The playbook that a population remembers; at first its best context with no lines."""
    memory = population.memory
    if not memory:
        return Playbook(population.best.text)
    lines = tuple(Line(**row) for row in memory["lines"])
    return Playbook(memory["header"], lines, memory["left_out"], memory["born"])


def counted(
    lines: Sequence[Line],
    whole: str,
    left_out: Mapping[str, str],
    rewards: Mapping[str, Mapping[str, Sequence[float]]],
) -> tuple[Line, ...]:
    """Lines after each problem has told whether the whole playbook does better without one.

    Args:
        whole: context id of the whole playbook.
        left_out: line id by the id of the context that lacks it.
        rewards: by context id and problem id.
    """
    means = {
        name: {problem: fmean(row) for problem, row in rows.items()}
        for name, rows in rewards.items()
    }
    gains: dict[str, list[float]] = defaultdict(list)
    full = means.get(whole, {})
    for context, line in left_out.items():
        lacking = means.get(context, {})
        gains[line] += [full[p] - lacking[p] for p in full if p in lacking]
    return tuple(
        replace(
            line,
            helpful=line.helpful + sum(gain > 0 for gain in gains[line.id]),
            harmful=line.harmful + sum(gain < 0 for gain in gains[line.id]),
            tests=line.tests + bool(gains[line.id]),
        )
        for line in lines
    )


def edited(
    playbook: Playbook, ops: Sequence[Op], fits: Callable[[str], bool]
) -> tuple[Playbook, Counter[str]]:
    """The playbook after the edits that can be made, and why others could not."""
    refused: Counter[str] = Counter()
    for op in ops:
        lines = {line.id: line for line in playbook.lines}
        name = f"L{playbook.born}" if op.kind == "add" else op.ids[0]
        if op.kind != "add" and name not in lines:
            refused["malformed"] += 1
            continue
        if op.kind == "remove":
            del lines[name]
        elif op.text in {line.text for line in lines.values()} | {playbook.header}:
            refused["repeated"] += 1
            continue
        else:
            lines[name] = Line(name, op.text)
        new = replace(playbook, lines=(*lines.values(),), born=playbook.born + (op.kind == "add"))
        if op.kind == "remove" or fits(new.text()):
            playbook = new
        else:
            refused["too_long"] += 1
    return playbook, refused


def proven(lines: Sequence[Line], margin: float) -> tuple[Line, ...]:
    """Lines without those that harm, and without the worst that chance explains."""
    kept = [line for line in lines if line.harmful <= line.helpful]
    doubtful = [n for n in kept if n.helpful + n.harmful and n.score < margin]
    worst = min(doubtful, key=lambda line: line.score, default=None)
    return tuple(line for line in kept if line != worst)


def pruned(playbook: Playbook, most: int) -> Playbook:
    """At most `most` lines: those of the least help minus harm go, the oldest first."""
    excess = max(0, len(playbook.lines) - most)
    gone = sorted(playbook.lines, key=lambda line: line.helpful - line.harmful)[:excess]
    return replace(playbook, lines=tuple(line for line in playbook.lines if line not in gone))


def by_problem(rollouts: Sequence[Rollout]) -> dict[str, dict[str, list[float]]]:
    """Rewards by context id and problem id."""
    rewards: dict[str, dict[str, list[float]]] = {}
    for rollout in rollouts:
        rows = rewards.setdefault(rollout.context_id, {})
        rows.setdefault(rollout.problem_id, []).append(rollout.verdict.reward)
    return rewards
