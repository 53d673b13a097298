"""Distillation of contexts into weights: its divergence by hand, and as TRL's SDFT has it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from pydantic import ValidationError
from trl.experimental.sdft import SDFTConfig, SDFTTrainer

from fst_core.config import RunConfig
from fst_core.interleave import interleave
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.transformers_engine import left_pad
from fst_core.records import Context, Population
from fst_core.session import Session
from fst_core.slow import distill_trainer
from fst_core.slow.distill_trainer import DistillTrainer, compare
from tests.runs import tiny_config

Weights = dict[str, torch.Tensor]
SHORT = Context("Be brief.")
LONG = Context("You are a helpful assistant.\nPut dashes between the characters.\nBe brief.")
SETTINGS = {
    "type": "distill",
    "teacher": "live",
    "micro_batch": 16,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "max_grad_norm": 1e9,
}


def distilling(**slow: Any) -> RunConfig:
    return tiny_config(fast={"type": "gepa", "metric_calls": 0}, slow={**SETTINGS, **slow})


def copied(model: torch.nn.Module) -> Weights:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


class Step:
    """One step towards two contexts: its whole batch, gradient, metrics and rollouts."""

    def __init__(self, folder: Path, **slow: Any):
        config = distilling(**slow)
        self.gradient: Weights = {}
        self.passes: list[dict[str, Any]] = []
        with Session(config, folder) as session:
            part = session.slow
            self.seed = Context(config.contexts.seed)
            self.trainer: DistillTrainer = part.trainer  # type: ignore[union-attr]
            self.watch()
            part.handover.on_pre_optimizer_step = self.keep  # type: ignore[union-attr]
            self.problems = session.problems.between(0, 1)
            self.report = part.step(Population((SHORT, LONG)), self.problems)  # type: ignore[union-attr]
            self.policy: Any = session.policy
        self.metrics = self.report.metrics

    def watch(self) -> None:
        compute = self.trainer.piece_loss

        def computed(model: Any, piece: Any) -> Any:
            self.passes.append(piece)
            return compute(model, piece)

        self.trainer.piece_loss = computed  # type: ignore[method-assign]

    def keep(self, *_: Any, model: Any, **__: Any) -> None:
        self.gradient = {n: p.grad.clone() for n, p in model.named_parameters()}

    def assert_same_gradient(self, other: Weights) -> None:
        for name, gradient in self.gradient.items():
            torch.testing.assert_close(gradient, other[name], rtol=1e-3, atol=2e-6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Step:
    """All rows in one pass."""
    return Step(tmp_path_factory.mktemp("whole") / "run")


# --- the divergence ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1 << 24, 1])
def test_the_divergence_by_hand(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """p = (1/2, 1/2), q = (1/4, 3/4): KL = 1/2 log 2 + 1/2 log 2/3; at temperature 2 by formula."""
    monkeypatch.setattr(distill_trainer, "CHUNK_LOGITS", chunk)
    student = torch.log(torch.tensor([[[0.5, 0.5], [0.9, 0.1]]])).requires_grad_()
    teacher = torch.log(torch.tensor([[[0.25, 0.75], [0.9, 0.1]]]))
    kl, logp, entropy = compare(student, teacher, torch.tensor([[1, 0]]), 1.0)
    torch.testing.assert_close(kl, torch.tensor([[0.14384104, 0.0]]))
    torch.testing.assert_close(logp, torch.tensor([[-0.69314718, -0.10536052]]))
    torch.testing.assert_close(entropy, torch.tensor([[0.69314718, 0.32508297]]))
    # d KL / d logit_v = p_v (log p_v - log q_v - KL)
    (gradient,) = torch.autograd.grad(kl.sum(), student)
    slope = 0.5 * (0.69314718 - 0.14384104)
    torch.testing.assert_close(gradient, torch.tensor([[[slope, -slope], [0.0, 0.0]]]))
    cooler, *_ = compare(student, teacher, torch.tensor([[1, 0]]), 2.0)
    p, q = (x.detach()[0, 0].div(2).log_softmax(-1) for x in (student, teacher))
    assert cooler[0, 0].item() == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-5)


def test_one_step_is_trl_s_sdft(tmp_path: Path, whole: Step) -> None:
    """SDFTTrainer, full logits and alpha 1, on the same rows: same loss, same gradient."""
    (piece,) = whole.passes
    policy = LanguageModelPolicy(distilling().policy)
    sdft = SDFTTrainer(
        model=policy.model,
        args=SDFTConfig(
            output_dir=str(tmp_path / "sdft"),
            distillation_mode="full_logits",
            distillation_alpha=1.0,
            teacher_model_kind="live",
            per_device_train_batch_size=16,
            num_generations=4,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
        ),
        train_dataset=Dataset.from_dict({"prompt": ["q"] * 16, "privileged_context": ["c"] * 16}),
        processing_class=policy.tokenizer,
    )
    sdft.current_gradient_accumulation_steps = 1
    policy.model.train()
    inputs = {**piece, **teacher_inputs(whole, piece, policy)}
    loss = sdft.compute_loss(policy.model, inputs)
    loss.backward()
    assert loss.item() > 0.01
    assert whole.metrics["slow/loss"] == pytest.approx(loss.item(), rel=1e-4)
    gradient = {n: p.grad for n, p in policy.model.named_parameters() if p.grad is not None}
    whole.assert_same_gradient(gradient)
    logged = sdft._metrics["train"]["self_distillation/distillation_loss"]
    assert whole.metrics["slow/teacher_kl"] == pytest.approx(logged[-1], rel=1e-4)


def teacher_inputs(step: Step, piece: dict[str, Any], policy: Any) -> dict[str, torch.Tensor]:
    """The teacher's prompts built anew: half of each group under each context."""
    prompts = []
    for row in piece["row"].tolist():
        context = SHORT if row % 4 < 2 else LONG
        problem = step.problems[row // 4]
        chat = [{"role": "system", "content": context.text}, *map(dict, problem.messages)]
        prompts.append(policy.prompt_ids(chat))
    ids, mask = left_pad(prompts, policy.tokenizer.pad_token_id, piece["prompt_ids"].device)
    return {
        "teacher_input_ids": torch.cat([ids, piece["completion_ids"]], 1),
        "teacher_attention_mask": torch.cat([mask, piece["completion_mask"]], 1),
    }


@pytest.mark.parametrize("slow", [{"micro_batch": 4}, {"token_budget": 100}], ids=str)
def test_however_a_step_is_cut(tmp_path: Path, whole: Step, slow: dict[str, Any]) -> None:
    step = Step(tmp_path / "run", **slow)
    assert len(step.passes) > 2
    assert sum(len(piece["row"]) for piece in step.passes) == 16
    step.assert_same_gradient(whole.gradient)
    assert step.metrics["slow/loss"] == pytest.approx(whole.metrics["slow/loss"], rel=1e-4)


def test_a_pass_holds_no_more_logits_than_it_may(
    tmp_path: Path, whole: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = whole.passes[0]["completion_ids"].shape[1]
    vocabulary = whole.policy.model.config.vocab_size
    monkeypatch.setattr(distill_trainer, "PASS_LOGITS", 3 * width * vocabulary)
    step = Step(tmp_path / "run")
    assert [len(piece["row"]) for piece in step.passes] == [3, 3, 3, 3, 3, 1]
    step.assert_same_gradient(whole.gradient)


def test_a_policy_gradient_beside_it_by_hand(tmp_path: Path, whole: Step) -> None:
    """loss = KL - w sum A log pi / tokens; the advantages are put in by hand."""
    step = Step(tmp_path / "run", rl_weight=0.5)
    (piece,) = step.passes
    trainer = step.trainer
    piece["advantages"] = torch.linspace(-1, 1, 16)
    loss = trainer.piece_loss(step.policy.model, piece)
    logp, mask = trainer.logp_BT, piece["completion_mask"]
    gain = (piece["advantages"][:, None] * logp * mask).sum() / mask.sum()
    trainer.settings = trainer.settings.model_copy(update={"rl_weight": 0.0})
    alone = trainer.piece_loss(step.policy.model, piece)
    assert abs(gain.item()) > 1e-3
    assert loss.item() == pytest.approx(alone.item() - 0.5 * gain.item(), rel=1e-4)


# --- who reads what ------------------------------------------------------------------------------


def test_the_student_draws_and_is_judged_under_its_own_context(whole: Step) -> None:
    assert {r.context_id for r in whole.report.rollouts} == {whole.seed.id}
    assert len(whole.report.rollouts) == 16
    mean = sum(r.verdict.reward for r in whole.report.rollouts) / 16
    assert whole.metrics["slow/reward"] == pytest.approx(mean)
    (piece,) = whole.passes
    prompt = whole.policy.tokenizer.decode(piece["prompt_ids"][0])
    assert whole.seed.text in prompt and SHORT.text not in prompt


def test_a_student_may_read_no_system_message(tmp_path: Path) -> None:
    step = Step(tmp_path / "run", student="none")
    assert {r.context_id for r in step.report.rollouts} == {Context("").id}
    (piece,) = step.passes
    prompts = step.policy.tokenizer.batch_decode(piece["prompt_ids"])
    assert not any(step.seed.text in prompt for prompt in prompts)


def test_a_teacher_from_the_start_stays_as_it_was(tmp_path: Path) -> None:
    config = distilling(teacher="start")
    with Session(config, tmp_path / "run") as session:
        before = copied(session.policy.model)  # type: ignore[union-attr]
        session.population = Population((SHORT, LONG))
        session.step()
        session.step()
        teacher = session.slow.trainer.teacher  # type: ignore[union-attr]
        after = copied(session.policy.model)  # type: ignore[union-attr]
        assert all(torch.equal(teacher.state_dict()[n], v) for n, v in before.items())
        assert any(not torch.equal(after[n], v) for n, v in before.items())


def folding(**slow: Any) -> RunConfig:
    """What follows a finished run: its weights and its population, no fast part."""
    return tiny_config(
        name="folded",
        arm="fold",
        start_from="test/fst-s0",
        contexts={"start_from": "test/fst-s0"},
        fast={"type": "none"},
        slow={**SETTINGS, **slow},
    )


def test_contexts_of_a_finished_run_are_folded_into_its_weights(tmp_path: Path) -> None:
    """Both teachers begin with that run's weights, not the base model's; both see its contexts."""
    first = tiny_config(fast={"type": "gepa", "metric_calls": 40}, slow={"learning_rate": 1e-2})
    with Session(first, tmp_path / "test" / "fst-s0") as session:
        interleave(session)
        start, population = copied(session.policy.model), session.population  # type: ignore[union-attr]
    losses = {}
    for teacher in ("live", "start"):
        config = folding(teacher=teacher)
        with Session(config, tmp_path / "folded" / teacher) as session:
            trainer = session.slow.trainer  # type: ignore[union-attr]
            if teacher == "start":
                assert all(
                    torch.equal(trainer.teacher.state_dict()[n], v) for n, v in start.items()
                )
            assert session.population.contexts == population.contexts
            report = session.slow.step(session.population, session.problems.between(0, 1))  # type: ignore[union-attr]
            losses[teacher] = report.metrics["slow/loss"]
    assert losses["live"] == pytest.approx(losses["start"], rel=1e-5)


def test_killed_and_resumed_equals_undisturbed(tmp_path: Path) -> None:
    """The teacher from the start is made anew from where the run began."""
    config = distilling(teacher="start", learning_rate=1e-2)
    with Session(config, tmp_path / "straight") as session:
        session.population = Population((SHORT, LONG))
        interleave(session)
        straight = copied(session.policy.model)  # type: ignore[union-attr]
    with Session(config, tmp_path / "killed") as session:
        session.population = Population((SHORT, LONG))
        for _ in range(2):
            session.step()
        session.save()
    with Session(config, tmp_path / "killed") as session:
        assert session.step_done == 2
        while session.step_done < config.loop.steps:
            session.step()
        ours = copied(session.policy.model)  # type: ignore[union-attr]
    assert all(torch.equal(ours[n], v) for n, v in straight.items())


def test_the_student_comes_closer_to_its_teacher(tmp_path: Path) -> None:
    config = tiny_config(
        fast={"type": "gepa", "metric_calls": 0},
        loop={"steps": 12, "cycle_steps": 12, "problems_per_step": 8},
        slow={**SETTINGS, "teacher": "start", "micro_batch": 32},
        evaluation={"every": 0},
    )
    found: list[float] = []
    with Session(config, tmp_path / "run") as session:
        population = Population((LONG, LONG))
        for step in range(12):
            problems = session.problems.between(step, step + 1)
            report = session.slow.step(population, problems)  # type: ignore[union-attr]
            found.append(report.metrics["slow/teacher_kl"])
    assert sum(found[-3:]) < 0.7 * sum(found[:3])


# --- refused -------------------------------------------------------------------------------------


def test_a_run_without_contexts_to_teach_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"no contexts to teach.*set contexts.start_from"):
        tiny_config(fast={"type": "none"}, slow=SETTINGS)
    tiny_config(fast={"type": "none"}, contexts={"start_from": "other/fst-s0"}, slow=SETTINGS)


def test_a_fast_part_that_lives_on_slow_rollouts_is_refused() -> None:
    with pytest.raises(ValidationError, match="choose a fast part with rollouts of its own"):
        tiny_config(fast={"type": "espl"}, slow=SETTINGS)
