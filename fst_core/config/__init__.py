"""What a run is: frozen pydantic models read from sparse TOML. Imports no torch, trl or gepa."""

from fst_core.config.contexts import ContextsConfig
from fst_core.config.environment import (
    DirectivesConfig,
    EnvironmentConfig,
    JsonlConfig,
    MixtureConfig,
    ReasoningGymConfig,
    SequenceConfig,
    TaskConfig,
    environment_name,
    tasks_of,
)
from fst_core.config.evaluation import EvaluationConfig, SuiteConfig
from fst_core.config.fast import (
    GepaConfig,
    HuggingFaceReflection,
    LitellmReflection,
    NoFast,
    PolicyReflection,
    ReflectionConfig,
    RulesReflection,
)
from fst_core.config.imported import (
    ChoicesConfig,
    HoverConfig,
    Imported,
    ImportedBase,
    PolarisConfig,
    VerifiersConfig,
)
from fst_core.config.loop import CheckpointConfig, LoopConfig
from fst_core.config.policy import (
    HubPolicy,
    LoraConfig,
    PolicyConfig,
    Smollm2Policy,
    TinyPolicy,
    VllmConfig,
)
from fst_core.config.reading import load_config
from fst_core.config.run import (
    CurriculumConfig,
    FastConfig,
    RetentionConfig,
    RunConfig,
    SlowConfig,
)
from fst_core.config.slow import CispoConfig, GradientSettings, NoSlow, PolicyGradient
from fst_core.config.study import ARMS, StudyConfig

__all__ = [
    "ARMS",
    "CheckpointConfig",
    "ChoicesConfig",
    "CispoConfig",
    "ContextsConfig",
    "CurriculumConfig",
    "DirectivesConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "FastConfig",
    "GepaConfig",
    "GradientSettings",
    "HoverConfig",
    "HubPolicy",
    "HuggingFaceReflection",
    "Imported",
    "ImportedBase",
    "JsonlConfig",
    "LitellmReflection",
    "LoopConfig",
    "LoraConfig",
    "MixtureConfig",
    "NoFast",
    "NoSlow",
    "PolarisConfig",
    "PolicyConfig",
    "PolicyGradient",
    "PolicyReflection",
    "ReasoningGymConfig",
    "ReflectionConfig",
    "RetentionConfig",
    "RulesReflection",
    "RunConfig",
    "SequenceConfig",
    "SlowConfig",
    "Smollm2Policy",
    "StudyConfig",
    "SuiteConfig",
    "TaskConfig",
    "TinyPolicy",
    "VerifiersConfig",
    "VllmConfig",
    "environment_name",
    "load_config",
    "tasks_of",
]
