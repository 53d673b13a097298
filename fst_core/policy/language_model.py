"""The policy: a causal language model with a chat template, its engine and its frozen base."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from fst_core.config import HubPolicy, PolicyConfig
from fst_core.config.model import ConfigError
from fst_core.policy.adapters import add_adapters, hold_adapters, plain, with_merged
from fst_core.policy.base import Engine, Sampling, TokenScores
from fst_core.policy.chats import Chats, engine_window, load_tokenizer
from fst_core.policy.device import pick_device
from fst_core.policy.engines import make_engine
from fst_core.policy.locate import locate, refuse_missing_peft, refuse_unreachable
from fst_core.policy.prefix import behind_prefixes, positions, shares
from fst_core.policy.transformers_engine import left_pad, looking, window_of
from fst_core.quiet import quiet_libraries
from fst_core.records import Completion

SCORING_TOKENS = 1 << 14
"""Most tokens (padding included) of one forward pass when scoring."""
SCORING_LOGITS = 1 << 28
"""Most logits (completion tokens times vocabulary) of one model held at once when scoring."""


def load_model(path: Path | str, config: PolicyConfig, revision: str | None) -> PreTrainedModel:
    """Weights from a folder or hub id, in the config's dtype, on its device, in eval mode.

    Raises:
        ConfigError: if there is no such model.
    """
    quiet_libraries()
    # cuDNN's fused attention returns NaN gradients in bf16 where a query row is wholly masked, as
    # left padding is (torch 2.11, H200); PyTorch's other kernels do not.
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, revision=revision, dtype=getattr(torch, config.dtype), attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy model {path}: cannot be loaded ({_first_line(error)})"
        ) from error
    model.eval()
    model.to(pick_device(config.device))  # type: ignore[arg-type]  # transformers' decorator hides it
    return model


def sharded() -> bool:
    """Whether accelerate's launch shards the trained weights over the processes (FSDP)."""
    launched = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return launched and int(os.environ.get("WORLD_SIZE", "1")) > 1


def at_server(config: PolicyConfig) -> bool:
    """Whether the engine is a server, which all processes of a run share."""
    return config.engine == "vllm" and config.vllm.mode == "server"


@torch.no_grad()
def copy_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Copy parameters by name, gathering sharded ones one at a time, into the target's dtype."""
    into = dict(target.named_parameters())
    for name, value in source.named_parameters():
        into[name].copy_(value.full_tensor() if isinstance(value, DTensor) else value)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


class LanguageModelPolicy(Chats):
    """A live model, formatted, sampled and scored (see `fst_core.policy.base.Policy`).

    Args:
        weights: folder of weights, or of adapters, to begin with; None begins with the base
            model's.
    Attributes:
        trained: what the slow part trains: `model`, or with `policy.lora` the peft model around it.
    Raises:
        ConfigError: if there is no such model, or `weights` are of another architecture.
    """

    def __init__(self, config: PolicyConfig, weights: Path | None = None):
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        self.config = config
        if isinstance(config, HubPolicy):
            refuse_unreachable("policy.model", config.model, config.revision)
        self.path, self.revision = locate(config)
        if config.lora:
            refuse_missing_peft(config)
            _refuse_beside_adapters(weights)
        self.model = self.trained = self._load(weights, config)
        self.path, self.revision = locate(config)  # in the cache by now, if the hub was asked
        self.model.config._name_or_path = str(self.path)  # where TRL loads its reference from
        if config.lora:
            self.trained = add_adapters(self.model, config, weights)
            self.base = plain(self.model)  # now: the slow part patches the model's forward pass
        super().__init__(load_tokenizer(self.path, self.revision))
        self.live = self._whole_copy(weights) if sharded() else self.model
        self.stop_ids = stop_ids(self.model, self.tokenizer)
        self.sampling = Sampling(config.temperature, config.max_new_tokens)
        self.engine: Engine = make_engine(config, self.live, self.tokenizer, self.stop_ids)
        self.version = 0
        self._copied = 0
        self.window = min(window_of(self.model), engine_window(config))

    def _load(self, weights: Path | None, config: PolicyConfig) -> PreTrainedModel:
        """The weights to begin with, whole; those that adapters go beside are the base model's."""
        if weights is None or config.lora:
            return load_model(self.path, config, self.revision)
        if hold_adapters(weights):
            return with_merged(load_model(self.path, config, self.revision), config, weights)
        _refuse_other_architecture(self.path, self.revision, weights)
        return load_model(weights, config, None)

    def _whole_copy(self, weights: Path | None) -> PreTrainedModel:
        """What engine and scoring read where FSDP keeps only a shard of the trained weights."""
        return self._load(weights, self._copy_config()).requires_grad_(False)

    def _copy_config(self) -> PolicyConfig:
        """The config of models beside a sharded one: bfloat16 under autocast, which saves half."""
        lower = sharded() and self.config.autocast
        return self.config.model_copy(update={"dtype": "bfloat16"}) if lower else self.config

    def _refresh(self) -> None:
        """Gather the trained weights into the copy, once per version; every rank takes part."""
        if self.live is not self.model and self._copied != self.version:
            copy_weights(self.model, self.live)
            self._copied = self.version

    def ask(
        self,
        engine: Engine,
        version: int,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling,
    ) -> list[Completion]:
        """Completions of an engine at a version; of several ranks, one alone talks to a server."""
        if not (dist.is_initialized() and at_server(self.config)):
            engine.sync(version)
            return engine.generate(prompts, seeds, sampling)
        asked: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(asked, (prompts, seeds))
        told: list[Any] = [None]
        if dist.get_rank() == 0:
            engine.sync(version)
            rows, row_seeds = (
                [x for part in column for x in part] for column in zip(*asked, strict=True)
            )
            told = [engine.generate(rows, row_seeds, sampling)]
        dist.broadcast_object_list(told, src=0)
        start = sum(len(theirs) for theirs, _ in asked[: dist.get_rank()])
        mine: list[Completion] = told[0][start : start + len(prompts)]
        return mine

    @cached_property
    def base(self) -> PreTrainedModel:
        """The base model, frozen, loaded on first use; with adapters, of `model`'s own tensors."""
        model = load_model(self.path, self._copy_config(), self.revision)
        return model.requires_grad_(False)

    def count_parameters(self) -> dict[str, int]:
        """How many parameters there are, and how many of them a slow part trains."""
        sizes = [(p.numel(), p.requires_grad) for p in self.model.parameters()]
        return {
            "all": sum(size for size, _ in sizes),
            "trainable": sum(size for size, trainable in sizes if trainable),
        }

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling | None = None,
    ) -> list[Completion]:
        """Completions from the engine; `sampling` None takes the run's own."""
        self._refresh()
        return self.ask(self.engine, self.version, prompts, seeds, sampling or self.sampling)

    @cached_property
    def frozen(self) -> "FrozenPolicy":
        """The base model as a sampler, made on first use."""
        engine = make_engine(self.config, self.base, self.tokenizer, self.stop_ids)
        return FrozenPolicy(self, engine)

    def score(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> list[TokenScores]:
        """See `fst_core.policy.base.Policy.score`."""
        rows = [(tuple(p), c.token_ids) for p, c in zip(prompts, completions, strict=True)]
        scores: dict[int, TokenScores] = {}
        vocabulary = int(self.model.config.vocab_size)
        self._refresh()
        with looking(self.live, self.config.autocast):
            for chunk in _chunks(rows, max(1, SCORING_LOGITS // vocabulary)):
                batch = [rows[i] for i in chunk]
                logp_BTV, ids_BT = self._distributions(self.live, batch)
                base_BTV, _ = self._distributions(self.base, batch)
                for i, columns in zip(chunk, _score(logp_BTV, base_BTV, ids_BT), strict=True):
                    scores[i] = TokenScores(*(tuple(c[: len(rows[i][1])]) for c in columns))
        return [scores[i] for i in range(len(rows))]

    def _distributions(
        self, model: PreTrainedModel, rows: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log pi(. | x, y_<t) of each row's completion (B, longest completion, V), and y (B, T).

        Right-padded.
        """
        pad = int(self.tokenizer.pad_token_id)
        width = max(len(completion) for _, completion in rows)
        full = [[*prompt, *completion] for prompt, completion in rows]
        tails = [width - len(completion) for _, completion in rows]
        padded = [row + [pad] * tail for row, tail in zip(full, tails, strict=True)]
        ids_BT, mask_BT = left_pad(padded, pad, model.device)
        for i, tail in enumerate(tails):
            if tail:
                mask_BT[i, -tail:] = 0
        inputs = None
        if self.config.share_prefixes and shares(model):
            inputs = behind_prefixes(model, ids_BT, mask_BT, ids_BT.shape[1] - width)
        if inputs is None:
            inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
            inputs |= {"position_ids": positions(mask_BT), "use_cache": False}
        logits = model(**inputs, logits_to_keep=width + 1).logits[:, :-1]
        logp_BTV = torch.log_softmax(logits.float() / self.sampling.temperature, dim=-1)
        return logp_BTV, ids_BT[:, -width:]


class FrozenPolicy:
    """The base model of a policy (see `fst_core.policy.base.Sampler`); its version is always 0."""

    def __init__(self, policy: LanguageModelPolicy, engine: Engine):
        self.policy = policy
        self.engine = engine
        self.sampling = policy.sampling
        self.version = 0

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, ending where the assistant's turn begins."""
        return self.policy.prompt_ids(messages)

    def prompts_of(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
        """The same of every chat, at once."""
        return self.policy.prompts_of(chats)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling | None = None,
    ) -> list[Completion]:
        """Completions of the base model; `sampling` None takes the run's own."""
        chosen = sampling or self.policy.sampling
        return self.policy.ask(self.engine, self.version, prompts, seeds, chosen)


def _score(
    logp_BTV: torch.Tensor, base_BTV: torch.Tensor, ids_BT: torch.Tensor
) -> Iterator[tuple[list[float], ...]]:
    """Per row: log-probabilities by both, exact KL and entropy, as in TokenScores."""
    chosen = ids_BT[..., None]
    p_BTV = logp_BTV.exp()
    columns = (
        logp_BTV.gather(2, chosen).squeeze(2),
        base_BTV.gather(2, chosen).squeeze(2),
        (p_BTV * (logp_BTV - base_BTV)).sum(-1),
        -(p_BTV * logp_BTV).sum(-1),
    )
    return zip(*(column.tolist() for column in columns), strict=True)


def _refuse_other_architecture(base: Path | str, revision: str | None, weights: Path) -> None:
    """Raise if weights are no continuation of the base model.

    Raises:
        ConfigError: naming the setting that differs.
    """
    try:
        ours = AutoConfig.from_pretrained(base, revision=revision).to_dict()
        theirs = AutoConfig.from_pretrained(weights).to_dict()
    except (OSError, ValueError) as error:
        raise ConfigError(f"start_from: {weights} holds no model ({_first_line(error)})") from error
    for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size"):
        if ours.get(key) != theirs.get(key):
            raise ConfigError(
                f"start_from: the weights in {weights} are of another architecture than the "
                f"policy ({key} {theirs.get(key)!r} against {ours.get(key)!r}); take a run of the "
                "same policy"
            )


def _refuse_beside_adapters(weights: Path | None) -> None:
    """Raise if adapters cannot be trained beside the base model's weights here.

    Raises:
        ConfigError: if weights to begin with are no adapters, or FSDP shards the model.
    """
    if sharded():
        raise ConfigError(
            "policy.lora does not go with FSDP; launch with DDP (infra/accelerate/ddp.yaml), or "
            "leave policy.lora out"
        )
    if weights is not None and not hold_adapters(weights):
        raise ConfigError(
            f"start_from: {weights} holds whole weights, and policy.lora trains adapters beside "
            "those of the base model; leave policy.lora out, or start from a run that has it"
        )


def _chunks(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], completion_tokens: int
) -> Iterator[list[int]]:
    """Row indices in batches of similar length.

    At most SCORING_TOKENS padded tokens each, and `completion_tokens` padded completion tokens.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
    chunk: list[int] = []
    width = 0
    for i in order:
        length = len(rows[i][0]) + len(rows[i][1])
        width = max(width, len(rows[i][1]))
        size = len(chunk) + 1
        if chunk and (size * length > SCORING_TOKENS or size * (width + 1) > completion_tokens):
            yield chunk
            chunk, width = [], len(rows[i][1])
        chunk.append(i)
    if chunk:
        yield chunk


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Token ids that end a completion: the tokenizer's and the generation config's."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(int(i) for i in [*listed, tokenizer.eos_token_id] if i is not None)
