"""Offline reflection: search operators over the lines of a context, the feedback and the rollouts.

The rules know no environment. They move sentences of feedback and rewarded rollouts into the
context and out of it; whether that helped is for the search to find out.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from fst_core.config.fast import RulesReflection
from fst_core.fast.reflection import Example, Job, Peer, Proposal

STYLES = {"example": ("Example input: ", "Example output: "), "chat": ("User: ", "Assistant: ")}
"""How the two lines of a worked example begin."""
MOST_EXAMPLES = 3
MOST_LESSONS = 3
EXAMPLE_CHARACTERS = 600
"""Longest question plus answer that is worth a place in a context."""
TRIES = 12
"""Draws after which a job gives up on finding a context that is not in the pool."""

Unit = tuple[str, ...]
"""What operators move as one: a line, or the two lines of a worked example."""
Move = tuple[list[Unit], tuple[str, ...]]
"""The units of a new context, and the ids of further parents."""


def units_of(text: str) -> list[Unit]:
    """Lines of a context; the two lines of a worked example stay together."""
    units: list[Unit] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if units and any(
            units[-1][-1].startswith(first) and line.startswith(second)
            for first, second in STYLES.values()
        ):
            units[-1] = (*units[-1], line)
        else:
            units.append((line,))
    return units


def text_of(units: Iterable[Unit]) -> str:
    """Inverse of `units_of`."""
    return "\n".join(line for unit in units for line in unit)


def is_example(unit: Unit) -> bool:
    """Whether a unit is a worked example."""
    return len(unit) == 2


def one_line(text: str) -> str:
    """Any text as a single line."""
    return " ".join(text.split())


def lesson_weights(examples: Sequence[Example], context: str) -> dict[str, float]:
    """Weight of each feedback sentence that the context does not hold yet.

    A sentence counts once per rollout, by the reward the rollout missed; the square favours what
    repeats over what names one problem only.
    """
    present = {line for unit in units_of(context) for line in unit}
    missed: defaultdict[str, float] = defaultdict(float)
    for example in examples:
        for sentence in dict.fromkeys(map(one_line, example.feedback)):
            if sentence and sentence not in present:
                missed[sentence] += 1 - example.reward
    return {sentence: weight**2 for sentence, weight in missed.items() if weight > 0}


def draw(weights: Mapping[str, float], size: int, rng: random.Random) -> list[str]:
    """Up to `size` different keys, each draw in proportion to its weight."""
    left = dict(weights)
    drawn: list[str] = []
    while left and len(drawn) < size:
        (key,) = rng.choices(list(left), list(left.values()))
        drawn.append(key)
        del left[key]
    return drawn


def lessons(job: Job, rng: random.Random) -> list[str]:
    """Sentences to add: the most repeated ones, or all that one failed rollout was told.

    A rollout's own feedback names each thing it missed once, where the most repeated sentences may
    be several wordings of one thing; so each source is used half of the time.
    """
    weights = lesson_weights(job.examples, job.whole(job.context))
    told = [
        [sentence for sentence in dict.fromkeys(map(one_line, e.feedback)) if sentence in weights]
        for e in job.examples
        if e.reward < 1
    ]
    told = [sentences for sentences in told if sentences]
    if told and rng.random() < 0.5:
        return rng.choice(told)
    return draw(weights, rng.randint(1, MOST_LESSONS), rng)


def add_lesson(job: Job, units: list[Unit], rng: random.Random) -> Move | None:
    """Add sentences that the feedback repeats, above the worked examples."""
    added = [(line,) for line in lessons(job, rng)]
    if not added:
        return None
    examples = [unit for unit in units if is_example(unit)]
    return [u for u in units if not is_example(u)] + added + examples, ()


def as_unit(example: Example, style: str) -> Unit:
    """A rewarded rollout as a worked example of exactly two lines."""
    first, second = STYLES[style]
    return first + one_line(example.problem), second + one_line(example.response)


def worth_showing(rewarded: Sequence[Example], style: str) -> list[Unit]:
    """Worked examples of (nearly) the best reward that fit in two modest lines."""
    best = max((e.reward for e in rewarded), default=0.0)
    good = [e for e in rewarded if e.reward > 0 and e.reward >= 0.8 * best and e.response.strip()]
    short = [e for e in good if len(e.problem) + len(e.response) <= EXAMPLE_CHARACTERS]
    return list(dict.fromkeys(as_unit(example, style) for example in short))


def add_example(
    job: Job, units: list[Unit], rng: random.Random, styles: Sequence[str] = ("example",)
) -> Move | None:
    """Add worked examples, or put one in another's place."""
    style = rng.choice(styles)
    held = [unit for unit in units_of(job.whole(job.context)) if is_example(unit)]
    fresh = [unit for unit in worth_showing(job.rewarded, style) if unit not in held]
    if not fresh:
        return None
    shown = [index for index, unit in enumerate(units) if is_example(unit)]
    if shown and (len(held) >= MOST_EXAMPLES or rng.random() < 0.3):
        place = rng.choice(shown)
        return [*units[:place], rng.choice(fresh), *units[place + 1 :]], ()
    room = min(MOST_EXAMPLES - len(held), len(fresh))
    if room < 1:
        return None
    return [*units, *rng.sample(fresh, rng.randint(1, room))], ()


def drop_line(job: Job, units: list[Unit], rng: random.Random) -> Move | None:
    """Drop a line or worked example, or cut a line of several sentences to its first ones."""
    place = rng.randrange(len(units)) if units else 0
    if units and not is_example(units[place]):
        sentences = units[place][0].split(". ")
        if len(sentences) > 1 and rng.random() < 0.5:
            kept = ". ".join(sentences[:-1]) + "."
            return [*units[:place], (kept,), *units[place + 1 :]], ()
    if len(units) < 2:
        return None
    return [*units[:place], *units[place + 1 :]], ()


def replace_line(job: Job, units: list[Unit], rng: random.Random) -> Move | None:
    """Put a lesson in the place of a line."""
    drawn = draw(lesson_weights(job.examples, job.whole(job.context)), 1, rng)
    places = [index for index, unit in enumerate(units) if not is_example(unit)]
    if not drawn or not places:
        return None
    place = rng.choice(places)
    return [*units[:place], (drawn[0],), *units[place + 1 :]], ()


def merge(job: Job, units: list[Unit], rng: random.Random) -> Move | None:
    """Join the units of this context with those of another, better ones more often."""
    if not job.pool:
        return None
    peer: Peer = rng.choices(job.pool, [p.score + 0.05 for p in job.pool])[0]
    joined = list(dict.fromkeys([*units, *units_of(peer.text)]))
    examples = [unit for unit in joined if is_example(unit)]
    rng.shuffle(examples)
    lines = [unit for unit in joined if not is_example(unit)]
    return lines + examples[:MOST_EXAMPLES], (peer.id,)


Operator = Callable[[Job, list[Unit], random.Random], Move | None]


class Rules:
    """A Reflection that draws one operator per job; the same jobs give the same proposals.

    `fits` says whether a text may be a context at all; texts that do not fit are drawn again.
    """

    def __init__(self, config: RulesReflection, fits: Callable[[str], bool]) -> None:
        self._fits = fits
        self._operators: dict[str, tuple[Operator, float]] = {
            "lesson": (add_lesson, config.lesson_weight),
            "example": (partial(add_example, styles=config.example_styles), config.example_weight),
            "drop": (drop_line, config.drop_weight),
            "replace": (replace_line, config.replace_weight),
            "merge": (merge, config.merge_weight),
        }

    @property
    def usage(self) -> Mapping[str, float]:
        """Nothing outside is used."""
        return {}

    def propose(self, jobs: Sequence[Job]) -> list[Proposal]:
        """One proposal per job, different from the pool and from each other where possible."""
        proposals: list[Proposal] = []
        taken: set[str] = set()
        for job in jobs:
            known = taken | {job.whole(job.context), *(peer.context for peer in job.pool)}
            proposal = self._one(job, known)
            proposals.append(proposal)
            taken.add(job.whole(proposal.text or ""))
        return proposals

    def _one(self, job: Job, known: set[str]) -> Proposal:
        for proposal in self._draws(job, random.Random(job.seed)):
            whole = job.whole(proposal.text or "")
            if proposal.text and whole not in known and self._fits(whole):
                return proposal
        return Proposal(job.context, "none")

    def _draws(self, job: Job, rng: random.Random) -> Iterator[Proposal]:
        """Draws of operators; one that has nothing to offer for this job is not drawn again."""
        usable = {name: weight for name, (_, weight) in self._operators.items() if weight > 0}
        tries = 0
        while usable and tries < TRIES:
            (name,) = draw(usable, 1, rng)
            operator, _weight = self._operators[name]
            move = operator(job, units_of(job.context), rng)
            if move is None:
                del usable[name]
            else:
                tries += 1
                yield Proposal(text_of(move[0]), name, move[1])
