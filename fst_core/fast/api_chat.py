"""Any API model or OpenAI-compatible server as the chat behind reflection, through litellm.

litellm is optional and loads on use. Keys come from the environment alone and appear in no message:
a failure is reported by its kind and status, never by the server's own words.
"""

import importlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fst_core.config.fast import LitellmReflection
from fst_core.fast.base import Messages
from fst_core.fast.reflection import ReflectionError
from fst_core.records import well_formed

WORTH_RETRYING = (408, 409, 425, 429)
"""HTTP statuses below 500 that may pass."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answered request; `text` is None for an answer that held no text."""

    text: str | None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0


class RequestFailed(RuntimeError):
    """A request got no answer; the message names the kind of failure and holds no secret."""

    def __init__(self, reason: str, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


Request = Callable[[Messages, int], Reply]
"""(chat, seed) -> reply, or RequestFailed."""


def address_of(api_base: str | None) -> str:
    """The server's address without user name, password or query."""
    if api_base is None:
        return "the provider's address"
    parts = urlsplit(api_base)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def load(module: str) -> Any:
    """An optional package, imported on use."""
    return importlib.import_module(module)


class LitellmRequest:
    """One request through litellm.

    Raises:
        ReflectionError: if litellm is not installed.
    """

    def __init__(self, config: LitellmReflection) -> None:
        # Both are read while litellm loads: no price list from the network, no .env file.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
        try:
            self._litellm = load("litellm")
        except ModuleNotFoundError as error:
            raise ReflectionError(
                "fast.reflection.type = 'litellm' needs the package litellm: "
                "install this project with its extra 'litellm'"
            ) from error
        self._http_error = load("httpx").HTTPError
        self._api_error = load("openai").OpenAIError
        self._litellm.suppress_debug_info = True
        self._config = config

    def __call__(self, chat: Messages, seed: int) -> Reply:
        """Send one chat.

        Raises:
            RequestFailed: if no answer came; an answer that cannot be read is a Reply without text.
        """
        try:
            response = self._litellm.completion(**self._arguments(chat, seed))
        except self._api_error as error:
            if self._is_unreadable_answer(error):
                return Reply(None)
            status = getattr(error, "status_code", None)
            may_pass = status is None or status >= 500 or status in WORTH_RETRYING
            raise RequestFailed(self._kind(error, status), may_pass) from None
        return reply_of(response)

    def _arguments(self, chat: Messages, seed: int) -> dict[str, Any]:
        config = self._config
        local = config.api_base is not None and config.model.startswith("openai/")
        keyless = local and not os.environ.get("OPENAI_API_KEY")
        return {
            "model": config.model,
            "messages": chat,
            "api_base": config.api_base,
            "api_key": "none" if keyless else None,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "timeout": config.timeout_seconds,
            "seed": seed % 2**31,
            "drop_params": True,
            "max_retries": 0,
        }

    def _is_unreadable_answer(self, error: Exception) -> bool:
        """litellm reports a 200 that it cannot parse as a server error without an HTTP cause."""
        http = any(isinstance(cause, self._http_error) for cause in causes(error))
        return isinstance(error, self._litellm.InternalServerError) and not http

    def _kind(self, error: Exception, status: int | None) -> str:
        """The most basic HTTP failure behind an error, such as ConnectError or ReadTimeout."""
        http = [cause for cause in causes(error) if isinstance(cause, self._http_error)]
        name = type(http[0] if http else error).__name__
        return name if name.endswith(("Timeout", "ConnectError")) else f"{name}, status {status}"


def reply_of(response: Any) -> Reply:
    """A litellm response as a Reply."""
    usage = getattr(response, "usage", None)
    text = response.choices[0].message.content if response.choices else None
    return Reply(
        None if text is None else well_formed(text),
        getattr(usage, "prompt_tokens", 0) or 0,
        getattr(usage, "completion_tokens", 0) or 0,
        response._hidden_params.get("response_cost") or 0.0,
    )


class ApiChat:
    """Answers a batch of chats, `concurrency` at a time, with retries; adds up tokens and cost."""

    def __init__(
        self, config: LitellmReflection, request: Request, pause_seconds: float = 0.5
    ) -> None:
        self._config = config
        self._request = request
        self._pause_seconds = pause_seconds
        self._usage: defaultdict[str, float] = defaultdict(float)

    def usage(self) -> Mapping[str, float]:
        """prompt_tokens, completion_tokens and usd so far (usd 0 where the price is unknown)."""
        keys = ("prompt_tokens", "completion_tokens", "usd")
        return {key: self._usage[key] for key in keys}

    def __call__(self, chats: Sequence[Messages], seeds: Sequence[int]) -> list[str | None]:
        """Replies in order.

        When one fails for good, no other is begun, those in flight are waited for and accounted
        for, and the first failure in order is raised.

        Raises:
            ReflectionError: if a request still fails after the retries.
        """
        failed = threading.Event()

        def ask(chat: Messages, seed: int) -> Reply:
            if failed.is_set():
                return Reply(None)
            try:
                return self._try(chat, seed)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(self._config.concurrency) as pool:
            asked = [pool.submit(ask, *pair) for pair in zip(chats, seeds, strict=True)]
        for reply in [future.result() for future in asked if future.exception() is None]:
            self._usage["prompt_tokens"] += reply.prompt_tokens
            self._usage["completion_tokens"] += reply.completion_tokens
            self._usage["usd"] += reply.usd
        return [future.result().text for future in asked]

    def _try(self, chat: Messages, seed: int) -> Reply:
        tries = 0
        while True:
            tries += 1
            try:
                return self._request(chat, seed)
            except RequestFailed as failure:
                if not failure.may_pass or tries > self._config.retries:
                    raise ReflectionError(
                        f"reflection model {self._config.model!r} at "
                        f"{address_of(self._config.api_base)} failed after {tries} "
                        f"{'try' if tries == 1 else 'tries'}: {failure}"
                    ) from failure
                time.sleep(self._pause_seconds * 2 ** (tries - 1))
