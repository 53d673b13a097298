"""From config to fast part; heavy and optional packages load here, on use."""

from collections.abc import Callable, Mapping, Sequence

from fst_core.config.fast import (
    GepaConfig,
    HuggingFaceReflection,
    LitellmReflection,
    NoFast,
    PolicyReflection,
    RulesReflection,
)
from fst_core.config.method import FastSettings
from fst_core.fast.base import Chat, Evolution, FastPart, FastTools
from fst_core.fast.language_model import LanguageModelReflection
from fst_core.fast.reflection import Reflection, ReflectionError
from fst_core.methods import FAST, load
from fst_core.records import Population, Problem, Rollout

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
    if isinstance(config, RulesReflection):
        from fst_core.fast.rules import Rules

        return Rules(config, fits)
    chat, usage = make_chat(config, chat)
    return LanguageModelReflection(chat, config.type, usage)


def make_chat(
    config: PolicyReflection | LitellmReflection | HuggingFaceReflection, chat: Chat | None
) -> tuple[Chat, Callable[[], Mapping[str, float]]]:
    """The language model a reflection asks, and what it has used so far (see `Reflection.usage`).

    Args:
        config: which language model.
        chat: the policy's chat, for `policy` only; it samples as that config says.
    Raises:
        ReflectionError: if a package, model or chat that the config needs is missing.
    """
    match config:
        case PolicyReflection():
            if chat is None:
                raise ReflectionError("fast.reflection.type = 'policy' needs the policy's chat")
            return chat, dict
        case HuggingFaceReflection():
            from fst_core.fast.local_chat import LocalChat

            return LocalChat(config), dict
        case LitellmReflection():
            from fst_core.fast.api_chat import ApiChat, LitellmRequest

            api = ApiChat(config, LitellmRequest(config))
            return api, api.usage


def make_unchanged(settings: NoFast, tools: FastTools) -> FastPart:
    """The fast part of an arm without one."""
    return Unchanged()


def make_gepa(settings: GepaConfig, tools: FastTools) -> FastPart:
    """GEPA with the reflection its settings ask for."""
    from fst_core.fast.gepa import GepaFast

    return GepaFast(
        settings,
        tools.roll_out,
        make_reflection(settings.reflection, tools.chat, tools.fits),
        tools.run_seed,
        tools.size,
        tools.max_tokens,
        tools.count_tokens,
        tools.solve if settings.show_solutions else None,
    )


def make_fast(settings: FastSettings, tools: FastTools) -> FastPart:
    """The fast part that the `fast` table of a run asks for.

    Raises:
        ReflectionError: if the reflection cannot be made; one sentence says why.
    """
    part: FastPart = load(FAST[settings.type].make)(settings, tools)
    return part
