"""CISPO and per-problem advantages, recomputed by hand for a group that mixes contexts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fst_core.records import Context, Population, slots_for_group
from fst_core.session import Session
from fst_core.slow.base import TrainingDiverged
from fst_core.slow.chunks import keep_rows
from fst_core.slow.stepped import Stepped
from tests.runs import tiny_config

SHORT = Context("Be brief.")
LONG = Context("You are a helpful assistant.\nPut dashes between the characters.\nBe brief.")


@pytest.fixture
def session(tmp_path: Path) -> Any:
    config = tiny_config(
        fast={"type": "gepa", "metric_calls": 0},
        loop={"steps": 3, "problems_per_step": 8, "group_size": 8},
        slow={"zero_variance": "keep", "micro_batch": 64, "tau": 2.0, "learning_rate": 1e-2},
    )
    with Session(config, tmp_path / "run") as session:
        session.population = Population((SHORT, LONG))
        yield session


def captured(session: Session) -> dict[str, Any]:
    """The scored batch of one step, in row order, and the loss TRL computed on it."""
    trainer = session.slow.trainer  # type: ignore[union-attr]
    seen: dict[str, Any] = {}
    score, loss = trainer._generate_and_score_completions, trainer._compute_loss

    def scored(inputs: Any) -> Any:
        seen["batch"] = score(inputs)
        seen["rewards"] = [r.verdict.reward for r in session.slow.judge.rollouts]  # type: ignore[union-attr]
        seen["contexts"] = [r.context_id for r in session.slow.judge.rollouts]  # type: ignore[union-attr]
        return seen["batch"]

    def computed(model: Any, inputs: Any) -> Any:
        seen["inputs"], seen["loss"] = inputs, loss(model, inputs)
        return seen["loss"]

    trainer._generate_and_score_completions, trainer._compute_loss = scored, computed
    session.step()
    return seen


def test_one_process_trains_on_one_card_however_many_it_sees(session: Session) -> None:
    """Else transformers' Trainer asks for DataParallel, which TRL refuses (seen on two GPUs)."""
    assert session.slow.trainer.args.n_gpu == 1  # type: ignore[union-attr]


def test_a_killed_run_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with Session(tiny_config(), tmp_path / "run") as alive:
        alive.step()
        assert list(scratch.iterdir()) == []


def test_each_group_mixes_contexts_in_equal_blocks(session: Session) -> None:
    seen = captured(session)
    assert seen["contexts"] == ([SHORT.id] * 4 + [LONG.id] * 4) * 8
    lengths = seen["batch"]["prompt_mask"].sum(1).view(8, 8)
    assert (lengths[:, :4] < lengths[:, 4:]).all(), "prompt lengths differ inside a group"


def test_advantage_is_taken_once_per_problem(session: Session) -> None:
    seen = captured(session)
    rewards_PG = torch.tensor(seen["rewards"]).view(8, 8)
    assert rewards_PG.std() > 0
    centred = rewards_PG - rewards_PG.mean(1, keepdim=True)
    expected = centred / (rewards_PG.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(seen["batch"]["advantages"].view(8, 8), expected, atol=1e-6)


def test_cispo_loss_by_hand_with_a_clipped_ratio(session: Session) -> None:
    """Old log-probs moved by hand so that some ratios pass tau = 2: -sg(min(rho, tau)) A log pi."""
    trainer = session.slow.trainer  # type: ignore[union-attr]
    seen = captured(session)
    inputs, model = dict(seen["inputs"]), session.policy.model
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    width, mask = inputs["completion_ids"].shape[1], inputs["completion_mask"]
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
    logp = logits.log_softmax(-1).gather(2, inputs["completion_ids"][..., None]).squeeze(2)
    shift = torch.linspace(-2.0, 2.0, logp.numel()).view_as(logp)
    inputs["old_per_token_logps"] = (logp - shift).detach()
    rho = shift.exp()
    assert (rho > 2).any() and (rho < 0.2).any()
    weight = rho.clamp(max=2.0)
    advantage = inputs["advantages"][:, None]
    by_hand = (-weight * advantage * logp * mask).sum() / mask.sum()
    model.train()
    by_trl = trainer._compute_loss(model, inputs)
    assert by_trl.item() == pytest.approx(by_hand.item(), rel=1e-4)


def test_a_gradient_flows_from_every_contexts_rollouts(session: Session) -> None:
    trainer = session.slow.trainer  # type: ignore[union-attr]
    inputs, model = captured(session)["inputs"], session.policy.model
    lengths = inputs["prompt_mask"].sum(1)
    for rows in (lengths <= lengths.median(), lengths > lengths.median()):
        part = {
            k: v[rows] if isinstance(v, torch.Tensor) and v.ndim else v for k, v in inputs.items()
        }
        model.zero_grad()
        model.train()
        trainer._compute_loss(model, part).backward()
        norm = sum(p.grad.norm() for p in model.parameters() if p.grad is not None)
        assert norm > 0


@pytest.mark.parametrize(("alive", "chunks", "size"), [(5, 1, 5), (5, 2, 6), (0, 2, 2), (8, 4, 8)])
def test_keep_rows_fills_up_to_equal_micro_batches(alive: int, chunks: int, size: int) -> None:
    alive_N = torch.arange(8) < alive
    batch = {
        "row": torch.arange(8),
        "prompt_ids": torch.arange(32).view(8, 4),
        "prompt_mask": torch.tensor([[0, 0, 1, 1]] * 7 + [[0, 1, 1, 1]]),
        "completion_mask": torch.ones(8, 3, dtype=torch.long),
        "num_items_in_batch": torch.tensor(24),
    }
    smaller = keep_rows(batch, alive_N, chunks)
    assert len(smaller["row"]) == size
    assert smaller["completion_mask"].sum() == 3 * alive
    assert smaller["prompt_ids"].shape[1] == (3 if size == 8 else 2), "shared left padding is cut"
    assert set(range(alive)) <= set(smaller["row"].tolist())


def test_dropping_zero_variance_groups_leaves_the_policy_gradient_direction(tmp_path: Path) -> None:
    """Dropped groups carry no advantage: only the token count in the denominator changes."""
    losses = {}
    for choice in ("keep", "drop"):
        config = tiny_config(
            fast={"type": "none"},
            slow={"zero_variance": choice, "micro_batch": 16},
        )
        with Session(config, tmp_path / choice) as session:
            seen = captured(session)
            total = seen["inputs"]["num_items_in_batch"].clamp(min=1)
            losses[choice] = (seen["loss"] * total).item()
            kept = seen["inputs"]["completion_mask"].sum().item()
            assert kept == seen["inputs"]["num_items_in_batch"].item()
    assert losses["drop"] == pytest.approx(losses["keep"], abs=1e-4)


def test_divergence_stops_the_run_with_a_sentence(session: Session) -> None:
    with torch.no_grad():
        next(session.policy.model.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match=r"lower slow\.learning_rate"):
        session.step()


def test_stepped_hands_over_and_raises_here() -> None:
    trace: list[str] = []

    def call() -> None:
        for i in range(2):
            trace.append(f"step {i}")
            stepped.pause()
        raise KeyError("inside")

    stepped = Stepped(call)
    stepped.resume()
    trace.append("outside")
    stepped.resume()
    assert trace == ["step 0", "outside", "step 1"]
    with pytest.raises(KeyError, match="inside"):
        stepped.resume()
    with pytest.raises(RuntimeError, match="already ended"):
        stepped.resume()


def test_closing_unwinds_the_paused_call() -> None:
    trace: list[str] = []

    def call() -> None:
        try:
            stepped.pause()
        finally:
            trace.append("unwound")

    stepped = Stepped(call)
    stepped.resume()
    stepped.close()
    stepped.close()
    assert trace == ["unwound"]


def test_group_slots() -> None:
    assert slots_for_group(8, 4) == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="cannot be split evenly over 3"):
        slots_for_group(8, 3)


def test_a_step_without_a_finite_gradient_is_skipped_counted_and_the_third_stops(
    session: Session,
) -> None:
    """The weights stay bit for bit, the next good step goes on, three bad ones in a row end it."""
    trainer, model = session.slow.trainer, session.policy.model  # type: ignore[union-attr]
    good, poison = trainer._compute_loss, {"on": True}

    def loss(model: Any, inputs: Any) -> Any:
        value = good(model, inputs)
        bad = next(model.parameters()).sum() * 0
        bad.register_hook(lambda grad: grad * float("nan") if poison["on"] else grad)
        return value + bad

    trainer._compute_loss = loss
    reports: list[float] = []
    session.observer = lambda e: reports.append(e.get("metrics", {}).get("slow/skipped", -1.0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    session.step()
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    poison["on"] = False
    session.step()
    assert any(not torch.equal(before[n], v) for n, v in model.state_dict().items())
    assert [r for r in reports if r >= 0] == [1.0, 0.0]
    poison["on"], session.slow.handover.skipped_in_a_row = True, 2  # type: ignore[union-attr]
    with pytest.raises(TrainingDiverged, match="3 steps in a row"):
        session.step()
