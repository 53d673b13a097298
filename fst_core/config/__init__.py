"""What a run is: frozen pydantic models read from sparse TOML. Imports no torch, trl or gepa."""

from fst_core.config.environment import (
    DirectivesConfig,
    EnvironmentConfig,
    JsonlConfig,
    ReasoningGymConfig,
    SequenceConfig,
    TaskConfig,
    environment_name,
    tasks_of,
)
from fst_core.config.fast import (
    FastConfig,
    GepaConfig,
    HuggingFaceReflection,
    LitellmReflection,
    NoFast,
    PolicyReflection,
    ReflectionConfig,
    RulesReflection,
)
from fst_core.config.policy import HubPolicy, PolicyConfig, Smollm2Policy, TinyPolicy
from fst_core.config.run import (
    CheckpointConfig,
    ContextsConfig,
    EvaluationConfig,
    LoopConfig,
    RunConfig,
    StudyConfig,
    SuiteConfig,
    load_config,
)
from fst_core.config.slow import CispoConfig, NoSlow, SlowConfig

__all__ = [
    "CheckpointConfig",
    "CispoConfig",
    "ContextsConfig",
    "DirectivesConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "FastConfig",
    "GepaConfig",
    "HubPolicy",
    "HuggingFaceReflection",
    "JsonlConfig",
    "LitellmReflection",
    "LoopConfig",
    "NoFast",
    "NoSlow",
    "PolicyConfig",
    "PolicyReflection",
    "ReasoningGymConfig",
    "ReflectionConfig",
    "RulesReflection",
    "RunConfig",
    "SequenceConfig",
    "SlowConfig",
    "Smollm2Policy",
    "StudyConfig",
    "SuiteConfig",
    "TaskConfig",
    "TinyPolicy",
    "environment_name",
    "load_config",
    "tasks_of",
]
