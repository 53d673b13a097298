"""Adapters beside frozen weights: the base at zero, merged without drift, refused early."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftConfig
from safetensors.torch import load_file

from fst_core.checkpoint import ADAPTERS, CheckpointError, check_slow
from fst_core.config import HubPolicy, LoraConfig, PolicyConfig, TinyPolicy, load_config
from fst_core.config.model import ConfigError
from fst_core.policy.adapters import save_adapters, whole_weights
from fst_core.policy.base import Sampling
from fst_core.policy.graph_engine import GraphEngine
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.locate import TINY
from fst_core.policy.transformers_engine import TransformersEngine
from fst_core.policy.vllm_engine import cast_parameters
from fst_core.preflight import preflight
from fst_core.provenance import config_hash
from tests.runs import tiny_config

SMOKE = "configs/tiny/smoke.toml"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def policy_with(weights: Path | None = None, engine: Any = "transformers", **lora: Any) -> Any:
    torch.set_num_threads(1)
    settings = TinyPolicy(max_new_tokens=12, engine=engine, lora=LoraConfig(**lora))
    return LanguageModelPolicy(settings, weights)


def full_policy(weights: Path | None = None, **settings: Any) -> LanguageModelPolicy:
    torch.set_num_threads(1)
    return LanguageModelPolicy(TinyPolicy(max_new_tokens=12, **settings), weights)


def prompts(policy: LanguageModelPolicy) -> list[list[int]]:
    asked = [f"Say {word}." for word in ("b", "cat and dog", "one two three") * 4]
    return [policy.prompt_ids([{"role": "user", "content": text}]) for text in asked]


@torch.no_grad()
def shake(policy: LanguageModelPolicy, seed: int = 0, size: float = 0.05) -> None:
    """Adapters as training might leave them."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in policy.model.named_parameters():
        if ".lora_" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * size)


def copied(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in theirs)


# --- what an adapted policy computes -------------------------------------------------------------


@pytest.mark.parametrize("engine", ["transformers", "graph"])
def test_adapters_at_zero_are_the_base_to_the_last_bit(engine: Any) -> None:
    """The base of a run that trains all weights, frozen as here: that alone changes rounding."""
    adapted, full = policy_with(engine=engine), full_policy(engine=engine)
    rows = prompts(full)
    done = adapted.generate(rows, range(len(rows)))
    assert done == full.frozen.generate(rows, range(len(rows)))
    assert done == adapted.frozen.generate(rows, range(len(rows)))
    for ours, theirs in zip(adapted.score(rows, done), full.score(rows, done), strict=True):
        assert ours.logp == ours.base_logp == theirs.base_logp
        assert set(ours.kl) == {0.0}


def test_an_adapted_layer_by_hand() -> None:
    """W x + alpha / rank B A x, from the tensors themselves; the merged layer is W + that."""
    policy = policy_with(rank=4, alpha=6.0)
    shake(policy)
    layer = policy.model.model.layers[0].self_attn.q_proj
    W = policy.base.model.layers[0].self_attn.q_proj.weight
    A, B = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (A.shape[0], B.shape[1]) == (4, 4)
    x = torch.randn(5, W.shape[1], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ W.T + 1.5 * (x @ A.T) @ B.T)
        merged = dict(whole_weights(policy.model))["model.layers.0.self_attn.q_proj.weight"]
        torch.testing.assert_close(merged, W + 1.5 * B @ A)
        assert not torch.equal(merged, W)


def test_the_base_is_the_model_s_own_tensors_and_is_never_trained() -> None:
    policy = policy_with(rank=2)
    shake(policy)
    full = full_policy()
    assert equal(copied(policy.base), copied(full.model))
    shared = {p.data_ptr() for p in policy.model.parameters() if not p.requires_grad}
    assert {p.data_ptr() for p in policy.base.parameters()} == shared
    trainable = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert trainable and all(".lora_" in name for name in trainable)
    sizes = sum(p.numel() for n, p in policy.model.named_parameters() if ".lora_" in n)
    whole = sum(p.numel() for p in full.model.parameters())
    assert policy.count_parameters() == {"all": whole + sizes, "trainable": sizes}
    assert full.count_parameters() == {"all": whole, "trainable": whole}


def test_merged_weights_score_as_the_adapters_do() -> None:
    """The copying engine's log-probabilities against those through the adapters, in float32."""
    policy = policy_with(rank=4)
    shake(policy, size=0.2)
    given = (policy.tokenizer, policy.stop_ids, 256)
    through = TransformersEngine(policy.model, *given)
    merged = GraphEngine(policy.model, *given, torch.float32)
    rows, sampling = prompts(policy), Sampling(1.0, 12)
    merged.sync(1)
    ours = merged.generate(rows, range(len(rows)), sampling)
    theirs = through.generate(rows, range(len(rows)), sampling)
    base = policy.frozen.generate(rows, range(len(rows)))
    assert [c.token_ids for c in ours] == [c.token_ids for c in theirs]
    assert [c.token_ids for c in ours] != [c.token_ids for c in base]
    for a, b in zip(ours, theirs, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hundred_syncs_do_not_drift(dtype: Any) -> None:
    settings = TinyPolicy(dtype=dtype, lora=LoraConfig(rank=4))
    policy = LanguageModelPolicy(settings)
    of_type = getattr(torch, dtype)
    engine = GraphEngine(policy.model, policy.tokenizer, policy.stop_ids, 8, of_type)
    base = copied(policy.base)
    shake(policy, seed=7)
    engine.sync(0)
    first = copied(engine.twin)
    for version in range(1, 101):
        shake(policy, seed=version, size=1.0)
        engine.sync(version)
        if version == 1:
            assert not equal(copied(engine.twin), first)
    shake(policy, seed=7)
    engine.sync(101)
    assert engine.syncs == 102
    assert equal(copied(engine.twin), first)
    assert equal(copied(policy.base), base)


def test_what_an_engine_is_handed_has_the_names_and_types_of_the_base() -> None:
    """As vLLM is given it: tied weights once, merged in float32, then cast."""
    policy = policy_with(rank=4)
    shake(policy)
    base = dict(policy.base.named_parameters())
    given = dict(cast_parameters(policy.model, torch.bfloat16))
    assert list(given) == list(base)
    assert all(value.shape == base[n].shape for n, value in given.items())
    changed = {n for n, value in given.items() if not torch.equal(value, base[n].bfloat16())}
    assert changed == {n for n in base if n.split(".")[-2] in LAYERS}
    layer = policy.model.model.layers[1].mlp.up_proj
    delta = 4.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(given[name], (base[name] + delta).bfloat16())


def test_chosen_layers_alone_are_adapted() -> None:
    policy = policy_with(targets=["q_proj", "v_proj"])
    names = {n.split(".lora_")[0] for n, _ in policy.model.named_parameters() if ".lora_" in n}
    assert {name.rsplit(".", 1)[1] for name in names} == {"q_proj", "v_proj"}


# --- on disk, and as the start of another run ----------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A policy with trained adapters, and the folder they were written to."""
    folder = tmp_path_factory.mktemp("adapters")
    policy = policy_with(rank=4)
    shake(policy)
    save_adapters(policy.trained, folder)
    return folder, policy


def test_adapters_alone_are_written(saved: tuple[Path, Any]) -> None:
    folder, policy = saved
    tensors = load_file(folder / ADAPTERS)
    count = policy.count_parameters()["trainable"]
    assert sum(t.numel() for t in tensors.values()) == count
    assert count * 4 < (folder / ADAPTERS).stat().st_size < count * 4 + 10_000
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", ADAPTERS]
    kept = PeftConfig.from_pretrained(str(folder))
    assert kept.base_model_name_or_path == "tiny"


def test_adapters_go_on_from_a_folder(saved: tuple[Path, Any]) -> None:
    folder, policy = saved
    assert equal(copied(policy_with(folder, rank=4).model), copied(policy.model))


def test_a_run_of_whole_weights_begins_with_them_merged(saved: tuple[Path, Any]) -> None:
    folder, policy = saved
    whole = full_policy(folder)
    assert equal(copied(whole.model), dict(whole_weights(policy.model)))
    assert all(p.requires_grad for p in whole.model.parameters())
    assert whole.trained is whole.model and whole.base is not whole.model
    assert equal(copied(whole.base), copied(full_policy().model))


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"rank": 2}, r"policy.lora.rank 4 and this run has 2"),
        ({"rank": 4, "alpha": 4.0}, r"policy.lora.alpha 16.0 and this run has 4.0"),
        ({"rank": 4, "targets": ["q_proj"]}, r"policy.lora.targets \['down_proj'.*\['q_proj'\]"),
    ],
)
def test_adapters_of_another_shape_are_refused(
    saved: tuple[Path, Any], lora: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"start_from: the adapters in .*{said}"):
        policy_with(saved[0], **lora)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_adapters_of_another_base_are_refused(
    saved: tuple[Path, Any], lora: LoraConfig | None
) -> None:
    """The same weights under another name: nothing but the name can tell two bases apart."""
    other = HubPolicy(type="hub", model=str(TINY), lora=lora)
    with pytest.raises(ConfigError, match=r"'?tiny'?.* and this run"):
        LanguageModelPolicy(other, saved[0])


@pytest.mark.parametrize("break_it", ["cut", "strange", "gone", "config"])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_damaged_adapters_are_refused(
    saved: tuple[Path, Any], tmp_path: Path, break_it: str, lora: LoraConfig | None
) -> None:
    from safetensors.torch import save_file

    for path in saved[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / ADAPTERS)
    if break_it == "cut":
        (tmp_path / ADAPTERS).write_bytes((tmp_path / ADAPTERS).read_bytes()[:1000])
    elif break_it == "strange":
        save_file({"x": torch.zeros(1), **tensors}, tmp_path / ADAPTERS)
    elif break_it == "gone":
        save_file(dict(list(tensors.items())[1:]), tmp_path / ADAPTERS)
    else:
        (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"the adapters in .* cannot be used") as error:
        LanguageModelPolicy(TinyPolicy(lora=lora), tmp_path)
    assert "\n" not in str(error.value)


def test_whole_weights_are_no_start_for_adapters() -> None:
    with pytest.raises(ConfigError, match=r"holds whole weights, and policy.lora trains adapters"):
        policy_with(TINY)


def test_a_checkpoint_without_its_adapters_is_damaged(
    saved: tuple[Path, Any], tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json"):
        (slow / name).write_text("")
    for path in saved[0].iterdir():
        (slow / path.name).write_bytes(path.read_bytes())
    check_slow(tmp_path)
    (slow / ADAPTERS).unlink()
    with pytest.raises(CheckpointError, match=f"no slow/{ADAPTERS}"):
        check_slow(tmp_path)


# --- settings ------------------------------------------------------------------------------------


def test_a_run_without_adapters_is_the_run_it_was() -> None:
    """Its settings, and so its hash, know nothing of them: older runs go on."""
    plain, adapted = tiny_config(), tiny_config(policy={"lora": {}})
    assert "lora" not in plain.model_dump(mode="json")["policy"]
    dumped = adapted.model_dump(mode="json")
    assert dumped["policy"]["lora"] == {
        "rank": 8, "alpha": 16.0, "dropout": 0.0, "targets": ["all-linear"],
    }  # fmt: skip
    assert config_hash(dumped) != config_hash(plain.model_dump(mode="json"))
    assert type(adapted).model_validate(dumped) == adapted


@pytest.mark.parametrize("targets", ['"q_proj"', '["q_proj"]'])
def test_one_target_may_stand_alone(targets: str) -> None:
    config, _ = load_config(SMOKE, "rl", [f"policy.lora.targets={targets}"])
    assert config.policy.lora == LoraConfig(targets=("q_proj",))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rank=0", "policy.lora.rank: must be 1 or more, not 0"),
        ("dropout=1", "policy.lora.dropout: must be below 1, not 1"),
        ("rank=65537", "policy.lora.rank: must be 65536 or less, not 65537"),
        ("alpha=0", "policy.lora.alpha: must be 1e-06 or more, not 0"),
        ("alpha=1e308", "policy.lora.alpha: must be 1000000 or less, not 1e+308"),
        ("targets=[]", "policy.lora.targets: "),
        ('targets=["all-linear","q_proj"]', '"all-linear" stands alone'),
        ("targets=3", "policy.lora.targets: must be a list"),
        ("ranks=3", "policy.lora.ranks: no such setting; did you mean rank?"),
    ],
)
def test_a_setting_that_is_none_is_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(SMOKE, "rl", [f"policy.lora.{change}"])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_rank_beyond_every_layer_is_refused_before_it_takes_memory() -> None:
    layers = full_policy().model.model.layers[0].modules()
    most = max(min(m.weight.shape) for m in layers if isinstance(m, torch.nn.Linear))
    assert policy_with(rank=most, targets=["q_proj"]).count_parameters()["trainable"]
    for rank in (most + 1, 65_536):
        with pytest.raises(ConfigError, match=rf"rank = {rank}: no layer .* rank than {most}; low"):
            policy_with(rank=rank)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["nothing"], "nothing"),
        (["q_proj", "nothing"], "the model has no layer 'nothing'"),
        (["lm_head"], "lm_head is the output layer"),
        (["embed_tokens"], "embed_tokens is the output layer or no linear one"),
        (["self_attn"], "policy.lora.targets"),
    ],
)
def test_targets_that_are_no_linear_layers_are_refused(targets: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.lora\.targets") as error:
        policy_with(targets=targets)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_fsdp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"policy.lora does not go with FSDP; launch with DDP"):
        policy_with()


def test_without_peft_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = tiny_config(policy={"lora": {}})
    with pytest.raises(ConfigError, match=r"pip install 'fst-lab\[lora\]'"):
        preflight(config)
    preflight(tiny_config())


def test_dropout_is_for_training_passes_alone() -> None:
    policy = policy_with(dropout=0.5)
    shake(policy)
    rows = prompts(policy)
    policy.model.train()
    done = policy.generate(rows, range(len(rows)))
    assert done == policy.generate(rows, range(len(rows)))
    assert policy.score(rows, done) == policy.score(rows, done)
    assert policy.model.training
    ids = torch.tensor([rows[0]])
    assert not torch.equal(policy.model(ids).logits, policy.model(ids).logits)
    logp = sum(sum(score.logp) for score in policy.score(rows, done))
    assert math.isfinite(logp)


def test_a_policy_in_bfloat16_has_adapters_in_float32() -> None:
    settings: PolicyConfig = TinyPolicy(dtype="bfloat16", lora=LoraConfig(rank=2))
    policy = LanguageModelPolicy(settings)
    types = {(".lora_" in n, p.dtype) for n, p in policy.model.named_parameters()}
    assert types == {(True, torch.float32), (False, torch.bfloat16)}
