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


class Chats:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self._prompts: dict[tuple[tuple[str, str], ...], list[int]] = {}

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, ending where the assistant's turn begins."""
        key = tuple((m["role"], m["content"]) for m in messages)
        if key not in self._prompts:
            chat = [{"role": role, "content": content} for role, content in key]
            ids = self.tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            self._prompts[key] = cast(list[int], ids)
        return self._prompts[key]

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
        ConfigError: if the tokenizer has no chat template.
    """
    tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, local_files_only=local)
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
