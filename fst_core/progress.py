"""A run as it is watched: a live bar on a terminal, plain lines where there is none."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fst_core.config import RunConfig
from fst_core.counting import counted
from fst_core.interleave import EvaluatePhase, FastPhase, Phase, SlowPhase, plan
from fst_core.journal import Event
from fst_core.lineage import mean_score

QUIET_SECONDS = 2.0
"""Least time between two plain lines about slow steps."""


class Watcher(Protocol):
    """Told what a run is about to do and what it has measured."""

    def begin(self, phase: Phase) -> None:
        """A phase starts."""
        ...

    def see(self, event: Event) -> None:
        """The journal has one event more."""
        ...


def phase_name(phase: Phase) -> str:
    """A phase in words."""
    match phase:
        case FastPhase(cycle, _, _):
            return f"cycle {cycle}: evolving contexts"
        case SlowPhase(cycle, start, stop):
            steps = f"steps {start + 1} to {stop}" if stop > start + 1 else f"step {stop}"
            return f"cycle {cycle}: slow {steps}"
        case EvaluatePhase(_, start):
            return f"evaluation at step {start}"


@dataclass
class Tally:
    """Where a run stands: units of work done and left, their mean times, the newest reward.

    A unit is a slow step, a fast phase or an evaluation; the time left is what each kind took on
    average so far.
    """

    config: RunConfig
    step: int = 0
    reward: float | None = None
    done: dict[str, int] = field(default_factory=lambda: {"fast": 0, "slow": 0, "evaluation": 0})
    seconds: dict[str, float] = field(default_factory=dict)
    measured: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total = units(plan(self.config))

    def start_at(self, next_phase: int) -> None:
        """A run that goes on: count what lies behind it as done."""
        self.done = units(plan(self.config)[:next_phase])
        self.step = self.done["slow"]

    def see(self, event: Event) -> None:
        """Count one event."""
        kind = event["kind"]
        if kind == "evaluation" and event["context"] != "seed":  # the seed's stands for all
            self._took(kind, event["seconds"], 0)
            if event["context"] == "best":
                self.reward = event["metrics"]["evaluation/reward"]
            return
        if kind not in self.total:
            return
        self.done[kind] += 1
        self._took(kind, event["seconds"], 1)
        if kind == "slow":
            self.step = event["step"]
        if kind != "fast":
            self.reward = event["metrics"].get(f"{kind}/reward", self.reward)

    def _took(self, kind: str, seconds: float, units: int) -> None:
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.measured[kind] = self.measured.get(kind, 0) + units

    def rate(self) -> float | None:
        """Slow steps a second, the rest of a cycle left out."""
        seconds = self.seconds.get("slow", 0.0)
        return self.measured["slow"] / seconds if seconds else None

    def seconds_left(self) -> float | None:
        """Time left; None until every kind of work that is left has been seen once."""
        left = 0.0
        for kind, total in self.total.items():
            waiting = total - self.done[kind]
            if waiting and not self.measured.get(kind):
                return None
            if waiting:
                left += waiting * self.seconds[kind] / self.measured[kind]
        return left

    def line(self) -> str:
        """Step, reward, rate and time left in one line."""
        steps = self.config.loop.steps
        parts = [f"step {self.step}/{steps}"] if self.total["slow"] else []
        if not parts:
            parts = [f"{sum(self.done.values())}/{sum(self.total.values())}"]
        if self.reward is not None:
            parts.append(f"reward {self.reward:.3f}")
        rate, left = self.rate(), self.seconds_left()
        if rate is not None:
            parts.append(f"{rate:.2f} steps/s" if rate >= 0.1 else f"{1 / rate:.0f} s a step")
        if left is not None:
            parts.append(f"about {clock(left)} left")
        return "  ".join(parts)


def units(phases: list[Phase]) -> dict[str, int]:
    """Fast phases, slow steps and evaluations of a list of phases."""
    slow = sum(p.stop - p.start for p in phases if isinstance(p, SlowPhase))
    fast = sum(isinstance(p, FastPhase) for p in phases)
    return {"fast": fast, "slow": slow, "evaluation": len([*_looks(phases)])}


def _looks(phases: list[Phase]) -> Iterator[Phase]:
    return (p for p in phases if isinstance(p, EvaluatePhase))


def clock(seconds: float) -> str:
    """A duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def fast_line(event: Mapping[str, Any]) -> str:
    """What a fast phase did."""
    evolution = event["evolution"]
    scores = evolution["population"]["scores"]
    best = mean_score(scores[0]) if scores else None
    found = "" if best is None else f", the best context {score_text(best)}"
    return (
        f"fast phase {event['cycle']}: {counted(evolution['metric_calls'], 'rollout')} in "
        f"{counted(evolution['generate_calls'], 'generate call')}; {evolution['accepted']} of "
        f"{counted(evolution['proposals'], 'proposed context')} accepted{found} "
        f"({event['seconds']:.1f} s)"
    )


def score_text(mean: float) -> str:
    """The mean of a context's scores in a fast phase, in words."""
    return f"has reward {mean:.3f} on the cycle's anchors (train problems that score contexts)"


def under(context: str) -> str:
    """Under which context something was measured: "none" is no system prompt at all."""
    return "without a context" if context == "none" else f"under the {context} context"


def plan_line(phases: list[Phase]) -> str:
    """What a run consists of, in numbers."""
    done = units(phases)
    return (
        f"plan: {counted(len({phase.cycle for phase in phases}), 'cycle')} in "
        f"{counted(len(phases), 'phase')}: {counted(done['fast'], 'fast phase')}, "
        f"{counted(done['slow'], 'slow step')}, {counted(done['evaluation'], 'evaluation')}"
    )


def evaluation_line(event: Mapping[str, Any]) -> str:
    """What an evaluation measured; of several tasks, in brackets the reward on each."""
    metrics = event["metrics"]
    drift = told_kl(metrics)
    return (
        f"evaluation at step {event['step']} {under(event['context'])}: "
        f"reward {metrics['evaluation/reward']:.3f}{task_rewards(event)}{drift and f', {drift}'}"
    )


def told_kl(metrics: Mapping[str, float]) -> str:
    """An evaluation's KL to the base model in nats a token, and which; empty where it has none.

    "exact KL 0.0123" where it was summed over the vocabulary, else "k1 KL 0.0119", the estimate
    from the sampled tokens.
    """
    known = {"exact": metrics.get("evaluation/kl_exact"), "k1": metrics.get("evaluation/kl")}
    told = (f"{name} KL {value:.4f}" for name, value in known.items() if value is not None)
    return next(told, "")


def task_rewards(event: Mapping[str, Any]) -> str:
    """The reward of an evaluation on each task, " (sums 0.500, letters 0.250)"; "" of one task."""
    tasks: Mapping[str, Mapping[str, float]] = event.get("tasks", {})
    told = [f"{task} {found['evaluation/reward']:.3f}" for task, found in tasks.items()]
    return f" ({', '.join(told)})" if told else ""


class Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, tally: Tally, console: Console):
        self.tally = tally
        self.console = console
        self.last = 0.0

    def begin(self, phase: Phase) -> None:
        """Phases show by what they measure."""

    def see(self, event: Event) -> None:
        """One line per fast phase and evaluation; one per slow step, every 2 seconds at most."""
        self.tally.see(event)
        kind, now = event["kind"], time.monotonic()
        if kind == "fast":
            self._say(fast_line(event))
        elif kind == "evaluation":
            self._say(evaluation_line(event))
        elif kind == "slow" and (now - self.last >= QUIET_SECONDS or self._last_step(event)):
            self.last = now
            self._say(self.tally.line())

    def _last_step(self, event: Event) -> bool:
        return bool(event["step"] == self.tally.config.loop.steps)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bar:
    """A live bar below the lines about fast phases and evaluations."""

    def __init__(self, tally: Tally, progress: Progress):
        self.tally = tally
        self.progress = progress
        total = sum(tally.total.values())
        done = sum(tally.done.values())
        self.task = progress.add_task("starting", total=total, completed=done, line="")

    def begin(self, phase: Phase) -> None:
        """Name the phase beside the bar."""
        self.progress.update(self.task, description=phase_name(phase))

    def see(self, event: Event) -> None:
        """Move the bar."""
        self.tally.see(event)
        if event["kind"] == "fast":
            self.progress.console.print(fast_line(event), markup=False, highlight=False)
        elif event["kind"] == "evaluation":
            self.progress.console.print(evaluation_line(event), markup=False, highlight=False)
        done = sum(self.tally.done.values())
        self.progress.update(self.task, completed=done, line=self.tally.line())


@contextmanager
def watched(config: RunConfig, next_phase: int, console: Console) -> Iterator[Watcher]:
    """A watcher for a run that starts at a phase: live on a terminal, else plain lines."""
    tally = Tally(config)
    tally.start_at(next_phase)
    if not console.is_terminal:
        yield Lines(tally, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(tally, progress)
