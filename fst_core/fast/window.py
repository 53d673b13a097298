"""What a run begins with must fit the model's window, or is refused before the first rollout.

The run itself and its plan (`fst run --dry-run`) ask the same questions, so they tell the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from fst_core.config import NoFast, PolicyReflection, RunConfig
from fst_core.config.model import ConfigError
from fst_core.environments.tasks import Tasks
from fst_core.methods import FAST, load
from fst_core.policy.base import ContextTooLong
from fst_core.records import Context, Problem
from fst_core.rollouts import messages_for

PROBE = "Answer."
"""A context that shows what one costs beside its own tokens."""
PROBLEMS_MEASURED = 256
"""Train problems whose length decides how long a context may grow."""


class Counts(Protocol):
    """Chats and texts as token ids."""

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, ending where the assistant's turn begins."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text."""
        ...


def held_problems(config: RunConfig, tasks: Tasks) -> Iterator[Problem]:
    """Every problem that a run is measured on."""
    evaluation = config.evaluation
    for task in tasks.trained:
        yield from tasks.held_out(task.name, "validation", evaluation.problems)
    for suite in evaluation.suites:
        yield from tasks.held_out(suite.name, "test", suite.problems)


def room_for_context(
    config: RunConfig, tasks: Tasks, held: Iterable[Problem], policy: Counts, window: int
) -> int:
    """Tokens the window leaves for a context, beside a completion and the longest problem seen.

    Args:
        held: the problems it is measured on (`held_problems`).
        window: most tokens of a prompt and its completion.

    Raises:
        ContextTooLong: if the seed context does not fit.
    """
    seen = min(PROBLEMS_MEASURED, config.loop.steps * config.loop.problems_per_step)
    problems = chain(held, map(tasks.train, range(seen)))
    longest = max(_tokens_beside(policy, problem) for problem in problems)
    completion = config.policy.max_new_tokens
    room = window - completion - longest
    seed = policy.count_tokens(config.contexts.seed)
    if seed > room:
        name, part = _seed_names(config, policy)
        raise ContextTooLong(
            f"{name} has {seed} tokens, but the model's window of {window} leaves {max(0, room)} "
            f"beside the longest problem and policy.max_new_tokens = {completion}; lower "
            f"policy.max_new_tokens, or shorten {part} or the problems"
        )
    return room


def _tokens_beside(policy: Counts, problem: Problem) -> int:
    """Tokens of a problem's prompt beside those of a context, whose system role may cost some."""
    bare, held = (len(policy.prompt_ids(messages_for(Context(t), problem))) for t in ("", PROBE))
    return max(bare, held - policy.count_tokens(PROBE))


def _seed_names(config: RunConfig, policy: Counts) -> tuple[str, str]:
    """The setting that holds the seed context, and the one that makes it long."""
    texts = config.contexts.components
    if not texts:
        return "contexts.seed", "contexts.seed"
    longest = max(texts, key=lambda name: policy.count_tokens(texts[name]))
    return "contexts.components", f"contexts.components.{longest}"


def refuse_vain_search(
    config: RunConfig, contexts: Sequence[Context], policy: Counts, window: int
) -> None:
    """Refuse a fast part that could not propose anything, from the contexts it begins with.

    Raises:
        ConfigError: if every context is longer than a proposal may be, or a reflection by the
            policy itself does not fit its window.
    """
    if isinstance(config.fast, NoFast):
        return
    shortest = min(contexts, key=lambda context: policy.count_tokens(context.text))
    _refuse_low_limit(config, policy.count_tokens(shortest.text), policy)
    _refuse_long_reflection(config, shortest, policy, window)


def _refuse_low_limit(config: RunConfig, tokens: int, policy: Counts) -> None:
    most, start = config.contexts.max_tokens, config.contexts.start_from
    if tokens <= most:
        return
    if start is None:
        name, part = _seed_names(config, policy)
        whose, remedy = name, f"shorten {part}"
    else:
        whose, remedy = f"the shortest context of {start} (contexts.start_from)", "begin elsewhere"
    raise ConfigError(
        f"contexts.max_tokens = {most} is below the {tokens} tokens of {whose}, so proposals of "
        f"its length would all be rejected; raise contexts.max_tokens above {tokens}, or {remedy}"
    )


def _refuse_long_reflection(
    config: RunConfig, context: Context, policy: Counts, window: int
) -> None:
    writer, prompts = config.fast.writer, FAST[config.fast.type].prompts
    if not isinstance(writer, PolicyReflection) or not prompts:
        return
    least = load(prompts)(config.fast, context)
    tokens = max(len(policy.prompt_ids(messages)) for messages in least)
    room = window - tokens
    if writer.max_new_tokens > room:
        lower = f"lower fast.reflection.max_new_tokens to {room} at most, or " if room > 0 else ""
        raise ConfigError(
            f"fast.reflection.type = 'policy': a prompt without any example has {tokens} tokens, "
            f"which with fast.reflection.max_new_tokens = {writer.max_new_tokens} pass the model's "
            f"window of {window}; {lower}set fast.reflection.type to 'rules', 'huggingface' or "
            "'litellm'"
        )
