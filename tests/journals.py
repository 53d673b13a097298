"""Fabricated run folders: plausible journals of the arms base, rl, gepa and fst."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fst_core.config import ARMS, RunConfig
from fst_core.journal import Event
from fst_core.records import content_id

START_SECONDS = 1_700_000_000.0
SEED_TEXT = "You are a helpful assistant."
HOSTILE = "</pre><script>alert('context')</script> & $x_1$ `code`"
LEDGER = (
    *(
        f"{loop}_{unit}"
        for unit in ("rollouts", "tokens")
        for loop in ("slow", "fast", "evaluation")
    ),
    "generate_calls",
)


@dataclass
class JournalWriter:
    """Writes events one second apart, so that every number of a test is known by hand."""

    path: Path
    events: list[Event] = field(default_factory=list)
    ledger: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEDGER, 0))

    def add(self, kind: str, **fields: Any) -> Event:
        seq = len(self.events)
        event = {"seq": seq, "time": START_SECONDS + seq, "kind": kind, **fields}
        self.events.append(event)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")
        return event

    def use(self, loop: str, rollouts: int, tokens_each: int = 10) -> dict[str, int]:
        self.ledger[f"{loop}_rollouts"] += rollouts
        self.ledger[f"{loop}_tokens"] += rollouts * tokens_each
        self.ledger["generate_calls"] += 1
        return dict(self.ledger)


def config_of(arm: str, seed: int, **changes: Any) -> dict[str, Any]:
    """A resolved config as the runner writes it beside a journal."""
    data: dict[str, Any] = {
        "name": "synthetic",
        "arm": arm,
        "seed": seed,
        "why": "small enough to check by hand",
        "environment": {"type": "directives"},
        "loop": {"steps": 8, "cycle_steps": 2, "problems_per_step": 4, "group_size": 4},
        "contexts": {"size": 2},
        "fast": {"type": "gepa", "metric_calls": 10},
        "slow": {"type": "cispo", "learning_rate": 1e-3},
    }
    return RunConfig.model_validate({**data, **ARMS[arm], **changes}).model_dump(mode="json")


def start(folder: Path, arm: str, seed: int, **changes: Any) -> JournalWriter:
    """Create a run folder with its config and the run event."""
    config = config_of(arm, seed, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    writer = JournalWriter(folder / "journal.jsonl")
    writer.add(
        "run",
        config=config,
        git="0123456789abcdef",
        device="Abacus, 10 beads",
        versions={"torch": "2.11"},
        data={"train.jsonl": "d" * 64},
        problems={split: f"{split}-" + "a" * 64 for split in ("train", "validation", "test")},
    )
    return writer


def measured(reward: float, **more: float) -> dict[str, float]:
    """Metrics of one measurement; `more` adds or replaces, for example kl_exact=.1, entropy=.9."""
    values = {
        "reward": reward,
        "best_at_k": min(1.0, reward + 0.1),
        "length_tokens": 9.0,
        "truncated_frac": 0.0,
        **more,
    }
    return {f"evaluation/{name}": value for name, value in values.items()}


def evaluate(
    writer: JournalWriter,
    step: int,
    context: str,
    reward: float,
    kl: float = 0.0,
    *,
    more: Mapping[str, float] | None = None,
    tasks: Mapping[str, float] | None = None,
    **fields: Any,
) -> None:
    """One evaluation of 8 rollouts that took 2 seconds.

    `more` holds further metrics (kl_k3, kl_exact, entropy), `tasks` the reward of each task of a
    sequence run.
    """
    ledger = writer.use("evaluation", 8)
    fields = {"context_id": content_id(context), "rewards": [[reward]], "seconds": 2.0, **fields}
    if tasks is not None:
        fields["tasks"] = {name: measured(value, kl=kl) for name, value in tasks.items()}
    metrics = measured(reward, kl=kl, **(more or {}))
    writer.add("evaluation", step=step, context=context, metrics=metrics, ledger=ledger, **fields)


def quadrant(writer: JournalWriter, step: int, context: str, reward: float, **fields: Any) -> None:
    """The base weights under the seed or the best context, once, at the end of a run."""
    fields = {"context_id": content_id(context), "rewards": [[reward]], "seconds": 2.0, **fields}
    metrics, ledger = measured(reward), writer.use("evaluation", 8)
    writer.add("quadrant", step=step, context=context, metrics=metrics, ledger=ledger, **fields)


def suite(
    writer: JournalWriter,
    step: int,
    name: str,
    axis: str,
    context: str,
    reward: float,
    **fields: Any,
) -> None:
    """One suite of the forgetting and transfer battery, measured on the test split."""
    fields = {
        "environment": name,
        "context_id": content_id(context),
        "rewards": [[reward]],
        "seconds": 2.0,
        **fields,
    }
    metrics, ledger = measured(reward), writer.use("evaluation", 8)
    writer.add(
        "suite", step=step, suite=name, axis=axis, context=context, metrics=metrics,
        ledger=ledger, **fields,
    )  # fmt: skip


def slow_step(writer: JournalWriter, step: int, reward: float, kl: float, **fields: Any) -> None:
    """One slow step of 16 rollouts, 3 seconds, 1 of them generating; `task=` in sequence runs."""
    metrics = {
        "slow/reward": reward,
        "slow/loss": 0.1 / step,
        "slow/kl": kl,
        "slow/entropy": 1.0,
        "slow/seconds_generate": 1.0,
    }
    ledger = writer.use("slow", 16)
    writer.add("slow", step=step, metrics=metrics, seconds=3.0, ledger=ledger, **fields)


def fast_phase(writer: JournalWriter, cycle: int, step: int, level: float, text: str = "") -> None:
    """One fast phase of 10 rollouts that took 4 seconds; slot 0 descends from the seed."""
    seed = {"text": SEED_TEXT, "parents": [], "cycle": 0, "operator": "seed"}
    child = {
        "text": text or f"{SEED_TEXT}\nPut the answer in tags ({cycle}).",
        "parents": [content_id(SEED_TEXT)],
        "cycle": cycle,
        "operator": "lesson",
    }
    scores = [[level, level], [0.0, level]]
    evolution = {
        "population": {"contexts": [child, seed], "scores": scores},
        "candidates": [{"context": child, "scores": [level, None]}],
        "metric_calls": 10,
        "generate_calls": 3,
        "reflection_calls": 2,
        "proposals": 4,
        "accepted": 1,
        "rejected": {"repeated": 1},
        "reflection_usage": {},
    }
    ledger = writer.use("fast", 10)
    writer.add("fast", cycle=cycle, step=step, evolution=evolution, seconds=4.0, ledger=ledger)


def sample_rollouts(writer: JournalWriter, step: int, loop: str, text: str) -> None:
    """One logged rollout with feedback."""
    rollout = {
        "problem": "directives/train/1",
        "context_id": content_id(SEED_TEXT),
        "text": text,
        "reward": 0.25,
        "feedback": ["The answer must stand between <answer> tags."],
    }
    writer.add("rollouts", step=step, loop=loop, sample=[rollout])


def end(writer: JournalWriter, step: int) -> None:
    """The end event: 5 seconds more than the parts sum up to."""
    parts: dict[str, float] = {"fast": 0.0, "slow": 0.0, "evaluation": 0.0}
    for event in writer.events:
        if event["kind"] in parts:
            parts[event["kind"]] += event["seconds"]
    seconds = {**parts, "total": sum(parts.values()) + 5.0}
    writer.add("end", step=step, seconds=seconds, ledger=dict(writer.ledger))


def learning(step: int, rate: float, ceiling: float) -> float:
    """A saturating reward curve."""
    return ceiling * (1 - math.exp(-rate * step))


def synthetic_run(root: Path, arm: str, seed: int, steps: int = 8, cycle_steps: int = 2) -> Path:
    """A whole finished run of one arm: fst learns faster and drifts less than rl."""
    folder = root / f"{arm}-s{seed}"
    writer = start(folder, arm, seed)
    fast, slow = arm in ("gepa", "fst"), arm in ("rl", "fst")
    rate = {"base": 0.0, "rl": 0.15, "gepa": 0.0, "fst": 0.45}[arm] * (1 + 0.1 * seed)
    lift = 0.25 if fast else 0.0
    evaluate(writer, 0, "seed", 0.0)
    for cycle, first in enumerate(range(0, steps, cycle_steps)):
        if fast:
            fast_phase(writer, cycle, first, lift + learning(first, rate, 0.6))
            sample_rollouts(writer, first, "fast", f"<answer>a-b-{cycle}</answer>")
        for step in range(first + 1, first + cycle_steps + 1):
            if slow:
                slow_step(writer, step, learning(step, rate, 0.8), 0.02 * step)
        done = first + cycle_steps
        sample_rollouts(writer, done, "slow", HOSTILE)
        drift = done * (0.06 if arm == "rl" else 0.02) if slow else 0.0
        evaluate(writer, done, "seed", learning(done, rate, 0.9 if arm == "rl" else 0.5), drift)
        if fast:
            evaluate(writer, done, "best", lift + learning(done, rate, 0.65), drift * 0.8)
        writer.add("checkpoint", step=done, name=f"step-{done:06d}", next_phase="fast")
    end(writer, steps)
    return folder


def synthetic_study(
    root: Path, arms: Sequence[str] = ("base", "rl", "gepa", "fst"), seeds: Sequence[int] = (0, 1)
) -> list[Path]:
    """Finished runs of every arm and seed under `root`."""
    return [synthetic_run(root, arm, seed) for arm in arms for seed in seeds]
