"""The client of a vLLM server against a small HTTP server that speaks its protocol and fails.

The real server is in tests/vllm; here are the failures that it does not show on request.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from fst_core.config import TinyPolicy, VllmConfig
from fst_core.config.model import ConfigError
from fst_core.failures import sentence_for
from fst_core.interleave import interleave
from fst_core.journal import effective, read_events
from fst_core.policy import vllm_server
from fst_core.policy.adapters import whole_weights
from fst_core.policy.base import ContextTooLong, EngineError
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.locate import refuse_missing_engine
from fst_core.policy.vllm_server import VllmServerEngine
from fst_core.preflight import preflight
from fst_core.session import Session
from tests.runs import tiny_config

COMPLETIONS, RELOAD = "/v1/completions", "/collective_rpc"
STOP = 2
Plan = Callable[[str, int], str]
"""(route, how often it was asked before) -> "answer", "hang", "500", "refuse", "drop", "die"."""


class FakeVllm(ThreadingHTTPServer):
    """Answers a prompt with its own last token, its seed folded, and a stop token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan: Plan = lambda route, before: "answer"
        self.asked: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.loaded: list[dict[str, Any]] = []
        self.weight_version = "default"
        self.absent: set[str] = set()
        self.info = {"logprobs_mode": "processed_logprobs", "device": "cuda"}
        self.answers: dict[str, Any] = {}
        """What routes answer instead of what they should: JSON, or bytes as they are."""
        self.delay: Callable[[dict[str, Any]], float] = lambda body: 0.0
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reply(self, route: str, body: dict[str, Any]) -> Any:
        if route in self.answers:
            return self.answers[route]
        if route == "/v1/models":
            return {"data": [{"id": "tiny", "max_model_len": 512}]}
        if route == "/server_info":
            return {
                "vllm_config": {
                    "model_config": {"logprobs_mode": self.info["logprobs_mode"]},
                    "device_config": {"device": self.info["device"]},
                }
            }
        if route == "/weight_info":
            return {"weight_version": self.weight_version}
        if route == "/update_weight_version":
            self.weight_version = body["new_version"]
            return {"success": True}
        if route == "/reset_prefix_cache":
            return {"success": True}
        if route == RELOAD:
            folder = Path(body["kwargs"]["weights_path"])
            self.loaded.append(load_file(folder / "model.safetensors"))
            return {"results": [None]}
        return self.complete(body)

    def complete(self, body: dict[str, Any]) -> Any:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.requests.append(body)
        time.sleep(self.delay(body))
        with self.lock:
            self.now -= 1
        tokens = [body["prompt"][-1], 3 + body["seed"] % 50, STOP]
        asked = body.get("logprobs") is not None
        logprobs = {"token_logprobs": [-0.5, -1.0, -1.5]} if asked else None
        return {"choices": [{"token_ids": tokens, "logprobs": logprobs, "finish_reason": "stop"}]}


class Handler(BaseHTTPRequestHandler):
    server: FakeVllm

    def do_GET(self) -> None:
        self.serve({})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        self.serve(json.loads(self.rfile.read(size) or b"{}"))

    def serve(self, body: dict[str, Any]) -> None:
        server, route = self.server, self.path.partition("?")[0]
        with server.lock:
            before = server.asked[route]
            server.asked[route] += 1
        what = server.plan(route, before)
        if route in server.absent:
            return self.send(404, {"detail": "Not Found"})
        if what == "500":
            return self.send(500, {"error": {"message": "the engine is dead"}})
        if what == "refuse":
            return self.send(400, {"error": {"message": "Token id 800 is out of vocabulary"}})
        if what == "hang":
            server.released.wait(20)
        if what == "die":
            server.socket.close()
        if what in ("hang", "die", "drop"):
            self.close_connection = True
            return None
        return self.send(200, server.reply(route, body))

    def send(self, status: int, answer: Any) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVllm]:
    monkeypatch.setattr(vllm_server, "FIRST_PAUSE_SECONDS", 0.01)
    with FakeVllm() as fake:
        thread = threading.Thread(target=lambda: fake.serve_forever(0.05), daemon=True)
        thread.start()
        yield fake
        fake.released.set()
        fake.shutdown()
    vllm_server.connect.cache_clear()


def settings(server: FakeVllm, folder: Path, **vllm: Any) -> dict[str, Any]:
    where = {"mode": "server", "url": server.url, "weights_folder": str(folder)}
    return {"engine": "vllm", "vllm": {**where, "retries": 2, "timeout_s": 20, **vllm}}


def policy_of(
    server: FakeVllm, folder: Path, batch_size: int = 8, **vllm: Any
) -> LanguageModelPolicy:
    config = {"batch_size": batch_size, **settings(server, folder, **vllm)}
    return LanguageModelPolicy(TinyPolicy.model_validate(config))


def test_rows_are_asked_one_by_one_with_their_own_context_and_seed_and_kept_in_order(
    server: FakeVllm, tmp_path: Path
) -> None:
    server.delay = lambda body: 0.02 * (body["seed"] % 3)  # answers come back in another order
    policy = policy_of(server, tmp_path)
    rows = [[10 + i, 20 + i] for i in range(24)]
    seeds = [*range(23), 1 << 63]
    done = policy.generate(rows, seeds)
    assert [c.token_ids for c in done] == [
        (20 + i, 3 + (seed & (1 << 63) - 1) % 50, STOP) for i, seed in enumerate(seeds)
    ]
    assert {c.logprobs for c in done} == {(-0.5, -1.0, -1.5)}
    sent = server.requests
    assert sorted(body["prompt"] for body in sent) == rows
    assert {(b.get("n", 1), b["top_p"], b["top_k"], b["max_tokens"]) for b in sent} == {
        (1, 1.0, 0, 16)
    }
    assert all(STOP in body["stop_token_ids"] for body in sent)
    assert isinstance(policy.engine, VllmServerEngine)
    assert (policy.engine.calls, policy.engine.rollouts, policy.engine.tokens) == (1, 24, 72)


def test_log_probabilities_are_sent_for_where_they_are_read(
    server: FakeVllm, tmp_path: Path
) -> None:
    policy = policy_of(server, tmp_path)
    silent = policy.generate([[5, 6]], [1], replace(policy.sampling, logprobs=False))
    asked = policy.generate([[5, 6]], [1])
    assert [body["logprobs"] for body in server.requests] == [None, 0]
    assert silent[0].token_ids == asked[0].token_ids
    assert (silent[0].logprobs, asked[0].logprobs) == ((), (-0.5, -1.0, -1.5))


@pytest.mark.parametrize("limit", [1, 5])
def test_no_more_requests_than_the_batch_size_are_under_way(
    server: FakeVllm, tmp_path: Path, limit: int
) -> None:
    server.delay = lambda body: 0.05
    policy_of(server, tmp_path, batch_size=limit).generate([[5, 6]] * 15, range(15))
    assert server.most == limit


def test_weights_are_handed_over_once_a_version_and_no_file_stays(
    server: FakeVllm, tmp_path: Path
) -> None:
    policy = policy_of(server, tmp_path)
    for version in (0, 0, 1, 1):
        policy.version = version
        policy.generate([[5, 6]], [1])
    assert len(server.loaded) == server.asked["/reset_prefix_cache"] == 2
    name, weight = next(policy.model.named_parameters())
    assert (server.loaded[-1][name] == weight).all()
    assert list(tmp_path.iterdir()) == []
    policy.frozen.generate([[5, 6]], [1])
    policy.generate([[5, 6]], [1])
    assert len(server.loaded) == 4


def test_adapters_are_handed_over_merged(server: FakeVllm, tmp_path: Path) -> None:
    config = {**settings(server, tmp_path), "lora": {"rank": 4}}
    policy = LanguageModelPolicy(TinyPolicy.model_validate(config))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B" in name:
                parameter.fill_(0.01)
    policy.generate([[5, 6]], [1])
    base, merged = dict(policy.base.named_parameters()), dict(whole_weights(policy.model))
    (loaded,) = server.loaded
    assert loaded.keys() == base.keys()
    assert all(torch.equal(loaded[name], value) for name, value in merged.items())
    assert any(not torch.equal(loaded[name], value) for name, value in base.items())


@pytest.mark.parametrize("old", [False, True])
def test_a_server_that_was_restarted_gets_the_weights_again(
    server: FakeVllm, tmp_path: Path, old: bool
) -> None:
    server.absent = {"/weight_info", "/update_weight_version"} if old else set()
    policy = policy_of(server, tmp_path)
    policy.generate([[5, 6]], [1])
    server.weight_version = "default"
    server.plan = lambda route, before: "drop" if (route, before) == (COMPLETIONS, 1) else "answer"
    if old:  # it cannot be asked, but the connection breaks
        with pytest.raises(EngineError, match="restarted while it generated"):
            policy.generate([[5, 6]], [1])
    policy.generate([[5, 6]], [1])
    assert len(server.loaded) == 2


def test_a_restart_in_the_middle_of_a_call_is_noticed(server: FakeVllm, tmp_path: Path) -> None:
    policy = policy_of(server, tmp_path)

    def restart(route: str, before: int) -> str:
        if route == COMPLETIONS and before == 3:
            server.weight_version = "default"
        return "answer"

    server.plan = restart
    with pytest.raises(EngineError, match="restarted while it generated"):
        policy.generate([[5, 6]] * 8, range(8))


@pytest.mark.parametrize("failure", ["500", "hang", "drop"])
def test_one_failure_is_tried_again(server: FakeVllm, tmp_path: Path, failure: str) -> None:
    server.plan = lambda route, before: failure if (route, before) == (COMPLETIONS, 2) else "answer"
    policy = policy_of(server, tmp_path, timeout_s=1 if failure == "hang" else 20)
    done = policy.generate([[5, 6 + i] for i in range(6)], range(6))
    assert [c.token_ids[0] for c in done] == list(range(6, 12))
    assert server.asked[COMPLETIONS] == 7


@pytest.mark.parametrize(
    ("failure", "reason", "asked"),
    [
        ("hang", r"no answer within policy\.vllm\.timeout_s = 1 s, 3 tries in all", 3),
        ("500", r"answered 500 .*the engine is dead.*, 3 tries in all", 3),
        ("drop", r"the connection failed .*, 3 tries in all", 3),
        ("die", r"the connection failed .*, 3 tries in all", 1),
        ("refuse", r"answered 400 .*Token id 800 is out of vocabulary", 1),
    ],
)
def test_what_goes_on_failing_stops_the_run_with_a_sentence(
    server: FakeVllm, tmp_path: Path, failure: str, reason: str, asked: int
) -> None:
    policy = policy_of(server, tmp_path, timeout_s=1)
    server.plan = lambda route, before: failure if route == COMPLETIONS else "answer"
    with pytest.raises(EngineError, match=reason) as error:
        policy.generate([[5, 6]], [1])
    assert server.asked[COMPLETIONS] == asked
    said = sentence_for(error.value)
    assert said and server.url in said and "the last checkpoint is intact" in said


def test_the_first_failure_cancels_what_is_not_yet_sent(server: FakeVllm, tmp_path: Path) -> None:
    policy = policy_of(server, tmp_path, batch_size=2, retries=0)
    server.delay = lambda body: 0.05
    server.plan = lambda route, before: "500" if route == COMPLETIONS and not before else "answer"
    with pytest.raises(EngineError):
        policy.generate([[5, 6]] * 40, range(40))
    assert server.asked[COMPLETIONS] < 10


def test_weights_that_cannot_be_taken_over_are_no_weights(server: FakeVllm, tmp_path: Path) -> None:
    policy = policy_of(server, tmp_path)
    server.plan = lambda route, before: "500" if route == RELOAD else "answer"
    with pytest.raises(EngineError, match="/collective_rpc answered 500"):
        policy.generate([[5, 6]], [1])
    assert server.requests == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"absent": {"/server_info"}}, "VLLM_SERVER_DEV_MODE=1"),
        ({"info": {"logprobs_mode": "raw_logprobs", "device": "cuda"}}, "processed_logprobs"),
        ({"info": {"logprobs_mode": "processed_logprobs", "device": "cpu"}}, "tied"),
    ],
)
def test_a_server_whose_answers_would_mislead_is_refused(
    server: FakeVllm, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    vars(server).update(change)
    with pytest.raises(EngineError, match=said):
        policy_of(server, tmp_path)


def test_a_run_stops_when_its_server_dies_and_goes_on_with_another(
    server: FakeVllm, tmp_path: Path
) -> None:
    shared, run = tmp_path / "weights", tmp_path / "run"
    config = tiny_config(policy={"type": "tiny", **settings(server, shared)})
    server.plan = lambda route, before: (
        "500" if route == COMPLETIONS and before >= 130 else "answer"
    )
    with pytest.raises(EngineError), Session(config, run) as session:
        interleave(session)
    reached = [e for e in effective(read_events(run / "journal.jsonl")) if e["kind"] == "slow"]
    assert len(reached) < 4
    server.plan, server.weight_version = lambda route, before: "answer", "default"
    with Session(config, run) as session:
        interleave(session)
    events = effective(read_events(run / "journal.jsonl"))
    assert events[-1]["kind"] == "end"
    assert sum(e["kind"] == "slow" for e in events) == 4


@pytest.mark.parametrize("key", ["url", "weights_folder"])
def test_a_server_has_to_be_named(key: str) -> None:
    where = {"mode": "server", "url": "http://127.0.0.1:1", "weights_folder": "w"}
    VllmConfig.model_validate(where)
    with pytest.raises(ValidationError, match=rf"mode = \"server\" needs {key}; set it to"):
        VllmConfig.model_validate({**where, key: ""})


def test_vllm_has_to_be_installed_for_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    server = VllmConfig(mode="server", url="http://127.0.0.1:1", weights_folder="w")
    refuse_missing_engine(TinyPolicy(engine="vllm", vllm=server))
    with pytest.raises(ConfigError, match=r"pip install 'fst-lab\[vllm\]'"):
        refuse_missing_engine(TinyPolicy(engine="vllm"))


def choice(**changed: Any) -> dict[str, Any]:
    """A completion as the server should answer it, but for some of its keys."""
    good = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -1.0]}}
    return {"choices": [{**good, **changed}]}


def logprobs(*values: float | None) -> dict[str, Any]:
    return choice(logprobs={"token_logprobs": list(values)})


BAD_COMPLETIONS: list[tuple[Any, str]] = [
    (b"<html>", "answered no JSON"),
    (b"[" * 100_000, "answered no JSON"),
    (b"\xff\xfe", "answered no JSON"),
    ([], "the whole answer"),
    (None, "the whole answer"),
    ("text", "the whole answer"),
    ({}, "choices: Field required"),
    ({"choices": {}}, "choices: "),
    ({"choices": []}, "choices: "),
    ({"choices": choice()["choices"] * 2}, "choices: "),
    ({"choices": [None]}, r"choices\.0: "),
    (choice(token_ids=None), "token_ids: "),
    (choice(token_ids=[]), "token_ids: "),
    (choice(token_ids=[5, "6"]), r"token_ids\.1: "),
    (choice(token_ids=[5, 6.5]), r"token_ids\.1: "),
    (choice(token_ids=[5, True]), r"token_ids\.1: "),
    (choice(token_ids=[5, -1]), r"token_ids\.1: "),
    (choice(token_ids=[5, 1 << 70]), "of a vocabulary of"),
    (choice(token_ids=[5, 100_000]), "token 100000 of a vocabulary of"),
    (choice(token_ids=[5, 6, 7]), "3 tokens with 2 log-probabilities"),
    (choice(token_ids=[5]), "1 tokens with 2 log-probabilities"),
    (
        choice(token_ids=[5] * 17, logprobs={"token_logprobs": [-1.0] * 17}),
        "17 tokens where 16 were asked for",
    ),
    (choice(logprobs=None), "2 tokens with 0 log-probabilities"),
    (choice(logprobs={}), "token_logprobs: "),
    (logprobs(-0.5, None), r"token_logprobs\.1: "),
    (logprobs(-0.5, 0.5), r"token_logprobs\.1: "),
    (logprobs(-0.5, float("nan")), r"token_logprobs\.1: "),
    (logprobs(float("-inf"), -0.5), r"token_logprobs\.0: "),
]


@pytest.mark.parametrize(("answer", "what"), BAD_COMPLETIONS)
def test_a_completion_of_another_shape_stops_the_run_with_a_sentence(
    server: FakeVllm, tmp_path: Path, answer: Any, what: str
) -> None:
    policy = policy_of(server, tmp_path)
    server.answers = {COMPLETIONS: answer}
    with pytest.raises(EngineError, match=what) as error:
        policy.generate([[5, 6]] * 2, [1, 2])
    said = str(error.value)
    assert server.url in said and "\n" not in said and len(said) < 400
    assert isinstance(policy.engine, VllmServerEngine)
    assert policy.engine.rollouts == policy.engine.calls == 0


def test_rounding_above_zero_is_no_fault(server: FakeVllm, tmp_path: Path) -> None:
    policy = policy_of(server, tmp_path)
    server.answers = {COMPLETIONS: logprobs(1e-6, 0.0)}
    assert policy.generate([[5, 6]], [1])[0].logprobs == (1e-6, 0.0)


@pytest.mark.parametrize(
    ("route", "answer", "what"),
    [
        ("/v1/models", {}, "data: "),
        ("/v1/models", {"data": []}, "data: "),
        ("/v1/models", {"data": [{"id": "tiny", "max_model_len": None}]}, "max_model_len: "),
        ("/v1/models", {"data": [{"id": "tiny", "max_model_len": 0}]}, "max_model_len: "),
        ("/server_info", [], "the whole answer"),
        ("/server_info", {"vllm_config": "text"}, "vllm_config: "),
        ("/server_info", {"vllm_config": {"model_config": {}}}, "logprobs_mode: "),
        ("/weight_info", {"weight_version": 3}, "weight_version: "),
        ("/weight_info", [], "the whole answer"),
        ("/reset_prefix_cache", {"success": "no"}, "success: "),
        (RELOAD, b"", "answered no JSON"),
    ],
)
def test_what_no_vllm_server_answers_is_told_in_a_sentence(
    server: FakeVllm, tmp_path: Path, route: str, answer: Any, what: str
) -> None:
    server.answers = {route: answer}
    with pytest.raises(EngineError, match=what) as error:
        policy_of(server, tmp_path).generate([[5, 6]], [1])
    assert server.url in str(error.value) and server.requests == []


URLS = [
    "garbage",
    "127.0.0.1:8000",
    "http://",
    "http://host:port",
    "http://host:99999",
    "http://[::1",
    "ftp://host",
    "http://\x00",
]


@pytest.mark.parametrize("url", URLS)
def test_an_address_that_is_none_is_refused_before_anything_starts(
    url: str, tmp_path: Path
) -> None:
    where = VllmConfig(mode="server", url=url, weights_folder=str(tmp_path))
    policy = TinyPolicy(engine="vllm", vllm=where)
    with pytest.raises(ConfigError, match=r"policy\.vllm\.url = .* is no address; give one"):
        preflight(tiny_config(policy=policy.model_dump()))
    with pytest.raises(ConfigError, match=r"policy\.vllm\.url"):
        LanguageModelPolicy(policy)


@pytest.mark.parametrize("what", ["a file", "below a file", "taken", "a long name", "a loop"])
def test_a_weights_folder_that_cannot_be_written_is_one_sentence(
    server: FakeVllm, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    places = {
        "a file": "file",
        "below a file": "file/w",
        "a loop": "loop",
        "a long name": "w" * 300,
    }
    policy = policy_of(server, tmp_path / places.get(what, "w"))
    if what == "taken":
        monkeypatch.setattr(policy.engine, "_tag", lambda: "tag")
        (tmp_path / "w" / "tag").mkdir(parents=True)
    with pytest.raises(EngineError, match=r"policy\.vllm\.weights_folder = .*cannot be written"):
        policy.generate([[5, 6]], [1])
    assert server.requests == []


def test_a_full_disk_under_the_weights_folder_is_one_sentence(
    server: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(server, tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(policy.model, "save_pretrained", full)
    with pytest.raises(EngineError, match=r"weights_folder .*No space left on device"):
        policy.generate([[5, 6]], [1])
    assert list(tmp_path.iterdir()) == []


def test_a_server_with_a_smaller_window_sets_the_policys(server: FakeVllm, tmp_path: Path) -> None:
    server.answers = {"/v1/models": {"data": [{"id": "tiny", "max_model_len": 20}]}}
    policy = policy_of(server, tmp_path)
    with pytest.raises(ContextTooLong, match=r"--max-model-len = 20; raise it"):
        policy.generate([[5] * 5], [1])
    assert len(policy.generate([[5] * 4], [1])) == 1
