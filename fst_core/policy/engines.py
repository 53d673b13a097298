"""Which engine serves a policy."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fst_core.config import PolicyConfig
from fst_core.policy.base import Engine
from fst_core.policy.locate import refuse_missing_engine
from fst_core.policy.transformers_engine import TransformersEngine


def make_engine(
    config: PolicyConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: frozenset[int],
) -> Engine:
    """The engine of a config; "auto" and "transformers" are the same so far.

    Raises:
        ConfigError: if the config asks for vllm, which this version does not serve yet.
    """
    refuse_missing_engine(config)
    return TransformersEngine(model, tokenizer, stop_ids, config.batch_size, config.autocast)
