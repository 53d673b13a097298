"""A playbook of lessons as a fast part: small edits, counters of what each line was good for."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field

from fst_core.config.fast import PolicyReflection, ReflectionConfig, RulesReflection
from fst_core.config.method import FastSettings, Search
from fst_core.fast.base import Candidate, Evolution, FastPart, FastTools
from fst_core.fast.lessons import (
    Op,
    Playbook,
    by_problem,
    counted,
    edited,
    playbook_of,
    proven,
    pruned,
)
from fst_core.fast.reflection import Example, example_of
from fst_core.records import Context, Population, Problem, Rollout, seed_of

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig

MOST_REWARDED = 16
"""Rewarded rollouts shown to an edit."""


class PlaybookConfig(FastSettings):
    """A playbook of lessons with counters, after ACE (arXiv 2510.04618).

    One playbook is the seed context and a list of lines. Slot 0 holds it whole, and `tests` of the
    other slots hold it without one line each, those least tested so far; the rest hold it whole. A
    phase (1) compares, problem by problem, the mean reward with and without each tested line, and
    adds 1 to the line's helpful or harmful counter; (2) retires the lines with more harm than help,
    and one of those that helped no more than by chance (`margin`); (3) edits: rules add lines, a
    language model adds, revises and retires lines and sees the counters; a revised line starts at
    0; (4) beyond `max_lines`, the lines of the least help minus harm go, the oldest first. It reads
    the slow rollouts since the phase before, and `anchors` of its own. ACE has a language model tag
    the lines that helped; here the slots measure it.

    Cost: at most (1 + tests) x anchors rollouts a phase, and one reflection by a language model;
    `tests` slots of every slow step run without a line that may matter.
    """

    type: Literal["playbook"] = "playbook"
    anchors: int = Field(16, ge=0)
    """Problems the tested contexts are rolled out on, the first of the coming cycle's problems; 0
    reads the slow rollouts alone."""
    tests: int = Field(2, ge=1)
    """Slots that leave out a line, at most K - 1."""
    untested: int = Field(4, ge=1)
    """Lines without a test, at most: a phase makes no more edits than keep to it."""
    margin: float = Field(1.0, ge=0)
    """How far a line's help must exceed its harm once it is tested, in standard deviations of a
    fair coin (the square root of their sum). Only one line a phase is retired for it, since of two
    that say the same neither helps while the other is there."""
    max_lines: int = Field(12, ge=1)
    """Lines of the playbook, at most; a worked example counts as one."""
    minibatch: int = Field(8, ge=1)
    """Rollouts under the whole playbook that edits are written from, failures first."""
    reflection: ReflectionConfig = RulesReflection()
    """What writes the edits; of the rules, those that add lines or examples."""

    @property
    def reads(self) -> None:
        """See `FastSettings`."""
        return None

    @property
    def writer(self) -> ReflectionConfig:
        """See `FastSettings`."""
        return self.reflection

    def bounds(self, problems: int, run: "RunConfig") -> Search:
        """See `FastSettings`."""
        contexts = min(1 + self.tests, run.contexts.size)
        own = isinstance(self.reflection, PolicyReflection)  # its reflection is a call as well
        rules = isinstance(self.reflection, RulesReflection)
        calls = bool(self.anchors) + own
        return Search(contexts * min(self.anchors, problems), calls, self.untested if rules else 1)

    def refuse(self, run: "RunConfig") -> None:
        """See `MethodSettings`."""
        if run.contexts.size < 2:
            raise ValueError(
                "fast.type = 'playbook' compares the playbook with itself without a line; set "
                "contexts.size to at least 2"
            )
        if not self.anchors and run.slow.rollouts(run) == 0:
            raise ValueError(
                f"fast.anchors = 0 leaves the playbook nothing to read, since slow.type = "
                f"{run.slow.type!r} makes no rollouts; set fast.anchors above 0"
            )


class Editor(Protocol):
    """Writes edits of a playbook."""

    @property
    def usage(self) -> Mapping[str, float]:
        """See `Reflection.usage`."""
        ...

    def edit(
        self,
        playbook: Playbook,
        examples: Sequence[Example],
        rewarded: Sequence[Example],
        most: int,
        seed: int,
    ) -> tuple[Sequence[Op], int]:
        """Up to `most` edits, from rollouts under the whole playbook and rewarded ones under any.

        Returns:
            Operations by line id, and how many more could not be read.
        """
        ...


class PlaybookFast:
    """The fast part that edits a playbook, which lives in the population's memory."""

    def __init__(self, settings: PlaybookConfig, tools: FastTools, editor: Editor) -> None:
        self.settings, self.tools, self._editor = settings, tools, editor

    def evolve(
        self,
        population: Population,
        problems: Sequence[Problem],
        cycle: int,
        recent: Sequence[Rollout] = (),
    ) -> Evolution:
        """Count, retire, edit, and choose which lines the coming steps test.

        Raises:
            ReflectionError: if reflection failed; whatever a roll-out raises comes through.
        """
        old, usage = playbook_of(population), dict(self._editor.usage)
        own = self._roll_out(population, old, problems, cycle)
        rewards, whole = by_problem([*recent, *own]), population.best
        lines = counted(old.lines, whole.id, old.left_out, rewards)
        kept = proven(lines, self.settings.margin)
        book = replace(old, lines=kept)
        asked = self._edits(book, [*recent, *own], whole.id, cycle)
        ops, malformed = asked or ([], 0)
        book, refused = edited(book, ops, self.tools.fits)
        refused["malformed"] += malformed
        book = pruned(book, self.settings.max_lines)
        slots, book = self._slots(book, population, cycle)
        scores = {name: (*map(fmean, rows.values()),) for name, rows in by_problem(own).items()}
        return Evolution(
            Population(slots, tuple(scores.get(c.id, ()) for c in slots), asdict(book)),
            tuple(Candidate(c, scores.get(c.id, ())) for c in dict.fromkeys(slots)),
            metric_calls=len(own),
            generate_calls=int(bool(own)),
            reflection_calls=int(asked is not None),
            proposals=len(ops),
            accepted=len({line.text for line in book.lines} - {line.text for line in old.lines}),
            rejected=dict(+refused),
            reused=len(recent),
            reflection_usage={k: v - usage.get(k, 0) for k, v in self._editor.usage.items()},
            metrics={
                "fast/lines": len(book.lines),
                "fast/retired": len(lines) - len(kept),
                "fast/helpful": sum(line.helpful for line in book.lines),
                "fast/harmful": sum(line.harmful for line in book.lines),
            },
        )

    def _roll_out(
        self, population: Population, book: Playbook, problems: Sequence[Problem], cycle: int
    ) -> list[Rollout]:
        """Own rollouts, of the whole playbook and of what lacks a line, in one call.

        The n-th samples with `seed_of(run_seed, "fast", cycle, n)`.
        """
        whole = population.best
        contexts = {c.id: c for c in population.contexts if c.id in {whole.id, *book.left_out}}
        anchors = problems[: self.settings.anchors]
        pairs = [(context, problem) for context in contexts.values() for problem in anchors]
        seeds = [seed_of(self.tools.run_seed, "fast", cycle, n) for n in range(len(pairs))]
        rollouts = self.tools.roll_out(pairs, seeds) if pairs else []
        return [
            replace(rollout, question=problem.text)
            for (_, problem), rollout in zip(pairs, rollouts, strict=True)
        ]

    def _edits(
        self, book: Playbook, rollouts: Sequence[Rollout], whole: str, cycle: int
    ) -> tuple[Sequence[Op], int] | None:
        """Edits, and how many more were malformed; None while too many lines wait for a test.

        The editor sees a seeded minibatch under the whole playbook, failures first, and the best of
        all rollouts.
        """
        room = self.settings.untested - sum(not line.tests for line in book.lines)
        if room < 1:
            return None
        seed = seed_of(self.tools.run_seed, "reflection", cycle)
        shuffled = random.Random(seed).sample(rollouts, len(rollouts))
        examples = [example_of(r.question, r) for r in shuffled if r.context_id == whole]
        rewarded = [example_of(r.question, r) for r in shuffled if r.verdict.reward > 0]
        shown = sorted(examples, key=lambda e: e.reward == 1)[: self.settings.minibatch]
        good = sorted(rewarded, key=lambda e: -e.reward)[:MOST_REWARDED]
        ops, malformed = self._editor.edit(book, shown, good, room, seed)
        return ops[:room], malformed

    def _slots(
        self, book: Playbook, population: Population, cycle: int
    ) -> tuple[tuple[Context, ...], Playbook]:
        """The contexts of the coming steps, and the playbook that knows what each leaves out.

        A context that a slot held already keeps its lineage.
        """
        held = {context.text: context for context in population.contexts}

        def made(text: str, parent: Context, operator: str) -> Context:
            return held.get(text) or Context(text, (parent.id,), cycle, operator)

        whole = made(book.text(), population.best, "edit")
        least = sorted(book.lines, key=lambda line: line.tests)
        tested = least[: min(self.settings.tests, self.tools.size - 1)]
        lacking = [made(book.text(line.id), whole, "leave-out") for line in tested]
        rest = self.tools.size - 1 - len(lacking)
        left_out = {c.id: line.id for c, line in zip(lacking, tested, strict=True)}
        return (whole, *lacking, *[whole] * rest), replace(book, left_out=left_out)


def make(settings: PlaybookConfig, tools: FastTools) -> FastPart:
    """A playbook with the editor its reflection asks for."""
    # They load torch, and settings load without it.
    from fst_core.fast.editors import ModelEditor, RulesEditor  # noqa: PLC0415
    from fst_core.fast.registry import make_chat  # noqa: PLC0415

    editor: Editor
    if isinstance(settings.reflection, RulesReflection):
        editor = RulesEditor(settings.reflection, tools.fits)
    else:
        editor = ModelEditor(*make_chat(settings.reflection, tools.chat))
    return PlaybookFast(settings, tools, editor)
