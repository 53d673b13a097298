"""Penalties that hold on to earlier weights: values and gradients by hand, and across a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from fst_core.checkpoint import CheckpointError, list_checkpoints
from fst_core.config import RunConfig
from fst_core.interleave import interleave
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import Context, Population
from fst_core.session import Session
from fst_core.slow.base import SlowTools
from fst_core.slow.retention import EwcRetention, L2Retention
from fst_core.slow.retention_loss import FILE, L2, Ewc, Retention, k3, spread
from tests.runs import tiny_config

Weights = dict[str, torch.Tensor]
TASKS = [
    {"type": "directives", "name": name, "task": "echo", "required": required}
    for name, required in (("plain", []), ("dashes", ["dashes"]))
]
KEEP = {
    "zero_variance": "keep",
    "max_grad_norm": 1e9,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
}


DISTILL = {"type": "distill", "micro_batch": 16, "warmup_steps": 0, "student": "none"}


def sequence(*retention: dict[str, Any], **tables: Any) -> RunConfig:
    """Two tasks of two steps each under the seed context."""
    return tiny_config(
        environment={"type": "sequence", "tasks": TASKS, "task_steps": 2},
        retention=retention,
        **{"fast": {"type": "none"}, "slow": KEEP, **tables},
    )


def steps(config: RunConfig, folder: Path) -> tuple[list[Weights], list[Weights], list[Any]]:
    """Gradients before the optimizer, weights in front of every step and after the last, events."""
    gradients: list[Weights] = []
    events: list[Any] = []
    with Session(config, folder, events.append) as session:
        model = session.policy.model  # type: ignore[union-attr]
        weights = [copied(model)]

        def keep(*_: Any, model: Any, **__: Any) -> None:
            gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})

        session.slow.handover.on_pre_optimizer_step = keep  # type: ignore[union-attr]
        for _ in range(config.loop.steps):
            session.step()
            weights.append(copied(model))
    return gradients, weights, [e for e in events if e["kind"] == "slow"]


def copied(model: torch.nn.Module) -> Weights:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def after(config: RunConfig, folder: Path) -> Weights:
    return steps(config, folder)[1][-1]


def equal(ours: Weights, theirs: Weights) -> bool:
    return all(torch.equal(ours[name], value) for name, value in theirs.items())


# --- by hand -------------------------------------------------------------------------------------


def model_with(values: list[float], gradient: list[float] | None) -> torch.nn.Linear:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([values])
    model.weight.grad = None if gradient is None else torch.tensor([gradient])
    return model


ANCHOR = {"weight": torch.tensor([[1.0, 1.0]])}


def penalty(settings: Any, kind: Any) -> Any:
    return kind(settings, None)


@pytest.mark.parametrize("gradient", [[10.0, 20.0], None])
def test_l2_by_hand(gradient: list[float] | None) -> None:
    """c/2 ((3 - 1)^2 + (0 - 1)^2) = 1.25 and c (2, -1) = (1, -0.5) at c = 0.5."""
    model = model_with([3.0, 0.0], gradient)
    assert penalty(L2Retention(coefficient=0.5), L2).pull(model, ANCHOR) == pytest.approx(1.25)
    start = torch.tensor([gradient or [0.0, 0.0]])
    torch.testing.assert_close(model.weight.grad, start + torch.tensor([[1.0, -0.5]]))


def test_ewc_by_hand() -> None:
    """c/2 (2 * 2^2 + 3 * 1^2) = 22 and c F away = (16, -12) at c = 4, F = (2, 3)."""
    ewc = penalty(EwcRetention(coefficient=4.0), Ewc)
    model = model_with([3.0, 0.0], [0.0, 0.0])
    assert ewc.pull(model, ANCHOR) == 0.0, "nothing in the first stage"
    torch.testing.assert_close(model.weight.grad, torch.zeros(1, 2))
    ewc.fisher = {"weight": torch.tensor([[2.0, 3.0]])}
    assert ewc.pull(model, ANCHOR) == pytest.approx(22.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([[16.0, -12.0]]))


def test_online_ewc_decays_what_it_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    ewc = penalty(EwcRetention(decay=0.5), Ewc)
    found = iter([torch.tensor([4.0, 0.0]), torch.tensor([1.0, 2.0])])
    monkeypatch.setattr("fst_core.slow.retention_loss.fisher", lambda *_: {"weight": next(found)})
    ewc.learn(None, {})
    ewc.learn(None, {})
    assert ewc.state()["weight"].tolist() == [3.0, 2.0]


def test_k3_by_hand() -> None:
    """Value r - 1 - log r at r = anchor / pi; gradient log(pi / anchor)."""
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    anchor = torch.tensor([[-1.5, -1.0]])
    found = k3(logp, anchor)
    expected = torch.tensor([[0.10653066, 0.71828183]])  # e^-.5 - 1 + .5 and e^1 - 1 - 1
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    torch.testing.assert_close(logp.grad, torch.tensor([[0.5, -1.0]]))


def test_rows_are_spread_evenly() -> None:
    assert spread(8, 4) == [0, 2, 4, 6]
    assert spread(3, 8) == [0, 1, 2]


# --- in a run ------------------------------------------------------------------------------------


def test_l2_adds_its_gradient_to_the_step_s_and_moves_its_anchor_at_a_switch(
    tmp_path: Path,
) -> None:
    """The first step of a stage has none; the second has c times the way since the first."""
    coefficient = 0.3
    gradients, weights, events = steps(
        sequence({"type": "l2", "coefficient": coefficient}), tmp_path / "l2"
    )
    plain, plain_weights, _ = steps(sequence(), tmp_path / "plain")
    assert equal(gradients[0], plain[0]) and equal(weights[1], plain_weights[1])
    for name, gradient in gradients[1].items():
        pull = coefficient * (weights[1][name] - weights[0][name])
        torch.testing.assert_close(gradient, plain[1][name] + pull, rtol=1e-4, atol=1e-7)
    values = [event["metrics"]["slow/retention_l2"] for event in events]
    for step, start in enumerate((0, 0, 2, 2)):
        away = sum(float((weights[step][n] - v).square().sum()) for n, v in weights[start].items())
        assert values[step] == pytest.approx(coefficient / 2 * away, rel=1e-4, abs=1e-12)
    assert values[0] == values[2] == 0.0 and values[1] > 0 and values[3] > 0


def test_ewc_estimates_the_fisher_information_of_the_stage_s_last_rollouts(tmp_path: Path) -> None:
    """Against log-softmax of the plain model, row by row; then its gradient in the next stage."""
    config = sequence({"type": "ewc", "coefficient": 50.0, "samples": 4})
    seen: dict[int, Any] = {}
    with Session(config, tmp_path / "ewc") as session:
        retention = session.slow.retention  # type: ignore[union-attr]
        scored = retention.scored
        retention.scored = lambda batch, step: seen.update({step: batch}) or scored(batch, step)
        model = session.policy.model  # type: ignore[union-attr]
        session.step()
        assert not retention.penalties[0].fisher
        at_last = {n: p.detach().clone() for n, p in model.named_parameters()}
        session.step()
        found = retention.penalties[0].fisher
        live = copied(model)
        by_hand = squared_scores(model, at_last, seen[1], rows=[0, 4, 8, 12])
        for name, value in found.items():
            torch.testing.assert_close(value, by_hand[name], rtol=1e-3, atol=1e-7)
        assert max(float(v.max()) for v in found.values()) > 0
        assert equal(copied(model), live)
    gradients, weights, events = steps(config, tmp_path / "again")
    gradient, name = gradients[3], "model.layers.0.mlp.up_proj.weight"
    pull = 50.0 * found[name] * (weights[3][name] - weights[2][name])
    assert pull.abs().max() > 1e-4
    values = [event["metrics"]["slow/retention_ewc"] for event in events]
    assert values[:3] == [0.0, 0.0, 0.0] and values[3] > 0
    alone = steps_from(config, tmp_path / "alone")
    torch.testing.assert_close(gradient[name], alone[name] + pull, rtol=1e-3, atol=1e-6)


def squared_scores(model: Any, weights: Weights, batch: dict[str, Any], rows: list[int]) -> Weights:
    """Mean over rows of (d log pi(y | x) / d theta)^2 at given weights, by plain log-softmax."""
    live = copied(model)
    put(model, weights)
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for row in rows:
        ids = torch.cat([batch["prompt_ids"][row], batch["completion_ids"][row]])[None]
        mask = torch.cat([batch["prompt_mask"][row], batch["completion_mask"][row]])[None]
        width = batch["completion_ids"].shape[1]
        logits = model(input_ids=ids, attention_mask=mask).logits[0, -width - 1 : -1]
        logp = logits.log_softmax(-1).gather(1, batch["completion_ids"][row][:, None]).squeeze(1)
        model.zero_grad()
        (logp * batch["completion_mask"][row]).sum().backward()
        for name, parameter in model.named_parameters():
            total[name] += parameter.grad.square() / len(rows)
    model.zero_grad()
    put(model, live)
    return total


@torch.no_grad()
def put(model: Any, weights: Weights) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def steps_from(config: RunConfig, folder: Path) -> Weights:
    """The last step's gradient without what EWC adds to it, on the same weights."""
    gradients: list[Weights] = []
    with Session(config, folder) as session:
        retention = session.slow.retention  # type: ignore[union-attr]
        finish = retention.finish

        def watched(trainer: Any) -> None:
            gradients.append({n: p.grad.clone() for n, p in trainer.model.named_parameters()})
            finish(trainer)

        retention.finish = watched
        for _ in range(config.loop.steps):
            session.step()
    return gradients[-1]


def test_kl_to_the_base_model_is_trl_s_beta(tmp_path: Path) -> None:
    """CISPO's KL term is the same token mean of the same estimator."""
    run = {
        "fast": {"type": "none"},
        "environment": {"type": "directives", "task": "echo", "required": []},
    }
    slow = {**KEEP, "learning_rate": 1e-3}
    ours = tiny_config(retention=[{"type": "kl", "coefficient": 3.0}], slow=slow, **run)
    theirs = tiny_config(slow={**slow, "beta": 3.0}, **run)
    gradients, _, events = steps(ours, tmp_path / "ours")
    expected, _, theirs_events = steps(theirs, tmp_path / "theirs")
    plain, _, _ = steps(tiny_config(slow=slow, **run), tmp_path / "plain")
    assert apart(gradients[1], expected[1]) < 1e-3 < 1e-2 < apart(plain[1], expected[1])
    for event, other in zip(events[:2], theirs_events, strict=False):
        assert event["metrics"]["slow/retention_kl"] == pytest.approx(
            other["metrics"]["slow/kl"], rel=1e-3, abs=1e-6
        )
        assert event["metrics"]["slow/loss"] == pytest.approx(
            other["metrics"]["slow/loss"], rel=1e-3, abs=1e-5
        )


def apart(ours: Weights, theirs: Weights) -> float:
    """Distance over length, all parameters together."""
    distance = sum(float((ours[n] - v).square().sum()) for n, v in theirs.items())
    return (distance / sum(float(v.square().sum()) for v in theirs.values())) ** 0.5


def test_kl_to_the_stage_is_zero_at_its_start(tmp_path: Path) -> None:
    _, _, events = steps(sequence({"type": "kl", "to": "stage"}), tmp_path / "run")
    found = [event["metrics"]["slow/retention_kl"] for event in events]
    assert found[0] == pytest.approx(0, abs=1e-7) and found[2] == pytest.approx(0, abs=1e-7)
    assert found[1] > 1e-5 and found[3] > 1e-5


def test_a_coefficient_of_0_leaves_the_weights_bit_for_bit(tmp_path: Path) -> None:
    none = [{"type": name, "coefficient": 0.0} for name in ("kl", "l2", "ewc")]
    assert equal(after(sequence(*none), tmp_path / "zero"), after(sequence(), tmp_path / "without"))


ALL = (
    {"type": "kl", "to": "stage", "coefficient": 0.1},
    {"type": "l2", "coefficient": 0.3},
    {"type": "ewc", "coefficient": 100.0, "samples": 4},
)


@pytest.mark.parametrize(
    ("slow", "cut"),
    [
        (KEEP, {"micro_batch": 4}),
        (KEEP, {"token_budget": 200}),
        ({**DISTILL, "max_grad_norm": 1e9}, {"micro_batch": 4}),
    ],
    ids=["micro_batch", "token_budget", "distill"],
)
def test_however_a_step_is_cut_the_penalties_count_once(
    tmp_path: Path, slow: dict[str, Any], cut: dict[str, Any]
) -> None:
    """Also beside another objective, distillation."""
    ours, mine = held_step(holding({**slow, **cut}), tmp_path / "cut")
    whole, theirs = held_step(holding(slow), tmp_path / "whole")
    assert apart(ours, whole) < 1e-4
    for name in ("slow/retention_l2", "slow/retention_ewc", "slow/loss"):
        assert mine[name] == pytest.approx(theirs[name], rel=1e-4)
    assert mine["slow/retention_l2"] > 0 and mine["slow/retention_ewc"] > 0
    assert mine["slow/retention_kl"] == pytest.approx(theirs["slow/retention_kl"], rel=0.1)
    free, _ = held_step(holding(slow, held=False), tmp_path / "free")
    assert apart(free, whole) > 0.1


def holding(slow: dict[str, Any], held: bool = True) -> RunConfig:
    fast = {"type": "gepa", "metric_calls": 0}
    return sequence(*(ALL if held else ()), fast=fast, slow={"type": "cispo", **slow})


def held_step(config: RunConfig, folder: Path) -> tuple[Weights, dict[str, float]]:
    """Gradient and metrics of a first step whose anchor is put a little off the weights."""
    gradient: Weights = {}
    with Session(config, folder) as session:
        session.population = Population((Context("Be brief."), Context("Use dashes.")))
        retention = session.slow.retention  # type: ignore[union-attr]
        begin = retention.begin

        def moved(trainer: Any, step: int) -> None:
            begin(trainer, step)
            retention.anchor = {name: 1.02 * value for name, value in retention.anchor.items()}
            if retention.penalties:
                retention.penalties[-1].fisher = {
                    name: torch.full_like(value, 1e-3) for name, value in retention.anchor.items()
                }

        def keep(*_: Any, model: Any, **__: Any) -> None:
            gradient.update({n: p.grad.clone() for n, p in model.named_parameters()})

        retention.begin = moved
        session.slow.handover.on_pre_optimizer_step = keep  # type: ignore[union-attr]
        report = session.slow.step(session.population, session.problems.between(0, 1))  # type: ignore[union-attr]
    return gradient, dict(report.metrics)


# --- checkpoints ---------------------------------------------------------------------------------


class Killed(RuntimeError):
    pass


@pytest.mark.parametrize("step", [1, 2, 3])
def test_killed_and_resumed_equals_undisturbed(tmp_path: Path, step: int) -> None:
    """In the middle of a stage and at its end; the anchor and the Fisher information come back."""
    config = sequence(*ALL, loop={"cycle_steps": 1}, checkpoint={"keep": 9})
    with Session(config, tmp_path / "straight") as session:
        interleave(session)
        straight = copied(session.policy.model)  # type: ignore[union-attr]
    with Session(config, tmp_path / "killed") as session:
        take = session.slow.step  # type: ignore[union-attr]

        def dying(*given: Any) -> Any:
            report = take(*given)
            if report.step > step:
                raise Killed
            return report

        session.slow.step = dying  # type: ignore[method-assign, union-attr]
        with pytest.raises(Killed):
            interleave(session)
    with Session(config, tmp_path / "killed") as session:
        assert session.step_done == step
        interleave(session)
        assert equal(copied(session.policy.model), straight)  # type: ignore[union-attr]
    last = [
        list_checkpoints(tmp_path / name / "checkpoints")[-1] for name in ("straight", "killed")
    ]
    ours, theirs = (load_file(folder / "slow" / FILE) for folder in last)
    assert equal(ours, theirs)
    assert {name.split(".")[0] for name in ours} == {"anchor", "ewc"}


def test_a_checkpoint_shares_the_file_and_misses_it(tmp_path: Path) -> None:
    """Hard-linked after a fast phase like the weights; a lost one is told, not passed over."""
    config = sequence(*ALL, fast={"type": "gepa", "metric_calls": 8}, checkpoint={"keep": 9})
    folder = tmp_path / "run"
    with Session(config, folder) as session:
        interleave(session)
    files = [c / "slow" / FILE for c in list_checkpoints(folder / "checkpoints")]
    shared = [file.stat().st_ino for file in files if file.exists()]
    assert len(set(shared)) < len(shared)
    files[-1].unlink()
    with pytest.raises(CheckpointError, match=FILE), Session(config, folder):
        pass


def test_a_run_without_penalties_writes_no_file(tmp_path: Path) -> None:
    config = tiny_config(fast={"type": "none"}, retention=[{"type": "kl"}])
    with Session(config, tmp_path / "run") as session:
        interleave(session)
    assert not list((tmp_path / "run").rglob(FILE)), "KL to the base model needs no state"


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"retention": [{"type": "l2"}]}, r"needs environment.type = \"sequence\""),
        ({"retention": [{"type": "ewc"}]}, r"needs environment.type = \"sequence\""),
        ({"retention": [{"type": "kl", "to": "stage"}]}, r"to = \"base\""),
        ({"retention": [{"type": "kl"}], "slow": {"type": "none"}}, "adds to a gradient"),
        ({"retention": [{"type": "kl"}, {"type": "kl"}]}, "is there twice"),
        (
            {"retention": [{"type": "kl"}], "slow": {"type": "sft", "micro_batch": 16}},
            'take "l2" or "ewc"',
        ),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(tables: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        tiny_config(**tables)


def test_sharded_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = sequence({"type": "l2"})
    tools = SlowTools(config, LanguageModelPolicy(config.policy), None)  # type: ignore[arg-type]
    monkeypatch.setattr("fst_core.slow.retention_loss.sharded", lambda: True)
    with pytest.raises(ValueError, match="launch with DDP"):
        Retention(tools)
