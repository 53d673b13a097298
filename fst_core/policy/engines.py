"""Which engine serves a policy."""

import importlib.util

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fst_core.config import PolicyConfig
from fst_core.config.model import ConfigError
from fst_core.policy.base import Engine
from fst_core.policy.transformers_engine import TransformersEngine


def make_engine(
    config: PolicyConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: frozenset[int],
) -> Engine:
    """The engine of a config.

    Raises:
        ConfigError: if the config asks for vllm, which this version does not serve yet.
    """
    if config.engine == "vllm":
        found = importlib.util.find_spec("vllm") is not None and torch.cuda.is_available()
        state = "is installed, but" if found else "is not installed or no GPU is present, and"
        raise ConfigError(
            f'policy.engine = "vllm": vllm {state} this version generates with transformers only; '
            'set policy.engine = "transformers" or "auto"'
        )
    return TransformersEngine(model, tokenizer, stop_ids, config.batch_size, config.autocast)
