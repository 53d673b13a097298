"""The passes of a slow step: pieces, retries with less memory, and the engine's log-probabilities.

However a step is cut, its gradient and its metrics are those of the whole.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from fst_core.checkpoint import list_checkpoints
from fst_core.failures import sentence_for
from fst_core.interleave import interleave
from fst_core.policy.base import Sampling
from fst_core.policy.memory import Halving, MemoryFull
from fst_core.records import Context, Population
from fst_core.session import Session
from fst_core.slow.chunks import by_rows, by_tokens, cut_by_tokens, filler, padded_tokens
from fst_core.slow.grpo import ContextGRPOTrainer
from fst_core.slow.mismatch import Mismatch
from tests.runs import tiny_config

SHORT = Context("Be brief.")
LONG = Context("You are a helpful assistant.\nPut dashes between the characters.\nBe brief.")
IN_PASSES = ("slow/kl", "slow/entropy", "slow/clip_frac", "slow/loss", "slow/mismatch_max")


class Step:
    """One slow step of 32 rollouts: its gradient, metrics and passes."""

    def __init__(
        self,
        folder: Path,
        sabotage: Callable[[ContextGRPOTrainer], None] = lambda trainer: None,
        **slow: Any,
    ):
        config = tiny_config(
            fast={"type": "gepa", "metric_calls": 0},
            loop={"problems_per_step": 4, "group_size": 8},
            slow={"zero_variance": "keep", "beta": 0.05, "tau": 2.0, **slow},
        )
        self.gradient: dict[str, torch.Tensor] = {}
        self.batches: list[dict[str, Any]] = []
        with Session(config, folder) as session:
            session.population = Population((SHORT, LONG))
            self.trainer = session.slow.trainer  # type: ignore[union-attr]
            session.slow.handover.on_pre_optimizer_step = self._keep  # type: ignore[union-attr]
            self.watch(self.trainer)
            sabotage(self.trainer)
            problems = session.problems.between(0, 1)
            step = session.slow.step(session.population, problems)  # type: ignore[union-attr]
            self.metrics = step.metrics
            self.weights = {
                n: p.detach().clone() for n, p in session.policy.model.named_parameters()
            }

    def _keep(self, *_: Any, model: Any, **__: Any) -> None:
        self.gradient = {n: p.grad.clone() for n, p in model.named_parameters()}

    def watch(self, trainer: ContextGRPOTrainer) -> None:
        compute = trainer._compute_loss

        def computed(model: Any, inputs: Any) -> Any:
            self.batches.append(inputs)
            return compute(model, inputs)

        trainer._compute_loss = computed

    def assert_same(self, other: "Step") -> None:
        for name, ours in self.gradient.items():
            torch.testing.assert_close(ours, other.gradient[name], rtol=1e-4, atol=1e-6)
        for name in IN_PASSES:
            assert self.metrics[name] == pytest.approx(other.metrics[name], rel=1e-4, abs=1e-6)
        assert self.metrics["slow/entropy"] > 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Step:
    """The step in one pass over all rows."""
    return Step(tmp_path_factory.mktemp("whole") / "run")


# --- token budget --------------------------------------------------------------------------------


def test_a_token_budget_gives_the_gradient_and_the_metrics_of_the_whole(
    tmp_path: Path, whole: Step
) -> None:
    budget = 200
    step = Step(tmp_path / "run", token_budget=budget)
    assert len(step.batches) > 3
    assert all(padded_tokens(b) <= budget or len(b["advantages"]) == 1 for b in step.batches)
    assert sum(len(b["advantages"]) for b in step.batches) == 32
    assert sum(map(padded_tokens, step.batches)) < sum(map(padded_tokens, whole.batches))
    step.assert_same(whole)
    assert step.metrics["slow/mismatch_mean"] == pytest.approx(
        whole.metrics["slow/mismatch_mean"], rel=0.5
    )


def test_a_budget_below_one_row_makes_a_pass_a_row(tmp_path: Path, whole: Step) -> None:
    step = Step(tmp_path / "run", token_budget=1)
    assert [len(b["advantages"]) for b in step.batches] == [1] * 32
    step.assert_same(whole)


def test_a_process_with_fewer_pieces_adds_passes_that_change_nothing(
    tmp_path: Path, whole: Step
) -> None:
    """As beside a process that needs nine passes: filler keeps the shared metrics in step."""

    def beside_another(trainer: ContextGRPOTrainer) -> None:
        gather = trainer.accelerator.gather

        def gathered(tensor: torch.Tensor) -> torch.Tensor:
            counts = tensor.shape == (1,) and tensor.dtype == torch.long
            return torch.tensor([9, *tensor.tolist()]) if counts else gather(tensor)

        trainer.accelerator.gather = gathered

    step = Step(tmp_path / "run", beside_another, token_budget=400)
    tokens = [int(b["completion_mask"].sum()) for b in step.batches]
    assert len(tokens) == 9 and tokens[-1] == 0 and min(tokens[:3]) > 0
    assert padded_tokens(step.batches[-1]) <= 40
    step.assert_same(whole)


def test_no_gradient_is_shared_before_the_last_piece(tmp_path: Path) -> None:
    apart: list[int] = []

    def watched(trainer: ContextGRPOTrainer) -> None:
        no_sync = trainer.accelerator.no_sync

        def counted(model: Any) -> Any:
            apart.append(1)
            return no_sync(model)

        trainer.accelerator.no_sync = counted

    step = Step(tmp_path / "run", watched, token_budget=200)
    assert len(apart) == len(step.batches) - 1


def test_the_reference_s_passes_keep_the_budget_too(tmp_path: Path) -> None:
    sizes: list[int] = []

    def watched(trainer: ContextGRPOTrainer) -> None:
        forward = trainer.ref_model.forward

        def seen(input_ids: torch.Tensor, **options: Any) -> Any:
            sizes.append(input_ids.numel())
            return forward(input_ids=input_ids, **options)

        trainer.ref_model.forward = seen

    Step(tmp_path / "run", watched, token_budget=200)
    assert sizes and max(sizes) <= 200


def test_with_a_budget_micro_batches_need_not_divide_the_batch() -> None:
    with pytest.raises(ValueError, match=r"slow\.micro_batch = 5 does not divide"):
        tiny_config(slow={"micro_batch": 5})
    assert tiny_config(slow={"micro_batch": 5, "token_budget": 64})


def test_rows_are_cut_before_the_padded_tokens_pass_the_budget() -> None:
    prompts, completions = [2, 5, 2, 9], [1, 1, 4, 9]
    assert cut_by_tokens([0, 2, 1, 3], prompts, completions, 12) == [[0, 2], [1], [3]]
    assert cut_by_tokens([0, 2, 1, 3], prompts, completions, 18) == [[0, 2], [1], [3]]
    assert cut_by_tokens([0, 2, 1, 3], prompts, completions, 27) == [[0, 2, 1], [3]]
    assert cut_by_tokens([], [], [], 12) == []


def batch_of(prompts: list[int], completions: list[int]) -> dict[str, Any]:
    """A batch of rows of these lengths, padded as TRL pads."""
    width, length = max(prompts), max(completions)
    return {
        "prompt_ids": torch.arange(len(prompts))[:, None].repeat(1, width),
        "prompt_mask": torch.tensor([[0] * (width - n) + [1] * n for n in prompts]),
        "completion_ids": torch.arange(len(prompts))[:, None].repeat(1, length),
        "completion_mask": torch.tensor([[1] * n + [0] * (length - n) for n in completions]),
        "advantages": torch.arange(len(prompts)),
        "num_items_in_batch": torch.tensor(sum(completions)),
    }


def test_pieces_hold_every_row_once_and_keep_the_token_count() -> None:
    batch = batch_of([2, 5, 2, 9], [1, 1, 4, 9])
    for pieces in (by_tokens(batch, 12), by_rows(batch, 3), by_rows(batch, 1)):
        rows = sorted(int(row) for piece in pieces for row in piece["advantages"])
        assert rows == [0, 1, 2, 3]
        assert all(piece["num_items_in_batch"] == 15 for piece in pieces)
        assert sum(int(piece["completion_mask"].sum()) for piece in pieces) == 15
    assert by_rows(batch, 4)[0] is batch
    empty = filler(batch)
    assert padded_tokens(empty) == 4 and empty["completion_mask"].sum() == 0


# --- memory --------------------------------------------------------------------------------------


def out_of_memory_at(*numbers: int) -> Callable[[ContextGRPOTrainer], None]:
    """A sabotage: backward passes of these numbers (from 1) run, then memory is full."""

    def sabotage(trainer: ContextGRPOTrainer) -> None:
        backward, count = trainer.accelerator.backward, 0

        def counted(loss: torch.Tensor, **options: Any) -> None:
            nonlocal count
            backward(loss, **options)
            count += 1
            if count in numbers:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

        trainer.accelerator.backward = counted

    return sabotage


@pytest.mark.parametrize(
    ("slow", "at", "passes"),
    [
        ({}, 1, 1 + 2),  # all rows at once, then in halves
        ({"token_budget": 400}, 2, None),
        ({"micro_batch": 8}, 1, 1 + 2 * 4),
        # The third of four micro-batches, Trainer's own backward after each: all anew, in halves.
        ({"micro_batch": 8}, 5, 3 + 2 * 4),
    ],
    ids=str,
)
def test_a_step_that_runs_out_of_memory_once_has_the_same_gradient(
    tmp_path: Path,
    whole: Step,
    caplog: pytest.LogCaptureFixture,
    slow: dict[str, Any],
    at: int,
    passes: int | None,
) -> None:
    undisturbed = Step(tmp_path / "undisturbed", **slow)
    with caplog.at_level(logging.WARNING):
        step = Step(tmp_path / "run", out_of_memory_at(at), **slow)
    knob, value = next(iter(slow.items()), ("micro_batch", 32))
    assert f"out of memory: going on with slow.{knob} = {value // 2}" in caplog.text
    assert passes is None or len(step.batches) == passes
    step.assert_same(undisturbed)
    for name, ours in step.gradient.items():
        torch.testing.assert_close(ours, whole.gradient[name], rtol=1e-4, atol=1e-6)


def test_a_second_time_ends_the_run_with_the_knob_and_an_intact_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(fast={"type": "none"}, slow={"micro_batch": 16, "zero_variance": "keep"})
    folder = tmp_path / "run"
    with Session(config, folder) as session:
        # Two steps of one pass (and TRL's backward of nothing) each, then two failures.
        out_of_memory_at(5, 6)(session.slow.trainer)  # type: ignore[union-attr]
        with pytest.raises(MemoryFull, match=r"with slow\.micro_batch = 8; lower") as caught:
            interleave(session)
    assert sentence_for(caught.value) == str(caught.value)
    assert len(list_checkpoints(folder / "checkpoints")) > 0
    with Session(config, folder) as session:
        assert session.step_done == 2
        interleave(session)
        assert session.step_done == 4


def test_the_engine_halves_its_batch_and_draws_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(tiny_config(fast={"type": "none"}), tmp_path / "run") as session:
        policy, engine = session.policy, session.policy.engine
        rows = [policy.prompt_ids([{"role": "user", "content": f"Say {w}."}]) for w in "abcdefgh"]
        expected = policy.generate(rows, range(8))
        draw, sizes, full = engine._draw_batch, [], 4  # type: ignore[attr-defined]

        def tight(prompts: Any, seeds: Any, sampling: Sampling) -> Any:
            sizes.append(len(prompts))
            if len(prompts) > full:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return draw(prompts, seeds, sampling)

        engine._draw_batch, engine.batch_size = tight, 8  # type: ignore[attr-defined]
        drawn = policy.generate(rows, range(8))
        assert [c.token_ids for c in drawn] == [c.token_ids for c in expected]
        assert sizes == [8, 4, 4] and engine.rollouts == 16
        assert "policy.batch_size = 4" in caplog.text
        full = 2
        with pytest.raises(MemoryFull, match=r"with policy\.batch_size = 4; lower policy"):
            policy.generate(rows, range(8))


def test_a_size_of_one_or_a_call_that_others_wait_in_is_not_tried_again() -> None:
    def full(size: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(MemoryFull, match="knob = 1"):
        Halving("knob").run(full, 1)
    with pytest.raises(MemoryFull, match="knob = 8"):
        Halving("knob", may_retry=False).run(full, 8)


def test_no_tensor_of_all_logits_is_kept_for_the_backward_pass(tmp_path: Path) -> None:
    """TRL's fused LM head works through tiles of the logits; a change of that would show here."""
    largest = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        made = tensor.untyped_storage().data_ptr() not in weights
        largest = max(largest, tensor.numel() if made and tensor.shape[-1:] == (vocabulary,) else 0)
        return tensor

    def watched(trainer: ContextGRPOTrainer) -> None:
        nonlocal vocabulary
        vocabulary = trainer.model.config.vocab_size
        weights.update(p.untyped_storage().data_ptr() for p in trainer.model.parameters())
        run = trainer._pass

        def hooked(model: Any, piece: Any) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return run(model, piece)

        trainer._pass = hooked  # type: ignore[method-assign]

    vocabulary, weights = 0, set[int]()
    step = Step(tmp_path / "run", watched)
    rows, tokens = step.batches[0]["completion_ids"].shape
    assert vocabulary and largest < rows * tokens * vocabulary / 4


# --- the engine's log-probabilities --------------------------------------------------------------


def test_mismatch_by_hand() -> None:
    mismatch = Mismatch()
    trainer = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, -9.0, 0.0]])
    engine = torch.tensor([[-1.1, -1.8, 0.0], [-0.5, -3.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    for row in range(2):
        mismatch.add(trainer[row : row + 1], engine[row : row + 1], mask[row : row + 1])
    found = mismatch.take(Accelerator(cpu=True))
    assert found["slow/mismatch_mean"] == pytest.approx(0.1)
    assert found["slow/mismatch_max"] == pytest.approx(0.2)
    expected = (torch.tensor([0.1, -0.2, 0.0]).expm1() - torch.tensor([0.1, -0.2, 0.0])).mean()
    assert found["slow/mismatch_kl"] == pytest.approx(expected.item(), rel=1e-4)
    assert mismatch.take(Accelerator(cpu=True)) == {}


def test_one_engine_with_the_trainer_s_weights_does_not_differ(whole: Step) -> None:
    assert 0 < whole.metrics["slow/mismatch_max"] < 1e-4
    assert 0 < whole.metrics["slow/mismatch_mean"] <= whole.metrics["slow/mismatch_max"]
    assert 0 <= whole.metrics["slow/mismatch_kl"] < 1e-8


def test_there_correcting_is_measuring(tmp_path: Path, whole: Step) -> None:
    step = Step(tmp_path / "run", mismatch="correct")
    step.assert_same(whole)
    assert step.metrics["slow/clip_frac"] == 0
    assert not any("old_per_token_logps" in b for b in whole.batches)
    assert all("old_per_token_logps" in b for b in step.batches)


@pytest.mark.parametrize("choice", ["measure", "correct"])
def test_the_loss_by_hand_with_an_engine_that_is_off(tmp_path: Path, choice: str) -> None:
    """Engine log-probs moved by hand, some beyond tau = 2: -sg(min(rho, tau)) A log pi."""
    seen: dict[str, Any] = {}

    def off(trainer: ContextGRPOTrainer) -> None:
        run = trainer._pass

        def moved(model: Any, piece: Any) -> Any:
            engine = piece["sampling_per_token_logps"]
            shift = torch.linspace(-1.5, 1.5, engine.numel()).view_as(engine)
            loss = run(model, {**piece, "sampling_per_token_logps": engine - shift})
            seen.update(piece=piece, shift=shift, loss=loss, logp=trainer.logp_BT)
            return loss

        trainer._pass = moved  # type: ignore[method-assign]

    step = Step(tmp_path / "run", off, mismatch=choice, beta=0.0)
    mask, advantage = seen["piece"]["completion_mask"], seen["piece"]["advantages"][:, None]
    rho = (seen["logp"] - seen["piece"]["sampling_per_token_logps"] + seen["shift"]).exp()
    assert (rho > 2)[mask.bool()].any() and (rho < 0.5)[mask.bool()].any()
    weight = rho.clamp(max=2.0) if choice == "correct" else torch.ones_like(rho)
    expected = (-weight * advantage * seen["logp"] * mask).sum() / mask.sum()
    assert seen["loss"].item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    clipped = ((rho > 2) & (advantage > 0) & mask.bool()).sum() / mask.sum()
    expected_share = clipped.item() if choice == "correct" else 0.0
    assert step.metrics["slow/clip_frac"] == pytest.approx(expected_share, abs=1e-6)
    moved = seen["shift"].abs()[mask.bool()]
    assert step.metrics["slow/mismatch_mean"] == pytest.approx(moved.mean().item(), rel=1e-3)
    assert step.metrics["slow/mismatch_max"] == pytest.approx(moved.max().item(), rel=1e-3)
