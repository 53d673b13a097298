"""Engines side by side: the same prompts, every completion at full length."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from fst_core.bench.timing import Table, interleaved
from fst_core.policy.base import Engine, Sampling, sampling_dtype
from fst_core.policy.graph_engine import GraphEngine, why_not
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.transformers_engine import TransformersEngine, left_pad, looking

ASKED = ", log-probabilities asked for"
CONTEXT = "You add numbers. Think of the digits one by one. "


def bench_prompts(policy: LanguageModelPolicy, problems: int, group: int, contexts: int) -> Any:
    """problems x group prompts, each group spread over contexts of growing length."""
    rows = []
    for i in range(problems * group):
        system = CONTEXT * (1 + i % group * contexts // group)
        user = f"What is {i // group} + {7 * (i // group) % 90}?"
        chat = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        rows.append(policy.prompt_ids(chat))
    return rows


def plain_generate(
    policy: LanguageModelPolicy, model: PreTrainedModel, rows: Sequence[Sequence[int]], tokens: int
) -> Callable[[], object]:
    """transformers' own generate, in the type and under the autocast that training samples with."""
    ids_BT, mask_BT = left_pad(rows, int(policy.tokenizer.pad_token_id), model.device)
    fixed: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens}

    def call() -> object:
        with looking(model, policy.config.autocast):
            return model.generate(  # type: ignore[operator]  # typed for its mixin alone
                input_ids=ids_BT, attention_mask=mask_BT, do_sample=True, **fixed
            )

    return call


def graph_engine(policy: LanguageModelPolicy, stop_ids: frozenset[int], rows: int) -> GraphEngine:
    """The graph engine of a policy, whatever engine its config names."""
    dtype = sampling_dtype(policy.config)
    return GraphEngine(policy.model, policy.tokenizer, stop_ids, rows, dtype)


def bench_generation(
    policy: LanguageModelPolicy,
    problems: int = 32,
    group: int = 8,
    contexts: int = 4,
    tokens: int = 64,
    repeats: int = 5,
) -> tuple[Table, dict[str, Any]]:
    """Every engine that runs here; no stop tokens, so that all do the same work."""
    rows = bench_prompts(policy, problems, group, contexts)
    sampling, seeds = Sampling(policy.config.temperature, tokens), range(len(rows))
    never = frozenset[int]()
    engines: dict[str, Engine] = {
        "our transformers engine": TransformersEngine(
            policy.model, policy.tokenizer, never, len(rows), policy.config.autocast
        )
    }
    if why_not(policy.model) is None:
        graph = graph_engine(policy, never, len(rows))
        graph.sync(0)
        engines["our graph engine"] = graph
    calls: dict[str, Callable[[], object]] = {
        "plain generate": plain_generate(policy, policy.model, rows, tokens)
    }
    if importlib.util.find_spec("vllm") is not None and policy.model.device.type == "cuda":
        engines["our vLLM engine"] = vllm = vllm_engine(policy)
        for also in (False, True):
            name = "vLLM's LLM.generate" + ASKED * also
            calls[name] = raw_vllm(vllm.loaded.llm, policy.config.temperature, rows, tokens, also)
    for name, engine in engines.items():
        calls[name] = lambda engine=engine: engine.generate(rows, seeds, sampling)  # type: ignore[misc]
    if "our vLLM engine" in engines:
        silent = replace(sampling, logprobs=False)
        calls[f"our vLLM engine{ASKED}"] = calls["our vLLM engine"]
        calls["our vLLM engine"] = lambda: vllm.generate(rows, seeds, silent)
    table = Table(f"Generation: {len(rows)} prompts x {tokens} tokens", "tokens/s")
    table.fill(interleaved(calls, repeats), len(rows) * tokens, "plain generate")
    about: dict[str, Any] = {"prompt_tokens": [min(map(len, rows)), max(map(len, rows))]}
    if "our graph engine" in engines:
        about["captures"] = graph.captures
        about |= _agreement(policy, graph, rows, seeds, sampling)
    return table, about


def vllm_engine(policy: LanguageModelPolicy) -> Any:
    """Our vLLM engine of a policy, without stop tokens."""
    from fst_core.policy.vllm_engine import VllmEngine  # noqa: PLC0415  # imports vllm

    engine = VllmEngine(policy.model, policy.tokenizer, frozenset(), policy.config)
    engine.sync(0)
    return engine


def raw_vllm(
    llm: Any, temperature: float, rows: Sequence[Sequence[int]], tokens: int, logprobs: bool
) -> Callable[[], object]:
    """vLLM called directly, one set of parameters for all rows; tokens' log-probabilities too."""
    from vllm import SamplingParams  # noqa: PLC0415  # an optional package

    prompts: Any = [{"prompt_token_ids": list(row)} for row in rows]
    params = SamplingParams(
        temperature=temperature,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=0 if logprobs else None,
    )
    return lambda: llm.generate(prompts, params, use_tqdm=False)


def _agreement(
    policy: LanguageModelPolicy,
    graph: GraphEngine,
    rows: Sequence[Sequence[int]],
    seeds: Sequence[int],
    sampling: Sampling,
) -> dict[str, float]:
    """How far the graph engine's log-probabilities are from the trained model's own (nats)."""
    drawn = graph.generate(rows, seeds, sampling)
    scored = policy.score(rows, drawn)
    gaps = [
        abs(ours - theirs)
        for completion, score in zip(drawn, scored, strict=True)
        for ours, theirs in zip(completion.logprobs, score.logp, strict=True)
    ]
    return {"mismatch_mean": sum(gaps) / len(gaps), "mismatch_max": max(gaps)}


def bench_sync(policy: LanguageModelPolicy, repeats: int = 20) -> tuple[Table, dict[str, Any]]:
    """A weight sync of the graph engine against a copy of as many bytes within the device."""
    graph = graph_engine(policy, policy.stop_ids, 8)
    sizes = [p.numel() for p in policy.model.parameters()]
    read = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    written = sum(sizes) * graph.cells.like.element_size()
    source = torch.randn((read + written) // 8, device=policy.model.device)
    target = torch.empty_like(source)
    versions = iter(range(1, 1 << 20))
    found = interleaved(
        {
            "device copy": lambda: target.copy_(source),
            "weight sync": lambda: graph.sync(next(versions)),
        },
        repeats,
    )
    table = Table("Weight sync of the graph engine", "GB/s moved")
    table.fill(found, (read + written) / 1e9, "device copy")
    return table, {"parameters": sum(sizes), "bytes_moved": read + written}
