"""Chats and texts as token ids: what a plan needs of a policy, without its weights."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from fst_core.config import HubPolicy, PolicyConfig, Smollm2Policy
from fst_core.config.model import ConfigError, NotHere
from fst_core.policy.locate import cached_config, locate, smollm2_is_converted
from fst_core.quiet import quiet_libraries

PROMPTS_KEPT = 4096
"""Chats whose token ids are remembered: some steps' worth, tens of megabytes."""


class Chats:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self._prompts: dict[tuple[tuple[str, str], ...], list[int]] = {}

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, ending where the assistant's turn begins."""
        return self.prompts_of([messages])[0]

    def prompts_of(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
        """Token ids of every chat; those not met before are read together, over all cores."""
        keys = [tuple((m["role"], m["content"]) for m in messages) for messages in chats]
        fresh = [key for key in dict.fromkeys(keys) if key not in self._prompts]
        if fresh:
            read = self.tokenizer.apply_chat_template(
                [[{"role": role, "content": content} for role, content in key] for key in fresh],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
            self._prompts.update(zip(fresh, cast(list[list[int]], read), strict=True))
        found = [self._prompts[key] for key in keys]
        for key in list(self._prompts)[: max(0, len(self._prompts) - PROMPTS_KEPT)]:
            del self._prompts[key]  # the earliest
        return found

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def load_tokenizer(
    path: Path | str, revision: str | None, local: bool = False
) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with a pad token that is no stop token of its own where it lacks one.

    Args:
        local: read files of this machine alone.

    Raises:
        ConfigError: if there is no tokenizer, or it has no chat template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, local_files_only=local)
    except ValueError as error:
        raise ConfigError(
            f"policy model {path}: no tokenizer can be read there; name a model of transformers, "
            "with its tokenizer's files"
        ) from error
    if tokenizer.chat_template is None:
        raise ConfigError(f"policy model {path}: its tokenizer has no chat template")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.unk_token or tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def positions_of(config: PreTrainedConfig) -> int:
    """Most tokens a model has positions for."""
    return int(getattr(config, "max_position_embeddings", 1 << 30))


def engine_window(config: PolicyConfig) -> int:
    """Most tokens that the engine was set up for."""
    limit = config.vllm.max_model_len if config.engine == "vllm" else None
    return limit or sys.maxsize


def planned_chats(policy: PolicyConfig) -> tuple[Chats, int] | None:
    """A policy's chats and window by the files of this machine; None where they are not all here.

    Raises:
        ConfigError: if the tokenizer has no chat template.
    """
    if isinstance(policy, Smollm2Policy) and not smollm2_is_converted():
        return None  # locate() would convert it now
    quiet_libraries()
    try:
        path, revision = locate(policy)
        if isinstance(path, str) and isinstance(policy, HubPolicy) and not cached_config(policy):
            return None
        tokenizer = load_tokenizer(path, revision, local=True)
        model = AutoConfig.from_pretrained(path, revision=revision, local_files_only=True)
    except (NotHere, OSError):
        return None
    return Chats(tokenizer), min(positions_of(model), engine_window(policy))
