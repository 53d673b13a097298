"""What the libraries are told before they load: no telemetry, no spinning threads, no noise.

Imports none of them. A value that is already in the environment wins.
"""

import os
import re
import sys
import warnings

from fst_core.config import (
    HubPolicy,
    HuggingFaceReflection,
    ImportedBase,
    RunConfig,
    TaskConfig,
    VerifiersConfig,
    tasks_of,
)

ENVIRONMENT = {
    # Idle OpenMP threads sleep instead of spinning: runs share the cores of one machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "TOKENIZERS_PARALLELISM": "true",  # said outright, so that no process warns when it forks
    # Nobody is told about a run.
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    # Progress is shown once, by the lab. transformers takes its bars from the hub's switch.
    "TRANSFORMERS_VERBOSITY": "error",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}

KNOWN_WARNINGS = {
    # The engine passes its cache by the name that every tested transformers knows; TRL wraps the
    # call, so the warning comes from one of two places.
    "torch.nn.modules.module": ("`past_key_values` is deprecated",),
    "trl.trainer.utils": ("`past_key_values` is deprecated",),
    "transformers.training_args": ("`gradient_checkpointing` is deprecated",),
    "transformers.modeling_utils": (
        "`is_gradient_checkpointing` is deprecated",
        "`gradient_checkpointing_enable` is deprecated",
        "`gradient_checkpointing_disable` is deprecated",
    ),
}
"""FutureWarnings between transformers and TRL that no setting of the lab can answer, by module."""


def settle_environment() -> None:
    """Set the libraries' switches; call before torch, transformers, mlflow or prefect load."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _filter_warnings()


def settle_for(config: RunConfig) -> None:
    """Set the switches that depend on a run: its CPU threads, and no hub where it needs none."""
    os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))
    if not needs_hub(config):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def needs_hub(config: RunConfig) -> bool:
    """Whether a run may have to fetch a model or a data set: false for what comes as packages."""
    reflects = isinstance(config.fast.writer, HuggingFaceReflection)
    tasks = [*tasks_of(config.environment), *(s.environment for s in config.evaluation.suites)]
    return reflects or isinstance(config.policy, HubPolicy) or any(map(_fetches, tasks))


def _fetches(task: TaskConfig) -> bool:
    if isinstance(task, ImportedBase):
        return task.hub is not None
    return isinstance(task, VerifiersConfig)


def quiet_libraries() -> None:
    """The same for a process that had loaded transformers before `settle_environment`."""
    _filter_warnings()
    logging = sys.modules.get("transformers.utils.logging")
    if logging is not None:
        logging.disable_progress_bar()
        logging.set_verbosity_error()


def _filter_warnings() -> None:
    for module, messages in KNOWN_WARNINGS.items():
        for message in messages:
            warnings.filterwarnings(
                "ignore", re.escape(message), FutureWarning, rf"{re.escape(module)}$"
            )
