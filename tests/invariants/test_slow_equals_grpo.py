"""With no fast part, a run IS plain TRL GRPO: same weights to the last bit on one CPU thread.

The reference is a GRPOTrainer with the seed context baked into its dataset, the same GRPOConfig,
a callback that sets the same seeds, and nothing overridden but its generation call, pointed at
the same engine.
"""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from fst_core.config import RunConfig
from fst_core.environments.registry import make_environment
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.policy.prefix import behind_prefixes
from fst_core.randomness import set_seeds
from fst_core.records import seed_of
from fst_core.slow.group import grpo_config
from tests.runs import run, tiny_config


class PlainTrainer(GRPOTrainer):
    """GRPOTrainer whose generation call asks the lab's engine."""

    policy: LanguageModelPolicy
    run_seed: int

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        step = self.state.global_step
        seeds = [seed_of(self.run_seed, "slow", step, i) for i in range(len(prompt_ids))]
        done = self.policy.generate(prompt_ids, seeds)
        return [list(c.token_ids) for c in done], None


class SameSeeds(TrainerCallback):
    def __init__(self, run_seed: int):
        self.run_seed = run_seed

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        set_seeds(self.run_seed, "slow", state.global_step)


def plain_args(config: RunConfig, policy: LanguageModelPolicy, folder: Path) -> GRPOConfig:
    """The lab's arguments for TRL."""
    return grpo_config(config.slow, config.loop, policy, str(folder))  # type: ignore[arg-type]


def plain_grpo(
    config: RunConfig, folder: Path, trainer_class: Any = PlainTrainer, args_of: Any = plain_args
) -> dict[str, torch.Tensor]:
    """Weights after plain GRPO with the seed context in every prompt."""
    torch.set_num_threads(1)
    environment = make_environment(config.environment)
    policy = LanguageModelPolicy(config.policy)
    rows = config.loop.steps * config.loop.problems_per_step
    problems = [environment.problem("train", i) for i in range(rows)]
    system = {"role": "system", "content": config.contexts.seed}
    dataset = Dataset.from_dict(
        {
            "prompt": [[system, *map(dict, p.messages)] for p in problems],
            "position": list(range(rows)),
        }
    )

    def reward(completions: Any, position: Any, **_: Any) -> list[float]:
        texts = [c[0]["content"] for c in completions]
        return [
            environment.judge(problems[p], text).reward
            for p, text in zip(position, texts, strict=True)
        ]

    trainer = trainer_class(
        model=policy.model,
        reward_funcs=reward,
        args=args_of(config, policy, folder),
        train_dataset=dataset,
        processing_class=policy.tokenizer,
        callbacks=[SameSeeds(config.seed)],
    )
    trainer.policy, trainer.run_seed = policy, config.seed
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return {name: value.detach().clone() for name, value in policy.model.state_dict().items()}


def config_of(**slow: Any) -> RunConfig:
    return tiny_config(
        fast={"type": "none"},
        environment={"type": "directives", "task": "echo", "required": []},
        policy={"share_prefixes": False},  # which differs by rounding
        slow={"zero_variance": "keep", **slow},
    )


def lab_weights(config: RunConfig, folder: Path) -> dict[str, torch.Tensor]:
    """Weights after the lab's own run."""
    from fst_core.interleave import interleave
    from fst_core.session import Session

    with Session(config, folder) as session:
        interleave(session)
        return {k: v.detach().clone() for k, v in session.policy.model.state_dict().items()}


FAST_LEARNER = {"learning_rate": 1e-3, "warmup_steps": 1, "micro_batch": 8}


@pytest.mark.parametrize(
    "slow",
    [
        {},
        {"beta": 0.05},
        {"micro_batch": 4, "scale_by_std": False},
        {"type": "grpo", **FAST_LEARNER},
        {"type": "dapo", **FAST_LEARNER},
        {"type": "dr_grpo", **FAST_LEARNER},
        {"type": "gspo", **FAST_LEARNER},
    ],
    ids=str,
)
def test_no_fast_part_is_plain_grpo_bit_for_bit(tmp_path: Path, slow: dict[str, Any]) -> None:
    config = config_of(**slow)
    ours = lab_weights(config, tmp_path / "lab")
    theirs = plain_grpo(config, tmp_path / "plain")
    start = LanguageModelPolicy(config.policy).model.state_dict()
    assert any(not torch.equal(start[name], theirs[name]) for name in start), "nothing was learned"
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_prefixes_read_once_change_a_step_by_rounding_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[bool] = []

    def watched(*given: Any) -> Any:
        found = behind_prefixes(*given)
        reads.append(found is not None)
        return found

    monkeypatch.setattr("fst_core.slow.grpo.behind_prefixes", watched)
    steps = []
    for share in (True, False):
        config = tiny_config(
            policy={"share_prefixes": share},
            contexts={"seed": "Answer the user. Say what you are asked to say, and no more."},
            loop={"steps": 1, "cycle_steps": 1},
        )
        events = run(config, tmp_path / str(share))
        steps.append(next(e["metrics"] for e in events if e["kind"] == "slow"))
    assert reads == [True]
    assert steps[0]["slow/grad_norm"] > 0
    assert steps[0] == pytest.approx(steps[1], rel=1e-4, abs=1e-6)


class PlainRloo(RLOOTrainer):
    """RLOOTrainer whose generation call asks the lab's engine."""

    policy: LanguageModelPolicy
    run_seed: int

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        return PlainTrainer._generate_single_turn(self, prompt_ids)[0]  # type: ignore[arg-type]


def rloo_config(config: RunConfig, policy: LanguageModelPolicy, folder: Path) -> RLOOConfig:
    """What GRPO's arguments of a run say, as far as RLOO's trainer has them."""
    args = plain_args(config, policy, folder)
    shared = {f.name for f in fields(args) if f.init} & {f.name for f in fields(RLOOConfig)}
    given = {name: getattr(args, name) for name in shared - {"generation_batch_size"}}
    return RLOOConfig(**given)


def test_rloo_is_trl_s_own_up_to_rounding(tmp_path: Path) -> None:
    """TRL's RLOOTrainer sums log-probabilities before it multiplies by the advantage."""
    config = config_of(type="rloo", **FAST_LEARNER)
    ours = lab_weights(config, tmp_path / "lab")
    theirs = plain_grpo(config, tmp_path / "plain", PlainRloo, rloo_config)
    start = LanguageModelPolicy(config.policy).model.state_dict()
    moved = torch.cat([(theirs[name] - start[name]).flatten() for name in start])
    apart = torch.cat([(theirs[name] - ours[name]).flatten() for name in start])
    assert moved.abs().max() > 1e-3
    assert apart.norm() < 1e-2 * moved.norm()


def test_overridden_methods_keep_their_signatures() -> None:
    """TRL 1.16's signatures; when one changes, fst_core/slow/grpo.py must be read again."""
    rewards = inspect.signature(GRPOTrainer._calculate_rewards)
    assert list(rewards.parameters) == [
        "self",
        "inputs",
        "prompts",
        "completions",
        "completion_ids_list",
    ]
    scored = inspect.signature(GRPOTrainer._generate_and_score_completions)
    assert list(scored.parameters) == ["self", "inputs"]
    read = inspect.signature(GRPOTrainer._tokenize_prompts)
    assert list(read.parameters) == ["self", "prompts"]
    turn = inspect.signature(GRPOTrainer._generate_single_turn)
    assert list(turn.parameters) == [
        "self",
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ]
    loss = inspect.signature(GRPOTrainer.compute_loss)
    assert list(loss.parameters) == [
        "self",
        "model",
        "inputs",
        "return_outputs",
        "num_items_in_batch",
    ]
    logps = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies)
    assert list(logps.parameters)[:7] == [
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ]


def test_evaluation_does_not_touch_training(tmp_path: Path) -> None:
    def final(every: int, samples: int) -> dict[str, Any]:
        config = tiny_config(evaluation={"every": every, "problems": 3, "samples": samples})
        folder = tmp_path / f"every{every}"
        run(config, folder)
        from safetensors.torch import load_file

        last = sorted((folder / "checkpoints").iterdir())[-1]
        return load_file(last / "slow" / "model.safetensors")

    with_evaluation, without = final(1, 2), final(0, 1)
    assert all(torch.equal(with_evaluation[name], without[name]) for name in without)
