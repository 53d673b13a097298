"""Every method a config can name by `type`, one line each; a new one is a file and a line here.

A line says where the method's settings are (a ConfigModel; its module loads no torch) and what
makes the part from them. Nothing is imported before it is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Method:
    """Where a method lives, as "module:name" of its settings and of `make(settings, tools)`.

    `prompts` is for fast parts that reflect by a language model: `prompts(settings, context)` gives
    the shortest chat of each kind that they ask it about a context.
    """

    settings: str
    make: str
    prompts: str = ""


FAST: Mapping[str, Method] = {
    "none": Method("fst_core.config.fast:NoFast", "fst_core.fast.registry:make_unchanged"),
    "gepa": Method(
        "fst_core.config.fast:GepaConfig",
        "fst_core.fast.registry:make_gepa",
        "fst_core.fast.language_model:least_prompts",
    ),
    "espl": Method(
        "fst_core.fast.espl:EsplConfig",
        "fst_core.fast.espl:make",
        "fst_core.fast.principles:least_prompts",
    ),
    "mutation": Method(
        "fst_core.fast.mutation:MutationConfig",
        "fst_core.fast.mutation:make",
        "fst_core.fast.language_model:least_prompts",
    ),
    "playbook": Method(
        "fst_core.fast.playbook:PlaybookConfig",
        "fst_core.fast.playbook:make",
        "fst_core.fast.editors:least_prompts",
    ),
}
SLOW: Mapping[str, Method] = {
    "none": Method("fst_core.config.slow:NoSlow", "fst_core.slow.registry:make_none"),
    "cispo": Method("fst_core.config.slow:CispoConfig", "fst_core.slow.group:GroupSlow"),
    "grpo": Method("fst_core.slow.objectives:Grpo", "fst_core.slow.group:GroupSlow"),
    "dapo": Method("fst_core.slow.objectives:Dapo", "fst_core.slow.resample:make"),
    "dr_grpo": Method("fst_core.slow.objectives:DrGrpo", "fst_core.slow.group:GroupSlow"),
    "gspo": Method("fst_core.slow.objectives:Gspo", "fst_core.slow.group:GroupSlow"),
    "rloo": Method("fst_core.slow.objectives:Rloo", "fst_core.slow.group:GroupSlow"),
    "reinforce++": Method(
        "fst_core.slow.objectives:ReinforcePlusPlus", "fst_core.slow.group:GroupSlow"
    ),
    "expert": Method(
        "fst_core.slow.supervised:ExpertIteration", "fst_core.slow.imitation:ExpertSlow"
    ),
    "sft": Method("fst_core.slow.supervised:GivenAnswers", "fst_core.slow.imitation:GivenSlow"),
    "hpt": Method(
        "fst_core.slow.supervised:HybridPostTraining", "fst_core.slow.imitation:HybridSlow"
    ),
    "distill": Method(
        "fst_core.slow.distill:DistillSettings", "fst_core.slow.distill_trainer:DistillSlow"
    ),
}
CURRICULUM: Mapping[str, Method] = {
    "stream": Method("fst_core.config.curriculum:Stream", "fst_core.curriculum.stream:InOrder"),
    "uniform": Method(
        "fst_core.curriculum.uniform:Uniform", "fst_core.curriculum.uniform:AtRandom"
    ),
    "adaptive": Method(
        "fst_core.curriculum.adaptive:Adaptive", "fst_core.curriculum.adaptive:ByDifficulty"
    ),
    "dump": Method("fst_core.curriculum.dump:Dump", "fst_core.curriculum.dump:TaskBandit"),
    "easy_to_hard": Method(
        "fst_core.curriculum.easy_to_hard:EasyToHard", "fst_core.curriculum.easy_to_hard:InSchedule"
    ),
}
RETENTION: Mapping[str, Method] = {
    "kl": Method("fst_core.slow.retention:KlRetention", "fst_core.slow.retention_loss:Kl"),
    "l2": Method("fst_core.slow.retention:L2Retention", "fst_core.slow.retention_loss:L2"),
    "ewc": Method("fst_core.slow.retention:EwcRetention", "fst_core.slow.retention_loss:Ewc"),
    "replay": Method("fst_core.curriculum.replay:Replay", "fst_core.curriculum.replay:Replayed"),
    "reweight": Method(
        "fst_core.curriculum.reweight:Reweight", "fst_core.curriculum.reweight:Reweighted"
    ),
}


def load(reference: str) -> Any:
    """What "module:name" names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def settings_of(methods: Mapping[str, Method]) -> tuple[type[Any], ...]:
    """The settings class of every method of a kind."""
    return tuple(load(method.settings) for method in methods.values())
