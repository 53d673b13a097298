"""Who edits a playbook: offline rules, or a language model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fst_core.config.fast import RulesReflection
from fst_core.config.method import FastSettings
from fst_core.fast.base import Chat, Messages
from fst_core.fast.language_model import FIELD_CHARACTERS, MOST_REWARDED, shorten
from fst_core.fast.lessons import Op, Playbook
from fst_core.fast.operations import as_chat, ask, fewer, format_of, listed, read_ops
from fst_core.fast.reflection import NOTHING, Example, Job
from fst_core.fast.rules import Rules, text_of, units_of
from fst_core.records import Context, seed_of

KINDS = ("add", "modify", "remove")
PLAYBOOK = """\
An assistant reads standing instructions and a playbook of lessons before each question. You keep
the playbook. A line's counters say on how many problems it has helped and harmed so far.

Instructions:
{header}

Playbook:
{lines}

With them it gave the answers below. A judge scored each from 0 to 1 and remarked on it.

{examples}
Answers that scored well, under the same playbook or a line less:

{rewarded}
Propose at most {most} changes: lessons that are missing, lines to put better, lines that mislead.
Every lesson must be general, not bound to one question, and say something no other does.
{format}"""


class RulesEditor:
    """Adds lines and worked examples by offline rules; retiring is left to the counters."""

    def __init__(self, config: RulesReflection, fits: Callable[[str], bool]) -> None:
        none = {"drop_weight": 0.0, "replace_weight": 0.0, "merge_weight": 0.0}
        self._rules = Rules(config.model_copy(update=none), fits)
        self.usage: Mapping[str, float] = {}

    def edit(
        self,
        playbook: Playbook,
        examples: Sequence[Example],
        rewarded: Sequence[Example],
        most: int,
        seed: int,
    ) -> tuple[list[Op], int]:
        """See `playbook.Editor`: what as many proposals add to the whole playbook."""
        text = playbook.text()
        jobs = [Job(text, (*examples,), (*rewarded,), (), seed_of(seed, n)) for n in range(most)]
        units = [
            unit for proposal in self._rules.propose(jobs) for unit in units_of(proposal.text or "")
        ]
        new = [unit for unit in dict.fromkeys(units) if unit not in units_of(text)]
        return [Op("add", (), text_of([unit])) for unit in new][:most], 0


class ModelEditor:
    """Edits by a language model, in one reflection."""

    def __init__(self, chat: Chat, usage: Callable[[], Mapping[str, float]]) -> None:
        self._chat, self._usage = chat, usage

    @property
    def usage(self) -> Mapping[str, float]:
        """See `playbook.Editor`."""
        return self._usage()

    def edit(
        self,
        playbook: Playbook,
        examples: Sequence[Example],
        rewarded: Sequence[Example],
        most: int,
        seed: int,
    ) -> tuple[list[Op], int]:
        """See `playbook.Editor`."""
        shown = partial(_prompt, playbook, examples, rewarded[:MOST_REWARDED], most)
        (reply,) = ask(self._chat, [shown], [seed])
        return read_ops(reply, KINDS, most)


def least_prompts(settings: FastSettings, context: Context) -> list[Messages]:
    """The shortest chat that asks for edits of a context without lines."""
    return [as_chat(_prompt(Playbook(context.text), [NOTHING], [], 1, FIELD_CHARACTERS))]


def _prompt(
    playbook: Playbook,
    examples: Sequence[Example],
    rewarded: Sequence[Example],
    most: int,
    limit: int,
) -> str:
    """Asks for edits; a field has at most `limit` characters."""
    lines = {
        line.id: f"{line.text} (helped {line.helpful}, harmed {line.harmful})"
        for line in playbook.lines
    }
    return PLAYBOOK.format(
        header=playbook.header or "(none)",
        lines=listed(lines),
        examples=_shown(examples, limit),
        rewarded=_shown(rewarded, limit),
        most=most,
        format=format_of(KINDS),
    )


def _shown(examples: Sequence[Example], limit: int) -> str:
    """Examples as a language model reads them."""
    return "\n".join(
        f"Question: {shorten(e.problem, limit)}\nAnswer: {shorten(e.response, limit)}\n"
        f"Score: {e.reward:g}\nRemark: {shorten(' '.join(e.feedback) or 'none', limit)}\n"
        for e in fewer(examples, limit)
    )
