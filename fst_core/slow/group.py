"""A slow part over groups of rollouts: one GRPOTrainer.train() call, stepped from outside.

The settings say which loss TRL computes (`GradientSettings.objective`) and where advantages come
from; everything else, from the optimizer to the checkpoint, is the same for all of them. CISPO's
paper averages tokens per prompt first; TRL averages over all tokens of the step, which weighs long
completions more.
"""

import gc
import logging
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig

from fst_core.config import LoopConfig
from fst_core.config.slow import GradientSettings
from fst_core.policy.adapters import save_adapters
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.randomness import set_seeds
from fst_core.records import Population, Problem
from fst_core.slow.base import SlowTools, StepReport, TrainingDiverged
from fst_core.slow.callbacks import Handover, RewardByJudge
from fst_core.slow.grpo import ContextGRPOTrainer
from fst_core.slow.retention_loss import Retention
from fst_core.slow.sharded import ONE_FILE, save_sharded
from fst_core.slow.stepped import Stepped

METRICS = {
    "loss": "slow/loss",
    "reward": "slow/reward",
    "reward_std": "slow/reward_std",
    "frac_reward_zero_std": "slow/zero_variance_frac",
    "kl": "slow/kl",
    "teacher_kl": "slow/teacher_kl",
    "retention_kl": "slow/retention_kl",
    "entropy": "slow/entropy",
    "cispo_clip_ratio": "slow/clip_frac",
    "clip_ratio/region_mean": "slow/clip_frac",
    "grad_norm": "slow/grad_norm",
    "learning_rate": "slow/learning_rate",
    "completions/mean_length": "slow/length_tokens",
    "completions/clipped_ratio": "slow/truncated_frac",
    "accepted_frac": "slow/accepted_frac",
    "given_frac": "slow/given_frac",
}
"""TRL's log keys, and those that slow parts add to them, and the lab's names for them."""

logger = logging.getLogger(__name__)

SKIPS_ALLOWED = 3
"""Steps in a row without a finite gradient after which a run stops."""

TRAINER_STATE = "trainer_state.json"


def grpo_config(
    slow: GradientSettings, loop: LoopConfig, policy: LanguageModelPolicy, folder: str
) -> GRPOConfig:
    """The lab's settings in TRL's terms; what is not named here keeps TRL's default."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    batch = loop.problems_per_step * loop.group_size // processes
    micro = batch if slow.token_budget else min(slow.micro_batch, batch)
    args = GRPOConfig(
        output_dir=folder,
        max_steps=loop.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // micro,
        num_generations=loop.group_size,
        max_completion_length=policy.sampling.max_new_tokens,
        temperature=policy.sampling.temperature,
        **slow.objective(),
        learning_rate=slow.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=slow.warmup_steps,
        weight_decay=0.0,
        max_grad_norm=slow.max_grad_norm,
        gradient_checkpointing=slow.gradient_checkpointing,
        bf16=policy.config.autocast,
        use_cpu=policy.model.device.type == "cpu",
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=policy.model.device.type != "cpu",
        shuffle_dataset=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        # The weights that TRL reads for its reference are those the policy was read from.
        model_init_kwargs={"revision": policy.revision} if policy.revision else None,
        log_level_replica="passive",  # as the environment says, on every rank
        disable_tqdm=True,
    )
    args._n_gpu = 1  # else Trainer wraps the model in DataParallel over all cards that it sees
    return args


class GroupSlow:
    """A gradient learner on groups spread over the population (see `slow.base.SlowPart`)."""

    trainer_class = ContextGRPOTrainer

    def __init__(self, slow: GradientSettings, tools: SlowTools):
        loop, policy = tools.run.loop, tools.policy
        self.policy = policy
        self.run_seed = run_seed = tools.run.seed
        self.judge = RewardByJudge(tools.environment)
        self.handover = Handover(self._before_step)
        rows = loop.steps * loop.problems_per_step
        with tempfile.TemporaryDirectory() as unused:  # the trainer makes it and writes nothing
            self.trainer = self.trainer_class(
                model=policy.trained,
                reward_funcs=self.judge,
                args=grpo_config(slow, loop, policy, unused),
                train_dataset=slots(rows),
                processing_class=policy.tokenizer,
                callbacks=[self.handover],
            )
        self.trainer.remove_callback(PrinterCallback)
        forget_start_of_adapters(self.trainer)
        self.retention = Retention(tools)
        self.trainer.bind(policy, tools.environment, run_seed, slow, self.retention)
        self.judge.trainer = self.trainer
        self.stepped: Stepped | None = None

    def open(self, checkpoint: Path | None) -> None:
        """Enter train() and wait in front of the next step; see `slow.base.SlowPart`."""
        resume = str(checkpoint) if checkpoint else None
        self.stepped = Stepped(lambda: self.trainer.train(resume_from_checkpoint=resume))
        self.stepped.resume()
        self.policy.version = self.trainer.state.global_step
        if checkpoint:
            self.retention.restore(checkpoint, self.policy.model.device)

    def _before_step(self, step: int) -> None:
        assert self.stepped is not None
        self.stepped.pause()
        set_seeds(self.run_seed, "slow", step)

    def step(self, population: Population, problems: Sequence[Problem]) -> StepReport:
        """One optimizer step; see `slow.base.SlowPart`."""
        assert self.stepped is not None
        self.trainer.population, self.trainer.problems = population, problems
        self.handover.logs.clear()
        self.stepped.resume()
        self.policy.version = step = self.trainer.state.global_step
        metrics = step_metrics(self.handover.logs)
        metrics |= self.trainer.mismatch.take(self.trainer.accelerator)
        metrics |= self.retention.take()
        metrics["slow/skipped"] = float(self.handover.skipped_in_a_row > 0)
        self._check(step, metrics)
        return StepReport(step, metrics, tuple(gather_object(self.judge.rollouts)))

    def _check(self, step: int, metrics: dict[str, float]) -> None:
        """Drop what is not finite from a skipped step's metrics; stop when training diverged."""
        skipped = self.handover.skipped_in_a_row
        if skipped:
            logger.warning("step %d skipped: its gradient is not finite", step)
            metrics.pop("slow/grad_norm", None)
        odd = [f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)]
        if skipped >= SKIPS_ALLOWED:
            odd.append(f"{skipped} steps in a row had no finite gradient")
        if odd:
            raise TrainingDiverged(
                f"training diverged at step {step} ({'; '.join(odd)}); lower "
                "slow.learning_rate, then run again: the last checkpoint is intact"
            )

    def save(self, folder: Path) -> None:
        """Weights as safetensors, optimizer and schedule as TRL resumes from them."""
        if self.trainer.is_fsdp_enabled:
            save_sharded(self.trainer, self.policy.live, folder)
        if not self.trainer.args.should_save:  # every rank holds the same, and one writes
            return
        if not self.trainer.is_fsdp_enabled:
            if self.policy.config.lora:
                save_adapters(self.policy.trained, folder)
            else:
                self.policy.model.save_pretrained(folder, max_shard_size=ONE_FILE)
            self.trainer._save_optimizer_and_scheduler(str(folder))
        self.policy.tokenizer.save_pretrained(folder)
        self.retention.save(folder)
        self.trainer.state.save_to_json(os.path.join(folder, TRAINER_STATE))

    def close(self) -> None:
        """Unwind train()."""
        if self.stepped is not None:
            self.stepped.close()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def forget_start_of_adapters(trainer: Any) -> None:
    """Have KL taken to the base model, which is the model with its adapters switched off.

    For beta > 0, TRL copies the adapters as they begin, and takes it to those where the copy is.
    """
    if "ref" in getattr(trainer.model, "peft_config", {}):
        trainer.model.delete_adapter("ref")


def slots(rows: int) -> Dataset:
    """One row per problem of the run, in order, empty: the problem comes with its step."""
    return Dataset.from_dict({"prompt": [""] * rows, "slot": list(range(rows))})


def step_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """TRL's logs of one step under the lab's names."""
    return {
        name: float(logs[key])
        for key, name in METRICS.items()
        if isinstance(logs.get(key), int | float)
    }
