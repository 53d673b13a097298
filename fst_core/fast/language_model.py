"""Reflection by a language model: one prompt, one parser, any chat behind it.

The chat may be the policy itself, a local model (`local_chat`) or an API (`api_chat`).
"""

import re
from collections.abc import Callable, Mapping, Sequence

from fst_core.config.method import FastSettings
from fst_core.fast.base import Chat, Messages
from fst_core.fast.reflection import NOTHING, Example, Job, Proposal, beyond_window
from fst_core.policy.base import ContextTooLong
from fst_core.records import Context

FIELD_CHARACTERS = 1500
"""Longest question, answer or remark shown; the middle of a longer one is cut out."""
MOST_EXAMPLES = 8
MOST_REWARDED = 2

TASK = """\
An assistant reads standing instructions before each question it is asked. You edit them.

These are its instructions now:

```
{context}
```
{rest}
With them it gave the answers below. A judge scored each from 0 to 1 and remarked on it.

{examples}
{rewarded}
Work out what the judge requires and where the instructions fail to say so. Then rewrite them: keep
the parts that serve, state each requirement plainly, and leave out whatever concerns one question
only. The assistant will see nothing but your text and the next question.

Give the whole new instructions, and nothing else, inside one block that starts and ends with a line
of three backticks."""
PART = """
They are the part called "{component}" of what it reads. The other parts, which stay as they are:

```
{others}
```

Edit that part alone.
"""
REWARDED = """
Answers that the judge scored well, under these or other instructions:

{examples}
"""


def shorten(text: str, limit: int = FIELD_CHARACTERS) -> str:
    """A text of at most about `limit` characters, its middle cut out where needed."""
    text = text.strip()
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} [...] {text[-half:]}"


def shown(example: Example, number: int) -> str:
    """One example as the reflecting model reads it."""
    remarks = " ".join(example.feedback) or "none"
    return (
        f"Question {number}: {shorten(example.problem)}\n"
        f"Answer: {shorten(example.response)}\n"
        f"Score: {example.reward:g}\n"
        f"Remark: {shorten(remarks)}\n"
    )


def prompt_for(job: Job, most_examples: int = MOST_EXAMPLES) -> Messages:
    """The chat that asks for a new version of a job's context."""

    def listed(examples: Sequence[Example]) -> str:
        return "\n".join(shown(example, n) for n, example in enumerate(examples, 1))

    good = listed(job.rewarded[: min(MOST_REWARDED, most_examples)])
    others = "\n".join(f"{name}: {text}" for name, text in job.parts if name != job.component)
    content = TASK.format(
        context=job.context,
        rest=PART.format(component=job.component, others=others) if job.parts else "",
        examples=listed(job.examples[:most_examples]),
        rewarded=REWARDED.format(examples=good) if good else "",
    )
    return [{"role": "user", "content": content}]


def least_prompts(settings: FastSettings, context: Context) -> list[Messages]:
    """The shortest chats that ask for a new version of a context, or of each of its components."""
    jobs = [Job(text, (NOTHING,), (), (), 0, name, context.parts) for name, text in context.parts]
    return [prompt_for(job) for job in jobs or [Job(context.text, (NOTHING,))]]


def fenced_block(reply: str) -> str | None:
    """The last complete block between fences in a reply, thoughts left out; None without one.

    A fence with a language name inside a block opens an inner block, which stays part of it.
    """
    answer = re.sub(r"<think>.*?</think>", "", reply, flags=re.DOTALL).rpartition("</think>")[2]
    block: str | None = None
    lines: list[str] = []
    depth = 0
    for line in answer.split("<think>")[0].splitlines():
        fence = re.fullmatch(r"\s*```(.*)", line)
        named = bool(fence and fence[1].strip())
        if fence and depth and not named:
            depth -= 1
            if depth == 0:
                block, lines = "\n".join(lines), []
                continue
        elif fence:
            depth += 1
            if depth == 1:
                continue
        if depth:
            lines.append(line)
    return block


class LanguageModelReflection:
    """A Reflection that asks a chat model for each new context, all jobs in one batch."""

    def __init__(
        self, chat: Chat, operator: str, usage: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        self._chat = chat
        self._operator = operator
        self._usage = usage

    @property
    def usage(self) -> Mapping[str, float]:
        """Tokens and cost so far, where the chat accounts for them."""
        return self._usage()

    def propose(self, jobs: Sequence[Job]) -> list[Proposal]:
        """One proposal per job; a reply without a block becomes a proposal without text.

        Raises:
            ReflectionError: if the chat cannot answer, or not even one example fits its window.
        """
        replies = self._ask(jobs)
        blocks = [None if reply is None else fenced_block(reply) for reply in replies]
        return [Proposal(text, self._operator) for _, text in zip(jobs, blocks, strict=True)]

    def _ask(self, jobs: Sequence[Job]) -> Sequence[str | None]:
        seeds = [job.seed for job in jobs]
        most = MOST_EXAMPLES
        while True:
            try:
                return self._chat([prompt_for(job, most) for job in jobs], seeds)
            except ContextTooLong as error:
                if most == 1:
                    raise beyond_window("with one example", error) from error
                most //= 2
