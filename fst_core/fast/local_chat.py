"""A local transformers model, apart from the policy, as the chat behind reflection."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fst_core.config.fast import HuggingFaceReflection
from fst_core.config.model import NotHere
from fst_core.fast.base import Messages
from fst_core.fast.reflection import ReflectionError
from fst_core.policy.locate import refuse_unreachable, whole_in_cache
from fst_core.records import seed_of


class LocalChat:
    """Answers a batch of chats in one generate call; the same batch and seeds, the same answers.

    Raises:
        ReflectionError: if the model cannot be loaded or has no chat template.
    """

    def __init__(self, config: HuggingFaceReflection) -> None:
        self._config = config
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            refuse_unreachable("fast.reflection.model", config.model, None)
            path = whole_in_cache(config.model, None) or config.model
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, padding_side="left")
            model: Any = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
        except NotHere as error:
            raise ReflectionError(str(error)) from error
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ReflectionError(
                f"the reflection model {config.model!r} cannot be loaded: {reason}"
            ) from error
        if self._tokenizer.chat_template is None:
            raise ReflectionError(f"the reflection model {config.model!r} has no chat template")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model = model.to(self._device).eval()

    def __call__(self, chats: Sequence[Messages], seeds: Sequence[int]) -> list[str]:
        """Replies in order; the caller's random state stays as it was."""
        prompts = [
            self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in chats
        ]
        batch = self._tokenizer(
            prompts, return_tensors="pt", padding=True, add_special_tokens=False
        ).to(self._device)
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed_of("reflection chat", *seeds))
            tokens = self._model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                do_sample=True,
                temperature=self._config.temperature,
                max_new_tokens=self._config.max_new_tokens,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        new = tokens[:, batch["input_ids"].shape[1] :]
        return list(self._tokenizer.batch_decode(new, skip_special_tokens=True))
