"""Which engine serves a policy."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fst_core.config import PolicyConfig
from fst_core.config.model import ConfigError
from fst_core.policy.base import Engine, sampling_dtype
from fst_core.policy.graph_engine import GraphEngine, why_not
from fst_core.policy.locate import refuse_missing_engine
from fst_core.policy.transformers_engine import TransformersEngine


def make_engine(
    config: PolicyConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: frozenset[int],
) -> Engine:
    """The engine of a config.

    Raises:
        ConfigError: if the config asks for an engine that is not installed or cannot serve the
            model.
        EngineError: if vLLM cannot serve the model, or its server does not answer.
    """
    refuse_missing_engine(config)
    if config.engine == "vllm":
        return _vllm_engine(config, model, tokenizer, stop_ids)
    reason = why_not(model)
    if config.engine == "graph" and reason:
        raise ConfigError(
            f'policy.engine = "graph" cannot serve this model: {reason}; '
            'set policy.engine = "transformers"'
        )
    on_gpu = model.device.type == "cuda"
    if config.engine == "graph" or (config.engine == "auto" and on_gpu and not reason):
        dtype = sampling_dtype(config)
        return GraphEngine(model, tokenizer, stop_ids, config.batch_size, dtype)
    return TransformersEngine(
        model, tokenizer, stop_ids, config.batch_size, config.autocast, config.share_prefixes
    )


def _vllm_engine(
    config: PolicyConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: frozenset[int],
) -> Engine:
    # Loaded on use: most runs need neither.
    if config.vllm.mode == "server":
        from fst_core.policy.vllm_server import VllmServerEngine  # noqa: PLC0415

        return VllmServerEngine(model, tokenizer, stop_ids, config)
    from fst_core.policy.vllm_engine import VllmEngine  # noqa: PLC0415

    return VllmEngine(model, tokenizer, stop_ids, config)
