import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest

from fst_core.config.fast import (
    GepaConfig,
    HuggingFaceReflection,
    LitellmReflection,
    NoFast,
    PolicyReflection,
)
from fst_core.fast.api_chat import ApiChat, LitellmRequest, Reply, RequestFailed, address_of
from fst_core.fast.base import FastTools
from fst_core.fast.gepa import GepaFast
from fst_core.fast.language_model import (
    LanguageModelReflection,
    fenced_block,
    prompt_for,
    shorten,
)
from fst_core.fast.reflection import Example, Gate, Job, Proposal, ReflectionError
from fst_core.fast.registry import Unchanged, make_fast
from fst_core.policy.base import ContextTooLong
from fst_core.records import seeded
from tests.unit.simulated import Simulated, count_words, random_words

SEED = "You are a helpful assistant."
SECRET = "key-that-nobody-may-see"
JOB = Job(
    "Old instructions.",
    tuple(Example(f"Question {n}?", f"answer {n}", 0.0, (f"Remark {n}.",)) for n in range(3)),
    (Example("Solved question?", "good answer", 1.0),),
    seed=5,
)


def test_the_gate_counts_why_it_refuses():
    gate = Gate(3, count_words)
    assert gate.admit(Proposal("  New text. \n", "x"), {"Old."}) == "New text."
    assert gate.admit(Proposal("one two three", "x"), set()) == "one two three"
    refused = [None, None, "", " \n", "Old.", " Old. ", "one two three four"]
    assert [gate.admit(Proposal(text, "x"), {"Old."}) for text in refused] == [None] * 7
    assert gate.rejected == {"unparsable": 2, "empty": 2, "repeated": 2, "too_long": 1}


@pytest.mark.parametrize(
    ("reply", "block"),
    [
        ("Sure:\n```\nA\nB\n```\nDone.", "A\nB"),
        ("```text\nA\n```", "A"),
        ("<think>\n```\nno\n```\n</think>\n```\nyes\n```", "yes"),
        ("no opening tag</think>```\nx\n```\n```\ny\n```", "y"),
        ("```\ndraft\n```\nBetter:\n```\nfinal\n```", "final"),
        ("```\nUse:\n```python\ncode\n```\nend\n```", "Use:\n```python\ncode\n```\nend"),
        ("```\n```", ""),
        ("```\ncut off by the token limit", None),
        ("<think>still thinking\n```\nno\n```", None),
        ("no fence at all", None),
        ("", None),
    ],
)
def test_the_fenced_block_of_a_reply(reply, block):
    assert fenced_block(reply) == block


def test_the_prompt_shows_context_examples_and_feedback():
    (message,) = prompt_for(JOB)
    for piece in ("Old instructions.", "Question 2?", "answer 1", "Remark 0.", "good answer"):
        assert piece in message["content"]
    (message,) = prompt_for(JOB, most_examples=1)
    assert "Question 1?" not in message["content"]
    assert "scored well" not in prompt_for(Job("x", JOB.examples))[0]["content"]
    assert len(shorten("a" * 9000)) < 1600


def test_a_chat_answers_all_jobs_at_once_with_their_seeds():
    calls = []

    def chat(chats, seeds):
        calls.append(list(seeds))
        return ["```\nNew one.\n```", "garbage", None]

    proposals = LanguageModelReflection(chat, "policy").propose([JOB, JOB, JOB])
    assert calls == [[5, 5, 5]]
    assert [p.text for p in proposals] == ["New one.", None, None]
    assert {p.operator for p in proposals} == {"policy"}


def test_a_window_that_is_too_small_gets_fewer_examples():
    job = Job("Old.", JOB.examples * 4)
    sizes = []

    def chat(chats, seeds, fits=2):
        shown = chats[0][0]["content"].count("Remark:")
        sizes.append(shown)
        if shown > fits:
            raise ContextTooLong("300 tokens, the window holds 256")
        return ["```\nNew.\n```"]

    assert LanguageModelReflection(chat, "policy").propose([job])[0].text == "New."
    assert sizes == [8, 4, 2]
    with pytest.raises(ReflectionError, match="window holds 256"):
        LanguageModelReflection(lambda c, s: chat(c, s, 0), "policy").propose([job])


# --- requests, below litellm ---------------------------------------------------------------------


def api(request, **settings):
    config = LitellmReflection(
        model="openai/small", api_base=f"http://user:{SECRET}@127.0.0.1:1/v1?k={SECRET}", **settings
    )
    return ApiChat(config, request, pause_seconds=0)


def test_a_failed_request_is_tried_again():
    tries = Counter()

    def request(chat, seed):
        tries[seed] += 1
        if tries[seed] <= seed:
            raise RequestFailed("ReadTimeout", may_pass=True)
        return Reply(f"reply {seed}", 10, 3, 0.5)

    chat = api(request, retries=2, concurrency=2)
    assert chat([[]] * 3, [0, 1, 2]) == ["reply 0", "reply 1", "reply 2"]
    assert tries == {0: 1, 1: 2, 2: 3}
    assert chat.usage() == {"prompt_tokens": 30, "completion_tokens": 9, "usd": 1.5}


@pytest.mark.parametrize(("may_pass", "expected"), [(True, 3), (False, 1)])
def test_a_request_that_keeps_failing_ends_in_one_clear_sentence(may_pass, expected, caplog):
    tries = []

    def request(chat, seed):
        tries.append(seed)
        raise RequestFailed("ConnectError", may_pass)

    with pytest.raises(ReflectionError) as caught:
        api(request, retries=2)([[]], [0])
    message = str(caught.value)
    assert len(tries) == expected and f"after {expected} " in message
    assert "'openai/small' at http://127.0.0.1:1/v1 failed" in message
    assert message.endswith("ConnectError") and "\n" not in message
    assert SECRET not in message + caplog.text


def test_requests_run_at_once_up_to_the_limit():
    together = threading.Barrier(3, timeout=10)

    def request(chat, seed):
        together.wait()
        return Reply(str(seed))

    assert api(request, concurrency=3)([[]] * 6, range(6)) == list("012345")


def test_after_a_failure_no_other_request_is_begun():
    begun = []

    def request(chat, seed):
        begun.append(seed)
        if seed == 1:
            raise RequestFailed("ConnectError", may_pass=False)
        return Reply(str(seed), 10)

    with pytest.raises(ReflectionError, match="ConnectError"):
        api(request, concurrency=1)([[]] * 8, range(8))
    assert begun == [0, 1]


def test_a_failure_waits_for_what_is_in_flight_and_counts_it():
    together = threading.Barrier(2, timeout=10)

    def request(chat, seed):
        together.wait()
        if seed == 1:
            raise RequestFailed("ConnectError", may_pass=False)
        return Reply(str(seed), 10, 3, 0.5)

    chat = api(request, concurrency=2)
    with pytest.raises(ReflectionError, match="ConnectError"):
        chat([[]] * 2, range(2))
    assert chat.usage() == {"prompt_tokens": 10, "completion_tokens": 3, "usd": 0.5}


def test_of_several_failures_the_first_in_order_is_raised():
    together = threading.Barrier(2, timeout=10)

    def request(chat, seed):
        together.wait()
        raise RequestFailed(f"Error{seed}", may_pass=False)

    with pytest.raises(ReflectionError, match="Error0"):
        api(request, concurrency=2)([[]] * 2, range(2))


def test_addresses_are_shown_without_credentials():
    assert address_of("https://me:pw@host:8/v1?key=x") == "https://host:8/v1"
    assert address_of(None) == "the provider's address"


def searched(chat, retries=0):
    policy = Simulated(tuple(random_words(2, 1)))
    reflection = LanguageModelReflection(chat, "litellm", getattr(chat, "usage", dict))
    part = GepaFast(GepaConfig(metric_calls=150), policy, reflection, 0, 2, 99, count_words)
    return part.evolve(seeded(SEED, 2), policy.problems(20), 0), policy


def test_garbage_is_counted_and_the_search_goes_on():
    replies = iter(["no block", None, "```\n```"] * 100)
    evolution, policy = searched(api(lambda chat, seed: Reply(next(replies), 2, 1)))
    counted = evolution.rejected
    assert set(counted) == {"unparsable", "empty"}
    assert sum(counted.values()) == evolution.proposals > 6
    assert evolution.reflection_usage["prompt_tokens"] == 2 * evolution.proposals
    assert evolution.metric_calls == policy.rollouts


def test_an_outage_stops_the_search():
    def request(chat, seed):
        raise RequestFailed("ReadTimeout", True)

    with pytest.raises(ReflectionError, match="ReadTimeout"):
        searched(api(request, retries=0))


def test_without_litellm_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ReflectionError, match="needs the package litellm: install"):
        LitellmRequest(LitellmReflection(model="openai/small"))


# --- requests through litellm, against a local server --------------------------------------------


class Server(BaseHTTPRequestHandler):
    behaviour = "answer"
    seen: list[dict] = []  # noqa: RUF012

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).seen.append(body)
        if self.behaviour == "slow":
            time.sleep(1.5)
        status = int(self.behaviour) if self.behaviour.isdigit() else 200
        self.send_response(status)
        kind = "text/html" if self.behaviour == "html" else "application/json"
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(self.answer(status, body).encode())

    def answer(self, status, body):
        if status != 200:
            return json.dumps({"error": {"message": f"wrong key {SECRET}"}})
        if self.behaviour in ("html", "broken"):
            return "<html>{"
        line = next((x for x in body["messages"][0]["content"].split("Remark: ")[1:]), "none")
        content = f"```\n{SEED}\n{line.splitlines()[0]}\n```"
        message = {"role": "assistant", "content": None if self.behaviour == "null" else content}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        return json.dumps(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "small"}
            | {"choices": [] if self.behaviour == "no choices" else choices, "usage": usage}
        )


@pytest.fixture
def server(monkeypatch):
    if not find_spec("litellm"):
        pytest.skip("litellm is not installed")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(Server, "seen", [])
    http = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}/v1"
    http.shutdown()
    http.server_close()


def through_litellm(base, **settings):
    config = LitellmReflection(model="openai/small", api_base=base, **settings)
    return ApiChat(config, LitellmRequest(config), pause_seconds=0)


def test_litellm_reaches_a_local_server(server, monkeypatch):
    monkeypatch.setattr(Server, "behaviour", "answer")
    evolution, policy = searched(through_litellm(server, temperature=0.5))
    assert evolution.accepted > 0 and policy.line(policy.words[0]) in evolution.population.best.text
    assert evolution.reflection_usage["prompt_tokens"] == 7 * evolution.proposals
    assert len(Server.seen) == evolution.proposals
    assert {body["temperature"] for body in Server.seen} == {0.5}


@pytest.mark.parametrize("garbage", ["html", "broken", "null", "no choices"])
def test_litellm_garbage_is_no_outage(server, monkeypatch, garbage):
    monkeypatch.setattr(Server, "behaviour", garbage)
    evolution, _ = searched(through_litellm(server))
    assert evolution.rejected == {"unparsable": evolution.proposals} and evolution.proposals > 0


@pytest.mark.parametrize(
    ("behaviour", "tries", "reason"),
    [
        ("401", 1, "status 401"),
        ("400", 1, "status 400"),
        ("429", 2, "status 429"),
        ("503", 2, "status 503"),
        ("slow", 2, "ReadTimeout"),
        ("down", 2, "ConnectError"),
    ],
)
def test_litellm_outages_raise_after_the_retries(
    server, monkeypatch, capfd, behaviour, tries, reason
):
    monkeypatch.setattr(Server, "behaviour", behaviour)
    base = "http://127.0.0.1:9/v1" if behaviour == "down" else server
    with pytest.raises(ReflectionError, match=reason) as caught:
        through_litellm(base, retries=1, timeout_seconds=0.4)([prompt_for(JOB)[:1]], [1])
    assert base in str(caught.value) and f"after {tries} " in str(caught.value)
    assert SECRET not in f"{caught.value}{capfd.readouterr()}"


# --- other chats, and the registry ---------------------------------------------------------------


def made(config, chat=None):
    policy = Simulated(tuple(random_words(2, 1)))
    tools = FastTools(policy, lambda problem: None, chat, 1, 2, 99, count_words)
    return make_fast(config, tools), policy


def test_no_fast_part_changes_nothing():
    part, policy = made(NoFast())
    evolution = part.evolve(seeded(SEED, 1), policy.problems(4), 0)
    assert isinstance(part, Unchanged) and policy.calls == 0
    assert evolution.population == seeded(SEED, 1) and evolution.metric_calls == 0


def test_the_default_is_gepa_with_rules():
    part, policy = made(GepaConfig())
    evolution = part.evolve(seeded(SEED, 2), policy.problems(32), 0)
    assert evolution.accepted > 0 and evolution.metric_calls == policy.rollouts


def test_policy_reflection_needs_and_uses_the_policy_s_chat():
    config = GepaConfig(reflection=PolicyReflection())
    with pytest.raises(ReflectionError, match="needs the policy's chat"):
        made(config)
    part, policy = made(config, lambda chats, seeds: [f"```\nTry {s}.\n```" for s in seeds])
    evolution = part.evolve(seeded(SEED, 2), policy.problems(32), 0)
    assert evolution.proposals > 0 and not evolution.rejected


def test_a_missing_local_model_is_one_sentence(tmp_path):
    config = GepaConfig(reflection=HuggingFaceReflection(model=str(tmp_path / "none")))
    with pytest.raises(ReflectionError, match="cannot be loaded"):
        made(config)


@pytest.fixture(scope="module")
def local_model(tmp_path_factory):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    words = {word: n for n, word in enumerate(["<pad>", "</s>", "<unk>", "a", "b", "c"])}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(path)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=6, num_attention_heads=2, **shape)).save_pretrained(
        path
    )
    return path


def test_a_local_model_answers_in_a_batch_and_leaves_the_random_state_alone(local_model):
    import torch

    from fst_core.fast.local_chat import LocalChat

    chat = LocalChat(HuggingFaceReflection(model=str(local_model), max_new_tokens=12))
    chats = [[{"role": "user", "content": text}] for text in ("a b", "a b c a")]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second, other = (chat(chats, seeds) for seeds in ([1, 2], [1, 2], [3, 4]))
    assert first == second and len(first) == 2
    assert first != other
    assert torch.equal(torch.get_rng_state(), before)
