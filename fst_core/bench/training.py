"""Our slow step against plain TRL GRPO: same settings, same prompts, same engine."""

import tempfile
import time
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOTrainer

from fst_core.bench.timing import Table, drain
from fst_core.config import PolicyGradient, RunConfig
from fst_core.curriculum.problems import Problems
from fst_core.environments.tasks import Tasks
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import seed_of, seeded
from fst_core.slow.base import SlowTools
from fst_core.slow.group import GroupSlow, grpo_config

WARMUPS = 3
"""Steps at the start of each trainer that are not counted."""


class PlainTrainer(GRPOTrainer):
    """GRPOTrainer whose generation call asks the lab's engine, and nothing else."""

    policy: LanguageModelPolicy

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        step = self.state.global_step
        self.policy.version = step
        seeds = [seed_of(0, "slow", step, i) for i in range(len(prompt_ids))]
        done = self.policy.generate(prompt_ids, seeds)
        return [list(c.token_ids) for c in done], None


class StepTimes(TrainerCallback):
    """Seconds from the beginning of every optimizer step to the next one's, all in between."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began: float | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step begins; TRL generates behind this point, and logs and loads in front of it."""
        drain()
        now = time.perf_counter()
        if self.began is not None:
            self.seconds.append(now - self.began)
        self.began = now


def plain_steps(config: RunConfig, policy: LanguageModelPolicy, tasks: Tasks) -> list[float]:
    """Seconds of each step but the last of plain GRPO with the seed context in every prompt."""
    rows = config.loop.steps * config.loop.problems_per_step
    problems = [tasks.train(i) for i in range(rows)]
    system = {"role": "system", "content": config.contexts.seed}
    dataset = Dataset.from_dict(
        {
            "prompt": [[system, *map(dict, p.messages)] for p in problems],
            "position": list(range(rows)),
        }
    )

    def reward(completions: Any, position: Any, **_: Any) -> list[float | None]:
        texts = [c[0]["content"] for c in completions]
        pairs = zip(position, texts, strict=True)
        return [tasks.judge(problems[p], text).reward for p, text in pairs]

    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        assert isinstance(config.slow, PolicyGradient)
        trainer = PlainTrainer(
            model=policy.model,
            reward_funcs=reward,
            args=grpo_config(config.slow, config.loop, policy, folder),
            train_dataset=dataset,
            processing_class=policy.tokenizer,
            callbacks=[times],
        )
        trainer.policy = policy
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times.seconds


def our_steps(config: RunConfig, policy: LanguageModelPolicy, tasks: Tasks) -> list[float]:
    """Seconds of each of the lab's slow steps but the last, the seed context in all K slots."""
    assert isinstance(config.slow, PolicyGradient)
    slow = GroupSlow(config.slow, SlowTools(config, policy, tasks))
    population = seeded(config.contexts.seed, config.contexts.size)
    stream, seconds = Problems(config, tasks), []
    try:
        slow.open(None)
        for step in range(config.loop.steps):
            problems = stream.between(step, step + 1)
            drain()
            began = time.perf_counter()
            slow.step(population, problems)
            drain()
            seconds.append(time.perf_counter() - began)
    finally:
        slow.close()
    return seconds[:-1]  # the last runs on to the end of training


def bench_steps(
    config: RunConfig, rounds: int = 2, steps: int = 11
) -> tuple[Table, dict[str, Any]]:
    """Both in turn, the first of a round last in the next, each from the base weights.

    Groups of equal rewards stay in the batch, as plain TRL keeps them.
    """
    slow = config.slow.model_copy(update={"zero_variance": "keep"})
    loop = config.loop.model_copy(update={"steps": steps})
    config = config.model_copy(update={"slow": slow, "loop": loop})
    tasks = Tasks(config)
    takes = {"plain TRL, our engine": plain_steps, "our slow step": our_steps}
    found: dict[str, list[float]] = {name: [] for name in takes}
    for turn in range(rounds):
        for name in sorted(takes, reverse=turn % 2 == 0):
            policy = LanguageModelPolicy(config.policy)
            found[name] += takes[name](config, policy, tasks)[WARMUPS:]
    table = Table("Slow step, generation included", "rollouts/s")
    batch = loop.problems_per_step * loop.group_size
    table.fill(found, batch, "plain TRL, our engine")
    return table, {"rollouts_a_step": batch, "steps_timed": rounds * (steps - 1 - WARMUPS)}
