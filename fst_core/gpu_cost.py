"""GPU-hours by part and memory by part of a run on large cards, with what is assumed for them.

For models of the hub alone: the two that come with the lab are bound by what surrounds the card.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fst_core.config import HubPolicy, NoSlow, PolicyReflection, RunConfig
from fst_core.config.slow import GradientSettings
from fst_core.model_size import ModelSize
from fst_core.sizing import Card, Load, memory

QUESTION_TOKENS = 512
"""Assumed length of a question in the chat template (tokens)."""
SHARES = (0.25, 1.0)
"""How much of their limits contexts and completions fill, at the low and the high end."""
CARDS = ((1, False), (8, False), (8, True))
"""Ways whose memory is told: cards, and whether they share the model (FSDP)."""

Hours = tuple[float, float]
"""Low and high."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Rollouts and reflections of a run."""

    slow: int
    fast: int
    fast_calls: int
    """Engine calls that the fast rollouts are spread over."""
    evaluation: int
    reflections: int
    """Texts that the policy writes itself."""


def gpu_hours(config: RunConfig, model: ModelSize, amounts: Amounts) -> dict[str, Hours]:
    """GPU-hours by part, low and high; empty where the model's size is unknown."""
    if model.parameters is None or not isinstance(config.policy, HubPolicy):
        return {}
    low, high = (_hours(config, model, amounts, share) for share in SHARES)
    return {part: (low[part], high[part]) for part in high}


def _hours(config: RunConfig, model: ModelSize, amounts: Amounts, share: float) -> dict[str, float]:
    card, parameters = Card(), model.parameters or 0
    lengths = _lengths(config, share)
    cache = model.shape.cache_bytes if model.shape else 0

    def generate(rollouts: float, at_once: float = config.policy.batch_size) -> float:
        return card.generate_seconds(parameters, cache, rollouts, lengths, at_once)

    def score(rollouts: float, passes: int) -> float:
        return passes * card.forward_seconds(parameters, rollouts * sum(lengths))

    fast_batch = min(config.policy.batch_size, amounts.fast / max(1, amounts.fast_calls))
    trained = amounts.slow / (1 + config.slow.refills)
    written = amounts.reflections * _own_tokens(config) / max(1.0, lengths[1])
    seconds = {
        "slow, generation": generate(amounts.slow),
        "slow, training": card.train_seconds(
            parameters, trained * sum(lengths), _load(config).checkpointed
        )
        + score(trained, int(_load(config).reference)),
        "fast, generation": generate(amounts.fast + written, max(1.0, fast_batch)),
        "evaluation": generate(amounts.evaluation)
        + score(amounts.evaluation, 2 * config.evaluation.kl),
    }
    return {part: value / 3600 for part, value in seconds.items()}


def _lengths(config: RunConfig, share: float) -> tuple[float, float]:
    """Tokens of a prompt and of a completion."""
    context = config.contexts.max_tokens if config.has_contexts else 0
    return QUESTION_TOKENS + share * context, share * config.policy.max_new_tokens


def _own_tokens(config: RunConfig) -> int:
    writer = config.fast.writer
    return writer.max_new_tokens if isinstance(writer, PolicyReflection) else 0


def _load(config: RunConfig) -> Load:
    """What a run puts on a card."""
    policy, slow, evaluation = config.policy, config.slow, config.evaluation
    tokens = round(sum(_lengths(config, 1.0)))
    trained = not isinstance(slow, NoSlow)
    gradient = slow if isinstance(slow, GradientSettings) else None
    budget = gradient.token_budget if gradient else None
    remote = policy.engine == "vllm" and policy.vllm.mode == "server"
    return Load(
        rollouts=config.loop.problems_per_step * config.loop.group_size,
        sequence_tokens=tokens,
        concurrent=policy.batch_size,
        pass_tokens=max(budget or (gradient.micro_batch if gradient else 1) * tokens, tokens),
        weight_bytes=2 if policy.dtype == "bfloat16" else 4,
        trained=trained,
        reference=trained and bool(getattr(slow, "beta", 0)),
        own_copy=policy.engine != "transformers",
        generates=not remote,
        base=trained and (evaluation.kl or evaluation.ends),
        checkpointed=gradient is not None and gradient.gradient_checkpointing,
    )


def gpu_memory(config: RunConfig, model: ModelSize) -> dict[str, Mapping[str, float | None]]:
    """GiB a card by part, for each of CARDS; empty where the model's size is unknown."""
    if model.parameters is None or not isinstance(config.policy, HubPolicy):
        return {}
    load = _load(config)
    return {
        _way(cards, fsdp): memory(model.parameters, model.shape, load, cards, fsdp)
        for cards, fsdp in CARDS
    }


def _way(cards: int, fsdp: bool) -> str:
    return "1 card" if cards == 1 else f"{cards} cards, {'FSDP' if fsdp else 'DDP'}"


def gpu_rows(config: RunConfig, model: ModelSize, amounts: Amounts) -> Iterator[tuple[str, str]]:
    """Hours, memory and assumptions as (what, how much) lines for people."""
    hours = gpu_hours(config, model, amounts)
    if not hours:
        return
    for part, (low, high) in hours.items():
        if not high:
            continue
        yield f"GPU-hours, {part}", f"{low:,.1f} to {high:,.1f}"
    low, high = (sum(hour[end] for hour in hours.values()) for end in (0, 1))
    yield "GPU-hours, all", f"{low:,.0f} to {high:,.0f}"
    yield "hours assume", _assumed(config, model)
    columns = gpu_memory(config, model)
    for part in next(iter(columns.values())):
        if any(parts[part] != 0 for parts in columns.values()):
            yield f"memory, {part}", ", ".join(_gib(c[part], way) for way, c in columns.items())
    sums = {way: _sum(parts) for way, parts in columns.items()}
    yield "memory, together", ", ".join(_gib(size, way) for way, size in sums.items())
    yield "memory assumes", _held(config)


def _sum(parts: Mapping[str, float | None]) -> float | None:
    sizes = [size for size in parts.values() if size is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def _gib(size: float | None, way: str) -> str:
    return f"{'unknown' if size is None else f'{size:.1f} GiB'} ({way})"


def _assumed(config: RunConfig, model: ModelSize) -> str:
    card, policy = Card(), config.policy
    shares = " to ".join(f"{share:.0%}" for share in SHARES)
    context = config.contexts.max_tokens if config.has_contexts else 0
    cache = "" if model.shape else "; no keys and values, as the model's config.json is not here"
    return (
        f"{card.name} ({card.flops / 1e12:.0f} TFLOP/s, {card.bandwidth / 1e12:.2f} TB/s) at "
        f"{card.train_share:.0%} of its operations in training, {card.forward_share:.0%} in "
        f"scoring and reading prompts, {card.decode_share:.0%} of its bandwidth in decoding "
        f"{policy.batch_size} rollouts at once (in the fast phase as many as its calls hold); "
        f"completions of {shares} of "
        f"{policy.max_new_tokens} tokens, contexts of {shares} of {context}, questions of "
        f"{QUESTION_TOKENS}; 2 operations a parameter and token forward, 6 in training (8 with "
        f"gradient checkpointing), and no time in which a card waits{cache}"
    )


def _held(config: RunConfig) -> str:
    load = _load(config)
    engine = "" if load.generates else "; the engine is a server elsewhere and not counted"
    return (
        f"{load.concurrent} rollouts at once of {load.sequence_tokens} tokens, passes of "
        f"{load.pass_tokens} tokens; not fragmentation or buffers, which take 5 to 10 GiB{engine}"
    )
