"""A hub model without a network: refused at once, or read from the cache without asking."""

import shutil
import socket
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from fst_core.config import HubPolicy, HuggingFaceReflection
from fst_core.config.model import ConfigError, NotHere
from fst_core.environments.tasks import Tasks
from fst_core.fast.local_chat import LocalChat
from fst_core.fast.reflection import ReflectionError
from fst_core.hub import reach
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.locate import TINY, locate, refuse_unreachable, whole_in_cache
from fst_core.preflight import preflight
from fst_core.slow.base import SlowTools
from fst_core.slow.registry import make_slow
from tests.runs import tiny_config

MODEL, COMMIT = "some/model", "0" * 40
HUB = {"type": "hub", "model": MODEL}
LOCAL = {"type": "huggingface", "model": MODEL}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and a hub at an address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    reach.cache_clear()


def fetched(cache: Path, *left_out: str) -> Path:
    """The tiny policy as the hub's client leaves a model in its cache."""
    root = cache / "models--some--model"
    snapshot = root / "snapshots" / COMMIT
    shutil.copytree(TINY, snapshot, ignore=shutil.ignore_patterns(*left_out))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize("offline", [False, True])
def test_a_model_that_must_be_fetched_is_refused_at_once(
    offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    reason = "HF_HUB_OFFLINE forbids" if offline else r"127\.0\.0\.1:\d+ cannot be reached \("
    told = rf"^policy\.model = 'some/model' is not whole in the hub's cache, and .*{reason}.*folder"
    with pytest.raises(NotHere, match=told):
        preflight(tiny_config(policy=HUB))
    with pytest.raises(NotHere, match=told):
        LanguageModelPolicy(HubPolicy(model=MODEL))
    told = told.replace("policy", r"fast\.reflection")
    with pytest.raises(ConfigError, match=told):
        preflight(tiny_config(fast={"type": "gepa", "reflection": LOCAL}))
    with pytest.raises(ReflectionError, match=told):
        LocalChat(HuggingFaceReflection(model=MODEL))


class Hub:
    """A session that counts how often a hub is asked; it answers from the second time on."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def head(self, address: str, timeout: float) -> None:
        self.asked.append(address)
        if len(self.asked) == 1:
            raise ConnectionError("not yet")


def test_a_hub_that_answered_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.get_session", lambda: hub)
    config = tiny_config(policy=HUB, fast={"type": "gepa", "reflection": LOCAL})
    with pytest.raises(NotHere, match="not yet"):
        preflight(config)
    for _ in range(2):
        preflight(config)
    refuse_unreachable("policy.model", "another/model", None)
    assert hub.asked == [constants.ENDPOINT] * 2
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1/another")
    preflight(config)
    assert hub.asked[2:] == [constants.ENDPOINT]


def test_no_plan_asks_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_session", lambda: pytest.fail("a plan asked the hub"))
    notes = preflight(tiny_config(policy=HUB), plan_only=True)
    assert any("is not in the hub's cache" in note for note in notes)


def test_a_model_that_is_whole_in_the_cache_needs_no_hub(tmp_path: Path) -> None:
    snapshot = fetched(tmp_path / "hub")
    refuse_unreachable("policy.model", MODEL, None)
    assert locate(HubPolicy(model=MODEL)) == (snapshot, None)
    assert preflight(tiny_config(policy=HUB)) == []
    assert LanguageModelPolicy(HubPolicy(model=MODEL)).window == 512


@pytest.mark.parametrize("gone", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_a_fetch_that_was_cut_off_is_no_whole_model(gone: str, tmp_path: Path) -> None:
    fetched(tmp_path / "hub", gone)
    assert whole_in_cache(MODEL, None) is None
    with pytest.raises(NotHere, match="not whole in the hub's cache"):
        preflight(tiny_config(policy=HUB))


def test_of_weights_in_pieces_every_piece_counts(tmp_path: Path) -> None:
    snapshot = fetched(tmp_path / "hub", "model.safetensors")
    index = '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    (snapshot / "model.safetensors.index.json").write_text(index)
    (snapshot / "one.safetensors").touch()
    assert whole_in_cache(MODEL, None) is None
    (snapshot / "two.safetensors").touch()
    assert whole_in_cache(MODEL, None) == snapshot


def test_a_reference_is_read_from_the_pinned_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even of a model that the run itself fetches, which is not in the cache as it begins."""
    snapshot, pinned = fetched(tmp_path / "hub"), "1" * 40
    other = shutil.copytree(snapshot, snapshot.with_name(pinned))
    weights = load_file(snapshot / "model.safetensors")
    halved = {name: value / 2 for name, value in weights.items()}
    (snapshot / "model.safetensors").unlink()
    save_file(halved, snapshot / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr("fst_core.policy.locate.whole_in_cache", lambda *_: None)
    monkeypatch.setattr("fst_core.policy.language_model.refuse_unreachable", lambda *_: None)
    config = tiny_config(policy={**HUB, "revision": pinned}, slow={"beta": 0.01})
    policy = LanguageModelPolicy(config.policy)
    slow = make_slow(config.slow, SlowTools(config, policy, Tasks(config)))
    reference = dict(slow.trainer.ref_model.named_parameters())  # type: ignore[attr-defined]
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(reference[name], load_file(other / "model.safetensors")[name])
    slow.close()
