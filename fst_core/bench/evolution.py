"""Our fast phase against gepa.optimize with its default adapter behind an endpoint.

Both evaluate on the same anchors with the same engine and as many metric calls. The endpoint is an
OpenAI-compatible server on loopback that answers whatever requests are waiting in one batch.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import gepa

from fst_core.bench.timing import Table, interleaved
from fst_core.config import GepaConfig, RunConfig
from fst_core.environments.tasks import Tasks
from fst_core.fast.base import FastTools
from fst_core.fast.gepa import Silence
from fst_core.fast.registry import make_fast
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import Problem, seeded
from fst_core.rollouts import roll_out

GATHER_SECONDS = 0.002
"""How long the endpoint waits for more requests before it answers those it has."""


class Batcher(threading.Thread):
    """Answers chats in batches of whatever is waiting."""

    def __init__(self, policy: LanguageModelPolicy):
        super().__init__(daemon=True)
        self.policy = policy
        self.waiting: queue.Queue[tuple[list[dict[str, str]], Future[str]]] = queue.Queue()
        self.answered = 0

    def run(self) -> None:
        """Serve for ever."""
        while True:
            batch = [self.waiting.get()]
            time.sleep(GATHER_SECONDS)
            while not self.waiting.empty():
                batch.append(self.waiting.get())
            prompts = [self.policy.prompt_ids(chat) for chat, _ in batch]
            first = self.answered
            self.answered += len(batch)
            done = self.policy.generate(prompts, range(first, self.answered))
            for (_, future), completion in zip(batch, done, strict=True):
                future.set_result(completion.text)


@contextmanager
def endpoint(policy: LanguageModelPolicy) -> Iterator[str]:
    """The address of an OpenAI-compatible chat endpoint that serves the policy."""
    batcher = Batcher(policy)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            future: Future[str] = Future()
            batcher.waiting.put((asked["messages"], future))
            message = {"role": "assistant", "content": future.result()}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = {"id": "x", "object": "chat.completion", "created": 0, "model": "policy"}
            payload = json.dumps({**body, "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    batcher.start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


def default_gepa(
    fast: GepaConfig, tasks: Tasks, problems: list[Problem], seed: str, url: str
) -> int:
    """gepa.optimize as its documentation shows it; metric calls made."""
    by_text = {p.messages[-1]["content"]: p for p in problems}
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else litellm fetches it
    os.environ["OPENAI_API_KEY"] = "none"
    os.environ["OPENAI_API_BASE"] = url

    def evaluator(data: Any, response: str) -> Any:
        from gepa.adapters.default_adapter.default_adapter import (  # noqa: PLC0415
            EvaluationResult,
        )

        verdict = tasks.judge(by_text[data["input"]], response)
        return EvaluationResult(verdict.reward, " ".join(verdict.feedback))

    rows: Any = [
        {"input": p.messages[-1]["content"], "additional_context": {}, "answer": ""}
        for p in problems
    ]
    texts = iter(range(1 << 20))
    result: Any = gepa.optimize(
        seed_candidate={"context": seed},
        trainset=rows,
        valset=rows[: fast.anchors],
        task_lm="openai/policy",
        evaluator=evaluator,
        reflection_lm=lambda _: f"```\n{seed} Be exact ({next(texts)}).\n```",
        reflection_minibatch_size=fast.minibatch,
        max_metric_calls=fast.metric_calls,
        logger=Silence(),
    )
    return int(result.total_metric_calls or 0)


def bench_evolution(config: RunConfig, repeats: int = 3) -> tuple[Table, dict[str, Any]]:
    """Seconds per metric call of both."""
    assert isinstance(config.fast, GepaConfig)
    fast, tasks, policy = config.fast, Tasks(config), LanguageModelPolicy(config.policy)
    problems = list(
        map(tasks.train, range(config.loop.cycle_steps * config.loop.problems_per_step))
    )
    spent: dict[str, list[int]] = {"gepa's default adapter": [], "our fast phase": []}
    generate_calls: list[int] = []

    def ours() -> None:
        tools = FastTools(
            lambda pairs, seeds: roll_out(policy, tasks, pairs, seeds, logprobs=False),
            tasks.solution,
            lambda *_: [],
            0,
            config.contexts.size,
            config.contexts.max_tokens,
            policy.count_tokens,
        )
        part = make_fast(fast, tools)
        start = seeded(config.contexts.seed, config.contexts.size)
        found = part.evolve(start, problems, 0, ())
        spent["our fast phase"].append(found.metric_calls)
        generate_calls.append(found.generate_calls)

    with endpoint(policy) as url:

        def theirs() -> None:
            calls = default_gepa(fast, tasks, problems, config.contexts.seed, url)
            spent["gepa's default adapter"].append(calls)

        found = interleaved({"gepa's default adapter": theirs, "our fast phase": ours}, repeats)
    per_call = {
        name: [s / n for s, n in zip(times, spent[name][1:], strict=True)]
        for name, times in found.items()
    }
    table = Table("Fast phase, per metric call", "metric calls/s")
    table.fill(per_call, 1, "gepa's default adapter")
    return table, {"metric_calls": spent, "generate_calls_of_ours": generate_calls}
