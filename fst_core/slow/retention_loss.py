"""Penalties that hold weights near what was learned before, and what they must remember.

Where a slow step uses them (`slow.grpo.ContextGRPOTrainer`):

- `begin` in front of a step's first pass: the weights at a stage's start are kept;
- `terms` in every pass: terms over the tokens of a piece;
- `finish` after the last backward pass, before clipping: gradients of penalties on weights are
  added to the step's own in closed form, and at the end of a stage the penalties learn from it.

All processes hold the same anchors, and add the same to gradients that are shared already.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call
from trl.models.utils import disable_gradient_checkpointing

from fst_core.config.model import ConfigError
from fst_core.methods import RETENTION, load
from fst_core.policy.language_model import sharded
from fst_core.slow.base import SlowTools
from fst_core.slow.chunks import Batch, take_rows, without_shared_padding
from fst_core.slow.measured import log_token_mean
from fst_core.slow.retention import EwcRetention, KlRetention, L2Retention, LossRetention

Weights = dict[str, torch.Tensor]
"""Parameter names (tied ones once) and values."""
FILE = "retention.safetensors"
"""Beside the slow part's own files in a checkpoint."""


class Penalty:
    """One entry of `retention` whose place is the loss."""

    def __init__(self, settings: LossRetention):
        self.settings = settings
        self.coefficient = settings.coefficient

    def loss(self, trainer: Any, piece: Batch, anchor: Weights) -> torch.Tensor | None:
        """A piece's share of a term over the step's tokens."""
        return None

    def pull(self, model: torch.nn.Module, anchor: Weights) -> float | None:
        """Add the gradient of a penalty on the weights; the penalty's value."""
        return None

    def learn(self, trainer: Any, batch: Batch) -> None:
        """A stage ends; what its last rollouts show. Gradients of parameters stay as they are."""

    def state(self) -> Weights:
        """What later steps depend on, beside the anchor."""
        return {}

    def restore(self, state: Weights) -> None:
        """Go on from a checkpoint."""


class Retention:
    """All penalties of a run; does nothing where there are none."""

    def __init__(self, tools: SlowTools):
        run = tools.run
        self.penalties: list[Penalty] = [
            load(RETENTION[settings.type].make)(settings, tools)
            for settings in run.retention
            if isinstance(settings, LossRetention) and settings.coefficient
        ]
        self.staged = any(penalty.settings.needs_stages for penalty in self.penalties)
        if self.penalties and sharded():
            raise ConfigError(
                "retention: penalties on the loss work on whole weights, which FSDP shards; launch "
                "with DDP, or, for KL to the base model, set slow.beta"
            )
        self.task_steps = getattr(run.environment, "task_steps", run.loop.steps)
        self.steps = run.loop.steps
        self.anchor: Weights = {}
        self.batch: Batch | None = None
        """All rollouts of a stage's last step."""
        self.values: dict[str, float] = {}

    def scored(self, batch: Batch, step: int) -> None:
        """The rollouts of slow step `step` (from 0), before any leaves the batch."""
        switches = (step + 1) % self.task_steps == 0 and step + 1 < self.steps
        self.batch = batch if self.staged and switches else None

    def begin(self, trainer: Any, step: int) -> None:
        """In front of the passes of slow step `step` (from 0)."""
        if self.staged and step % self.task_steps == 0:
            self.anchor = {name: p.detach().clone() for name, p in trained(trainer.model).items()}

    def terms(self, trainer: Any, piece: Batch) -> list[torch.Tensor]:
        """What the penalties add to the loss of a piece."""
        found = [penalty.loss(trainer, piece, self.anchor) for penalty in self.penalties]
        return [term for term in found if term is not None]

    def finish(self, trainer: Any) -> None:
        """After the last backward pass of a step, whose gradient is the slow part's own so far."""
        for penalty in self.penalties:
            value = penalty.pull(trainer.model, self.anchor)
            if value is not None:
                self.values[f"slow/retention_{penalty.settings.type}"] = value
        batch, self.batch = self.batch, None
        if batch is not None:
            for penalty in self.penalties:
                penalty.learn(trainer, batch)

    def take(self) -> dict[str, float]:
        """The values of the penalties on weights in the step just done."""
        values, self.values = self.values, {}
        return values

    def save(self, folder: Path) -> None:
        """Write what later steps depend on into a checkpoint's folder."""
        if self.staged:
            tensors = {f"anchor.{name}": value for name, value in self.anchor.items()}
            for penalty in self.penalties:
                kind = penalty.settings.type
                tensors |= {f"{kind}.{name}": value for name, value in penalty.state().items()}
            save_file({name: value.contiguous() for name, value in tensors.items()}, folder / FILE)

    def restore(self, folder: Path, device: torch.device) -> None:
        """Go on from a checkpoint's folder."""
        if self.staged:
            tensors = load_file(folder / FILE, device=str(device))
            self.anchor = below("anchor", tensors)
            for penalty in self.penalties:
                penalty.restore(below(penalty.settings.type, tensors))


class Kl(Penalty):
    """See `slow.retention.KlRetention`."""

    def __init__(self, settings: KlRetention, tools: SlowTools):
        super().__init__(settings)
        self.to_stage = settings.needs_stages
        self.policy = tools.policy

    def loss(self, trainer: Any, piece: Batch, anchor: Weights) -> torch.Tensor:
        """Coefficient times the piece's share of the token mean of the KL."""
        mask_BT, logp_BT = piece["completion_mask"], trainer.logp_BT
        kl_BT = k3(logp_BT, self._anchor_logps(trainer, piece, anchor))
        log_token_mean(trainer, "retention_kl", kl_BT, mask_BT)
        whole = piece["num_items_in_batch"].clamp(min=1) / trainer.accelerator.num_processes
        return self.coefficient * (kl_BT * mask_BT).sum() / whole

    def _anchor_logps(self, trainer: Any, piece: Batch, anchor: Weights) -> torch.Tensor:
        if self.to_stage:
            return anchor_logps(trainer, piece, anchor)
        if not self.policy.config.lora:
            return anchor_logps(trainer, piece, trained(self.policy.base, frozen=True))
        with trainer.model.disable_adapter():
            return anchor_logps(trainer, piece, {})


class L2(Penalty):
    """See `slow.retention.L2Retention`."""

    def __init__(self, settings: L2Retention, tools: SlowTools):
        super().__init__(settings)

    def pull(self, model: torch.nn.Module, anchor: Weights) -> float:
        """Add coefficient * (theta - anchor) to the gradients."""
        return pull_towards(model, anchor, lambda name, away: self.coefficient * away)


class Ewc(Penalty):
    """See `slow.retention.EwcRetention`."""

    def __init__(self, settings: EwcRetention, tools: SlowTools):
        super().__init__(settings)
        self.decay, self.samples = settings.decay, settings.samples
        self.fisher: Weights = {}

    def pull(self, model: torch.nn.Module, anchor: Weights) -> float:
        """Add coefficient * F (theta - anchor) to the gradients."""
        if not self.fisher:
            return 0.0
        return pull_towards(
            model, anchor, lambda name, away: self.coefficient * self.fisher[name] * away
        )

    def learn(self, trainer: Any, batch: Batch) -> None:
        """F <- decay * F + the stage's."""
        found = fisher(trainer, batch, self.samples)
        old = self.fisher
        self.fisher = {n: self.decay * old[n] + f if old else f for n, f in found.items()}

    def state(self) -> Weights:
        """F; nothing in the first stage."""
        return self.fisher

    def restore(self, state: Weights) -> None:
        """F."""
        self.fisher = state


def trained(model: torch.nn.Module, frozen: bool = False) -> Weights:
    """The parameters of a model that are trained; all of them of a frozen one."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad or frozen}


def below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Weights:
    """Those under a prefix and a dot, without it."""
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


@torch.no_grad()
def pull_towards(
    model: torch.nn.Module, anchor: Weights, slope: Callable[[str, torch.Tensor], torch.Tensor]
) -> float:
    """Add a quadratic penalty's gradient to the gradients of a model.

    Args:
        slope: the gradient from a parameter's name and its distance from the anchor; linear.
    Returns: the penalty, half the sum of gradient times distance.
    """
    halves = []
    for name, parameter in trained(model).items():
        away = parameter - anchor[name]
        gradient = slope(name, away)
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        halves.append((gradient * away).sum(dtype=torch.float32) / 2)
    return float(torch.stack(halves).sum())


def k3(logp_BT: torch.Tensor, anchor_BT: torch.Tensor) -> torch.Tensor:
    """Per-token estimate (B, T) of KL(pi || anchor) in nats at tokens drawn from pi, >= 0.

    r - 1 - log r with r = anchor / pi, times pi / sg(pi): the value is k3, the gradient
    log(pi / anchor) grad log pi, which is that of the exact KL in expectation.
    """
    log_r_BT = anchor_BT - logp_BT
    return (log_r_BT.expm1() - log_r_BT) * (logp_BT - logp_BT.detach()).exp()


def token_logps(call: Callable[..., Any], piece: Batch) -> torch.Tensor:
    """log pi of a piece's completion tokens (B, T), by a model with TRL's fused LM head."""
    ids = torch.cat([piece["prompt_ids"], piece["completion_ids"]], dim=1)
    mask = torch.cat([piece["prompt_mask"], piece["completion_mask"]], dim=1)
    width = piece["completion_ids"].shape[1]
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-width] = -100
    found = call(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    logp_BT: torch.Tensor = found.log_probs[:, -width:]
    return logp_BT


@torch.no_grad()
def anchor_logps(trainer: Any, piece: Batch, weights: Weights) -> torch.Tensor:
    """log pi (B, T) under other weights than the model's."""
    model = trainer.model
    options = trainer.args.gradient_checkpointing_kwargs

    def call(**inputs: Any) -> Any:
        return functional_call(model, weights, (), inputs)

    with trainer.accelerator.autocast(), disable_gradient_checkpointing(model, options):
        return token_logps(call, piece)


def fisher(trainer: Any, batch: Batch, samples: int) -> Weights:
    """Mean over `samples` rollouts, evenly spread over the batch, of (d log pi(y | x) / d theta)^2.

    With several processes each takes its part of them; the parameters' own gradients are not
    touched.
    """
    model = trainer.model
    weights = trained(model)
    rows = spread(len(batch["prompt_ids"]), -(-samples // trainer.accelerator.num_processes))
    total = {name: torch.zeros_like(p) for name, p in weights.items()}
    for row in rows:
        piece = without_shared_padding(take_rows(batch, torch.tensor([row])))
        with trainer.accelerator.autocast():
            logp = (token_logps(model, piece) * piece["completion_mask"]).sum()
        gradients = torch.autograd.grad(logp, list(weights.values()), materialize_grads=True)
        for value, gradient in zip(total.values(), gradients, strict=True):
            value.add_(gradient.square() / len(rows))
    return {n: trainer.accelerator.reduce(value, "mean") for n, value in total.items()}


def spread(size: int, most: int) -> Sequence[int]:
    """At most `most` indices below `size`, evenly spaced."""
    count = min(size, most)
    return [i * size // count for i in range(count)]
