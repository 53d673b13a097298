"""Runs that train adapters: TRL's own to the last bit, resumable, and the base left as it was."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fst_core.checkpoint import ADAPTERS, list_checkpoints
from fst_core.config import RunConfig
from fst_core.interleave import interleave, remaining, run_phase
from fst_core.journal import comparable, read_events
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.session import Session
from tests.bench.cards import SLOW_ONLY, difference, launch, losses
from tests.invariants.test_ranks import TEN_STEPS, launched, words
from tests.invariants.test_slow_equals_grpo import PlainTrainer, config_of, lab_weights, plain_grpo
from tests.runs import TINY, run, tiny_config

LORA = {"rank": 4}
FAST_LEARNER = {"learning_rate": 5e-3, "warmup_steps": 0}
LEARNABLE = {**TINY["environment"], "required": []}
Weights = dict[str, torch.Tensor]


def with_lora(**tables: Any) -> RunConfig:
    given = {"fast": {"type": "none"}, "slow": FAST_LEARNER, "environment": LEARNABLE, **tables}
    policy = {"lora": LORA, "share_prefixes": False}  # which differs by rounding between two ways
    return tiny_config(policy=policy, **given)


def of(model: torch.nn.Module, adapters: bool = True) -> Weights:
    """The adapters of a model, or all else."""
    named = model.named_parameters()
    return {n: p.detach().clone() for n, p in named if (".lora_" in n) == adapters}


def equal(ours: Weights, theirs: Weights) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in theirs)


def last(folder: Path) -> Path:
    return list_checkpoints(folder / "checkpoints")[-1] / "slow"


@pytest.mark.parametrize(("beta", "checkpointing"), [(0.0, True), (0.05, False)])
def test_no_fast_part_is_plain_grpo_with_a_peft_config(
    tmp_path: Path, beta: float, checkpointing: bool
) -> None:
    """The reference is given our first adapters: TRL draws its own from a seed of its own."""
    from peft import LoraConfig

    slow = {**FAST_LEARNER, "beta": beta, "gradient_checkpointing": checkpointing}
    plain = config_of(**slow)
    lora = {"rank": 4, "alpha": 8.0}
    adapted = plain.model_copy(
        update={"policy": type(plain.policy)(**plain.policy.model_dump(), lora=lora)}
    )
    with Session(adapted, tmp_path / "start") as session:
        start = of(session.policy.model)  # type: ignore[union-attr]

    class PlainLora(PlainTrainer):
        def __init__(self, model: Any, **options: Any):
            settings = LoraConfig(
                r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"
            )
            super().__init__(model=model, peft_config=settings, **options)
            model.load_state_dict(start, strict=False)

    ours = lab_weights(adapted, tmp_path / "lab")
    theirs = plain_grpo(plain, tmp_path / "plain", PlainLora)
    assert ours.keys() == theirs.keys()
    assert any(not torch.equal(start[name], theirs[name]) for name in start), "nothing was learned"
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_changes_its_adapters_alone_and_writes_nothing_else(tmp_path: Path) -> None:
    full = tiny_config(fast={"type": "none"}, environment=LEARNABLE)
    config = with_lora(slow={**FAST_LEARNER, "beta": 0.05})
    events: list[Any] = []
    with Session(config, tmp_path / "lora", events.append) as session:
        policy = session.policy
        assert isinstance(policy, LanguageModelPolicy)
        before, base = of(policy.model), of(policy.model, adapters=False)
        interleave(session)
        assert equal(of(policy.model, adapters=False), base)
        assert not equal(of(policy.model), before)
        count = policy.count_parameters()
    started = next(e for e in events if e["kind"] == "run")
    assert started["parameters"] == count and 0 < count["trainable"] < count["all"]
    first = next(e for e in events if e["kind"] == "slow")
    looks = [e for e in events if e["kind"] == "evaluation"]
    assert first["metrics"]["slow/kl"] == 0.0
    names = ("evaluation/kl", "evaluation/kl_k3", "evaluation/kl_exact")
    assert [e["metrics"][n] for e in looks if e["step"] == 0 for n in names] == [0.0] * 6
    assert all(e["metrics"]["evaluation/kl_exact"] > 0 for e in looks if e["step"] == 4)

    run(full, tmp_path / "full")
    slow, whole = last(tmp_path / "lora"), last(tmp_path / "full")
    assert not (slow / "model.safetensors").exists() and not (whole / ADAPTERS).exists()
    assert sum(t.numel() for t in load_file(slow / ADAPTERS).values()) == count["trainable"]
    for name, other in ((ADAPTERS, "model.safetensors"), ("optimizer.pt", "optimizer.pt")):
        assert (slow / name).stat().st_size < 0.2 * (whole / other).stat().st_size


@pytest.mark.parametrize("point", ["backward", "checkpoint-write"])
def test_killed_and_resumed_equals_undisturbed(tmp_path: Path, point: str) -> None:
    tables = {"policy": {"lora": {**LORA, "dropout": 0.1}}, "slow": {**FAST_LEARNER, "beta": 0.05}}
    run(tiny_config(**tables), tmp_path / "straight")
    folder = tmp_path / "fst-s0"
    died = subprocess.run(
        [sys.executable, "-m", "tests.invariants.killed_run", str(folder), point,
         json.dumps(tables)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    assert list_checkpoints(folder / "checkpoints"), "it died before there was anything to resume"
    run(tiny_config(**tables), folder)
    ours, theirs = (
        comparable(read_events(f / "journal.jsonl")) for f in (folder, tmp_path / "straight")
    )
    assert ours == theirs
    assert equal(
        load_file(last(folder) / ADAPTERS), load_file(last(tmp_path / "straight") / ADAPTERS)
    )


def test_runs_start_from_a_run_with_adapters(tmp_path: Path) -> None:
    """With adapters of the same shape, with all weights, and with none trained."""
    run(with_lora(name="first"), tmp_path / "first" / "rl-s0")
    saved = load_file(last(tmp_path / "first" / "rl-s0") / ADAPTERS)
    start = {"name": "probe", "start_from": "first/rl-s0"}
    with Session(with_lora(**start), tmp_path / "probe" / "lora-s0") as session:
        policy = session.policy
        assert isinstance(policy, LanguageModelPolicy)
        mine = of(policy.model)
        assert sorted(map(float, (t.sum() for t in mine.values()))) == sorted(
            map(float, (t.sum() for t in saved.values()))
        )
        merged = of(policy.base, adapters=False)
        interleave(session)
        assert not equal(of(policy.model), mine)
        assert equal(of(policy.base, adapters=False), merged)
    kl = {}
    for name, slow in (("none", {"type": "none"}), ("full", FAST_LEARNER)):
        config = tiny_config(
            fast={"type": "none"}, slow=slow, environment=LEARNABLE, arm=name, **start
        )
        events = run(config, tmp_path / "probe" / f"{name}-s0")
        looks = [e for e in events if e["kind"] == "evaluation" and e["context"] == "seed"]
        kl[name] = [e["metrics"]["evaluation/kl_exact"] for e in looks]
    adapted = read_events(tmp_path / "probe" / "lora-s0" / "journal.jsonl")
    looks = [e for e in adapted if e["kind"] == "evaluation" and e["context"] == "seed"]
    began = looks[0]["metrics"]["evaluation/kl_exact"]
    assert began > 0, "the KL of a run that starts from another is to the base model"
    assert kl["none"] == pytest.approx([began] * len(kl["none"]), rel=1e-3)
    assert kl["full"][0] == pytest.approx(began, rel=1e-3)


GRADIENT = {"learning_rate": 1e-3, "warmup_steps": 1, "micro_batch": 16}
TWO = {
    "type": "sequence",
    "task_steps": 2,
    "tasks": [{**TINY["environment"], "name": "one"}, {**LEARNABLE, "name": "other"}],
}
METHODS: dict[str, dict[str, Any]] = {
    "sft": {"slow": {"type": "sft", **GRADIENT}},
    "expert": {"slow": {"type": "expert", **GRADIENT}},
    "hpt": {"slow": {"type": "hpt", **GRADIENT}},
    "distill": {"slow": {"type": "distill", **GRADIENT}, "fast": TINY["fast"]},
    "distill-live": {
        "slow": {"type": "distill", "teacher": "live", **GRADIENT},
        "fast": TINY["fast"],
    },
    "l2": {"retention": [{"type": "l2"}], "environment": TWO},
    "ewc": {"retention": [{"type": "ewc", "samples": 4}], "environment": TWO},
    "kl-stage": {"retention": [{"type": "kl", "to": "stage"}], "environment": TWO},
    "kl-base": {"retention": [{"type": "kl"}]},
}


@pytest.mark.parametrize("tables", METHODS.values(), ids=METHODS)
def test_every_way_to_train_trains_adapters_and_resumes(
    tmp_path: Path, tables: dict[str, Any]
) -> None:
    config = with_lora(evaluation={"every": 0, "ends": False, "kl": False}, **tables)
    with Session(config, tmp_path / "whole") as session:
        policy = session.policy
        assert isinstance(policy, LanguageModelPolicy)
        start, base = of(policy.model), of(policy.model, adapters=False)
        interleave(session)
        assert equal(of(policy.model, adapters=False), base)
        whole = of(policy.model)
    assert not equal(whole, start)
    with Session(config, tmp_path / "pieces") as session:
        for number, phase in enumerate(remaining(session)):
            run_phase(session, phase)
            if number == 3:
                break
    with Session(config, tmp_path / "pieces") as session:
        interleave(session)
        assert equal(of(session.policy.model), whole)  # type: ignore[union-attr]


def test_kl_retention_to_the_base_has_the_gradient_of_beta(tmp_path: Path) -> None:
    """TRL's switch of the adapters, and ours, for the same adapters, which are not the base.

    They are set, not learned: Adam's first step makes steps of a size out of rounding.
    """
    slow = {**FAST_LEARNER, "zero_variance": "keep", "max_grad_norm": 1e9}
    found = []
    for name, tables in (
        ("beta", {"slow": {**slow, "beta": 5.0}}),
        ("retention", {"slow": slow, "retention": [{"type": "kl", "coefficient": 5.0}]}),
        ("neither", {"slow": slow}),
    ):
        gradients: list[torch.Tensor] = []

        def keep(*_: Any, model: Any, kept: list[torch.Tensor] = gradients, **__: Any) -> None:
            kept.append(
                torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
            )

        with Session(with_lora(**tables), tmp_path / name) as session:
            torch.manual_seed(0)
            for key, value in session.policy.model.named_parameters():  # type: ignore[union-attr]
                if ".lora_B" in key:
                    value.data.normal_(std=0.2)
            session.slow.handover.on_pre_optimizer_step = keep  # type: ignore[union-attr]
            session.step()
        found.append(gradients[0])
    beta, retention, neither = found
    assert (beta - neither).norm() > 0.05 * neither.norm()
    assert (beta - retention).norm() < 1e-4 * (beta - neither).norm()


def test_distilling_from_a_start_with_adapters_copies_no_weights(tmp_path: Path) -> None:
    run(with_lora(name="first"), tmp_path / "first" / "rl-s0")
    slow = {"type": "distill", **GRADIENT}
    config = with_lora(name="next", start_from="first/rl-s0", slow=slow, fast=TINY["fast"])
    with Session(config, tmp_path / "next" / "fst-s0") as session:
        teacher = session.slow.trainer.teacher  # type: ignore[union-attr]
        policy = session.policy
        assert isinstance(policy, LanguageModelPolicy)
        start, frozen = of(teacher), {p.data_ptr() for p in policy.base.parameters()}
        assert equal(start, of(policy.model))
        assert {p.data_ptr() for n, p in teacher.named_parameters() if ".lora_" not in n} == frozen
        interleave(session)
        assert equal(of(teacher), start) and not equal(of(policy.model), start)


def test_adapters_learn(tmp_path: Path) -> None:
    tables = {
        "loop": {"steps": 12, "cycle_steps": 6, "problems_per_step": 8, "group_size": 8},
        "evaluation": {"every": 0, "problems": 16, "samples": 2, "kl": False},
        "slow": {"learning_rate": 5e-3, "warmup_steps": 1, "micro_batch": 64},
        "environment": {**LEARNABLE, "required": ["dashes"]},
    }
    events = run(with_lora(**tables), tmp_path)
    looks = [e for e in events if e["kind"] == "evaluation" and e["context"] == "seed"]
    first, final = (look["metrics"]["evaluation/reward"] for look in (looks[0], looks[-1]))
    assert first < 0.1 and final > 0.4


LORA_WORDS = ["policy.lora.rank=4", "slow.beta=0.02"]


def test_two_processes_with_ddp_have_the_losses_of_one(tmp_path: Path) -> None:
    recorded, settings = str(tmp_path / "recorded"), [*TEN_STEPS, *LORA_WORDS]
    launched(tmp_path, "--record", recorded, *words(tmp_path / "1", "rl", settings))
    ddp = words(tmp_path / "ddp", "rl", settings)
    launched(tmp_path, "--replay", recorded, *ddp, processes=2)
    one, two = (tmp_path / name / "smoke" / "rl-s0" for name in ("1", "ddp"))
    assert difference(losses(two), losses(one)) < 1e-5
    assert (last(two) / ADAPTERS).is_file()


def test_two_processes_with_fsdp_are_refused(tmp_path: Path) -> None:
    command = words(tmp_path, "rl", [*SLOW_ONLY, *LORA_WORDS])
    failed = launch(command, processes=2, fsdp=True, seconds=120)
    assert failed.returncode != 0
    said = r"^error: (rank \d: )?policy\.lora does not go with FSDP; launch with DDP"
    assert re.search(said, failed.stderr, re.MULTILINE)
