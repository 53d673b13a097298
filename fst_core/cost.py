"""What a run will cost, from its config alone: rollouts, tokens, steps, engine calls, disk.

Upper bounds; the slow loop's rollouts are exact where its settings never draw anew (`refills`).
Loads no torch: the number of parameters is read from the header of the weights' files, or from what
else is known of the model (model_size.py). GPU time and memory: gpu_cost.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fst_core.config import (
    GepaConfig,
    HuggingFaceReflection,
    NoSlow,
    PolicyReflection,
    RunConfig,
    tasks_of,
)
from fst_core.counting import counted
from fst_core.gpu_cost import Amounts, gpu_rows
from fst_core.interleave import EvaluatePhase, FastPhase, plan
from fst_core.model_size import ModelSize, size_of

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
WEIGHTS_AND_ADAM = 3
"""Copies of the parameters in a checkpoint: weights and Adam's two moments, all of one type."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run uses at most."""

    slow_rollouts: int
    fast_rollouts: int
    evaluation_rollouts: int
    reflections: int
    """Texts written by the reflection."""
    tokens: int
    """Generated tokens of the policy, every completion taken at full length."""
    optimizer_steps: int
    generate_calls: int
    fast_phases: int
    idle_fast_phases: int
    """Fast phases whose metric calls do not pay for a single search step."""
    evaluations: int
    model: ModelSize
    checkpoint_bytes: int | None
    """Disk for checkpoints, the one being written included."""


def estimate(config: RunConfig) -> Cost:
    """The cost of a whole run."""
    phases = plan(config)
    fast = [p for p in phases if isinstance(p, FastPhase)]
    batch = config.loop.problems_per_step
    searches = [config.fast.bounds((p.stop - p.start) * batch, config) for p in fast]
    looks = sum(isinstance(p, EvaluatePhase) for p in phases)
    steps = 0 if isinstance(config.slow, NoSlow) else config.loop.steps
    slow = steps * config.slow.rollouts(config)
    evaluation = _evaluation_rollouts(config, looks)
    searched = sum(s.rollouts for s in searches)
    reflected = _own_tokens(config) * sum(s.reflections for s in searches)
    model = size_of(config.policy)
    idle = [s for s in searches if isinstance(config.fast, GepaConfig) and not s.reflections]
    return Cost(
        slow_rollouts=slow,
        fast_rollouts=searched,
        evaluation_rollouts=evaluation,
        reflections=sum(s.reflections for s in searches),
        tokens=(slow + searched + evaluation) * config.policy.max_new_tokens + reflected,
        optimizer_steps=steps,
        generate_calls=steps * (1 + config.slow.refills)
        + looks
        + _further_calls(config, looks)
        + sum(s.calls for s in searches),
        fast_phases=len(fast),
        idle_fast_phases=len(idle),
        evaluations=looks,
        model=model,
        checkpoint_bytes=_checkpoint_bytes(config, steps, model.parameters),
    )


def _further_calls(config: RunConfig, looks: int) -> int:
    """Generate calls of evaluations beside one a look: suites at both ends, base weights last."""
    settings = config.evaluation
    base = settings.ends and looks > 1 and config.learns
    return min(2, looks) * len(settings.suites) + base


def _evaluation_rollouts(config: RunConfig, looks: int) -> int:
    """Rollouts of `looks` evaluations; the first and last see more contexts, weights and suites."""
    settings = config.evaluation
    contexts = 2 if config.has_contexts else 1
    ends = min(2, looks)
    extra = ends + contexts if settings.ends and looks > 1 else ends * settings.ends
    look = len(tasks_of(config.environment)) * settings.problems * settings.samples
    suites = sum(
        suite.problems * suite.samples * min(len(suite.contexts), contexts + 1)
        for suite in settings.suites
    )
    return look * (looks * contexts + extra) + ends * suites


def _own_tokens(config: RunConfig) -> int:
    """Most tokens of one reflection, where the policy itself writes it; else 0."""
    reflection = config.fast.writer
    return reflection.max_new_tokens if isinstance(reflection, PolicyReflection) else 0


def _checkpoint_bytes(config: RunConfig, steps: int, parameters: int | None) -> int | None:
    if not steps:
        return 0
    if parameters is None:
        return None
    size = parameters * DTYPE_BYTES[config.policy.dtype] * WEIGHTS_AND_ADAM
    return size * (config.checkpoint.keep + 1)


def cost_rows(cost: Cost, config: RunConfig) -> list[tuple[str, str]]:
    """The cost as (what, how much) lines for people."""
    total = cost.slow_rollouts + cost.fast_rollouts + cost.evaluation_rollouts
    looks = f"at most {cost.evaluation_rollouts:,} in {counted(cost.evaluations, 'evaluation')}"
    return [
        ("slow rollouts", f"{'at most ' * (config.slow.refills > 0)}{cost.slow_rollouts:,}"),
        (
            "fast rollouts",
            f"at most {cost.fast_rollouts:,} in {counted(cost.fast_phases, 'phase')}",
        ),
        ("evaluation rollouts", looks),
        ("all rollouts", f"at most {total:,}"),
        ("generated tokens", f"at most {cost.tokens:,}"),
        ("optimizer steps", f"{cost.optimizer_steps:,}"),
        ("generate calls", f"at most {cost.generate_calls:,}"),
        ("reflections", f"at most {cost.reflections:,}{_reflecting(config)}"),
        ("parameters", cost.model.told),
        ("checkpoints on disk", _size(cost.checkpoint_bytes)),
        *gpu_rows(config, cost.model, _amounts(cost, config)),
    ]


def warnings_of(cost: Cost) -> list[str]:
    """What is wrong with a run of this cost, in sentences for people."""
    if not cost.idle_fast_phases:
        return []
    return [
        f"in {counted(cost.idle_fast_phases, 'fast phase')}, fast.metric_calls does not pay for "
        "one search step; raise it, or lower fast.anchors, fast.minibatch or fast.proposals"
    ]


def study_rows(planned: Sequence[RunConfig], costs: Sequence[Cost]) -> list[tuple[str, str]]:
    """What the runs of a study cost, by arm and all together, as (what, how much) lines."""
    by_arm: dict[str, list[Cost]] = {}
    for run, cost in zip(planned, costs, strict=True):
        by_arm.setdefault(run.arm, []).append(cost)
    rows = [(f"{arm}, {counted(len(of), 'run')}", _summed(of)) for arm, of in by_arm.items()]
    total = (f"all {counted(len(costs), 'run')}", _summed(costs))
    return [*rows, total] if len(rows) > 1 else rows


def _summed(costs: Sequence[Cost]) -> str:
    rollouts = sum(c.slow_rollouts + c.fast_rollouts + c.evaluation_rollouts for c in costs)
    tokens, steps = sum(c.tokens for c in costs), sum(c.optimizer_steps for c in costs)
    disk = [c.checkpoint_bytes for c in costs]
    told = f"at most {counted(rollouts, 'rollout')}, {counted(tokens, 'token')}"
    if not steps:
        return told
    stored = _size(None if None in disk else sum(size or 0 for size in disk))
    return f"{told}; {counted(steps, 'optimizer step')}; checkpoints {stored}"


def _amounts(cost: Cost, config: RunConfig) -> Amounts:
    own = cost.reflections if isinstance(config.fast.writer, PolicyReflection) else 0
    slow_calls = cost.optimizer_steps * (1 + config.slow.refills)
    calls = cost.generate_calls - slow_calls - cost.evaluations
    calls -= _further_calls(config, cost.evaluations)
    return Amounts(cost.slow_rollouts, cost.fast_rollouts, calls, cost.evaluation_rollouts, own)


def _reflecting(config: RunConfig) -> str:
    reflection = config.fast.writer
    if reflection is None:
        return ""
    model = reflection.model if isinstance(reflection, HuggingFaceReflection) else ""
    return f" by {reflection.type} {model}".rstrip()


def _size(count: int | None) -> str:
    if count is None:
        return "unknown: the weights are not on this machine yet"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"about {count:,.0f} {unit}"
        count = round(count / 1000)
    return f"about {count:,.0f} TB"
