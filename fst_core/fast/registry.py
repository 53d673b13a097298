"""From config to fast part; heavy and optional packages load here, on use."""

from collections.abc import Callable, Sequence

from fst_core.config.fast import (
    FastConfig,
    GepaConfig,
    HuggingFaceReflection,
    LitellmReflection,
    NoFast,
    PolicyReflection,
    RulesReflection,
)
from fst_core.fast.base import Evolution, FastPart
from fst_core.fast.language_model import Chat, LanguageModelReflection
from fst_core.fast.reflection import Reflection, ReflectionError
from fst_core.records import Population, Problem, Rollout
from fst_core.rollouts import RollOut

ReflectionChoice = RulesReflection | PolicyReflection | LitellmReflection | HuggingFaceReflection


class Unchanged:
    """The fast part of an arm without one: contexts stay as they are, at no cost."""

    def evolve(
        self,
        population: Population,
        problems: Sequence[Problem],
        cycle: int,
        recent: Sequence[Rollout] = (),
    ) -> Evolution:
        """The same population."""
        return Evolution(population)


def make_reflection(
    config: ReflectionChoice, chat: Chat | None, fits: Callable[[str], bool]
) -> Reflection:
    """The reflection a config asks for.

    Args:
        config: which reflection.
        chat: the policy's chat, for `policy` only; it samples as that config says.
        fits: whether a text may be a context.
    Raises:
        ReflectionError: if a package, model or chat that the config needs is missing.
    """
    match config:
        case RulesReflection():
            from fst_core.fast.rules import Rules

            return Rules(config, fits)
        case PolicyReflection():
            if chat is None:
                raise ReflectionError("fast.reflection.type = 'policy' needs the policy's chat")
            return LanguageModelReflection(chat, "policy")
        case HuggingFaceReflection():
            from fst_core.fast.local_chat import LocalChat

            return LanguageModelReflection(LocalChat(config), "huggingface")
        case LitellmReflection():
            from fst_core.fast.api_chat import ApiChat, LitellmRequest

            api = ApiChat(config, LitellmRequest(config))
            return LanguageModelReflection(api, "litellm", api.usage)


def make_fast(
    config: FastConfig,
    *,
    roll_out: RollOut,
    solve: Callable[[Problem], str | None],
    chat: Chat | None,
    run_seed: int,
    size: int,
    max_tokens: int,
    count_tokens: Callable[[str], int],
) -> FastPart:
    """The fast part a config asks for.

    Args:
        config: the `fast` table of a run.
        roll_out: generates and judges a batch of (context, problem) pairs in one engine call.
        solve: the environment's solution of a train problem, used by `show_solutions` only.
        chat: the policy's chat, needed by `policy` reflection only.
        run_seed: seed of the run.
        size: K, the slots of a population.
        max_tokens: longest context, by `count_tokens`.
        count_tokens: tokens of a text under the policy's tokenizer.
    Raises:
        ReflectionError: if the reflection cannot be made; one sentence says why.
    """
    match config:
        case NoFast():
            return Unchanged()
        case GepaConfig():
            from fst_core.fast.gepa import GepaFast

            reflection = make_reflection(
                config.reflection, chat, lambda text: count_tokens(text) <= max_tokens
            )
            return GepaFast(
                config,
                roll_out,
                reflection,
                run_seed,
                size,
                max_tokens,
                count_tokens,
                solve if config.show_solutions else None,
            )
