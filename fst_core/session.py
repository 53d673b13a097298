"""A run while it is alive: warm model, optimizer and engine, its journal and its checkpoints."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError

from fst_core.checkpoint import (
    CheckpointError,
    State,
    check_slow,
    damaged,
    list_checkpoints,
    read_state,
    write_checkpoint,
)
from fst_core.config import (
    NoFast,
    PolicyReflection,
    RunConfig,
    SequenceConfig,
)
from fst_core.config.model import ConfigError
from fst_core.curriculum.problems import Problems
from fst_core.evaluation.measuring import Measured, Measuring
from fst_core.fast.base import Evolution, FastPart, FastTools
from fst_core.fast.registry import make_fast
from fst_core.fast.window import refuse_vain_search, room_for_context
from fst_core.journal import Entry, Journal
from fst_core.policy.base import Sampler, Sampling
from fst_core.policy.device import device_name, pick_device
from fst_core.provenance import config_hash, provenance
from fst_core.randomness import preserved, set_seeds
from fst_core.ranks import ALONE, Learner, Ranks, SharedPolicy, SharedSlow
from fst_core.records import (
    Completion,
    Context,
    Population,
    Rollout,
    seeded,
    to_json,
)
from fst_core.rollouts import Pair, readable, roll_out
from fst_core.run_folder import final_checkpoint, keep_config, lock, refuse_other_config
from fst_core.slow.base import SlowPart, TrainingDiverged

UNREADABLE = (
    OSError, ValueError, TypeError, RuntimeError, EOFError, KeyError, SafetensorError
)  # fmt: skip
"""What loading weights, optimizer and schedule raises where a file of theirs is damaged."""
SAMPLE_ROLLOUTS = 4
"""Rollouts shown in the journal per step or evaluation."""


@dataclass
class Ledger:
    """What a run has used so far, by loop; cumulative."""

    slow_rollouts: int = 0
    fast_rollouts: int = 0
    evaluation_rollouts: int = 0
    slow_tokens: int = 0
    fast_tokens: int = 0
    evaluation_tokens: int = 0
    reflection_rollouts: int = 0
    reflection_tokens: int = 0
    generate_calls: int = 0

    def add(self, loop: str, rollouts: int, tokens: int) -> None:
        """Count rollouts and generated tokens: of slow, fast, evaluation or reflection."""
        setattr(self, f"{loop}_rollouts", getattr(self, f"{loop}_rollouts") + rollouts)
        setattr(self, f"{loop}_tokens", getattr(self, f"{loop}_tokens") + tokens)
        self.generate_calls += rollouts > 0


@dataclass
class Seconds:
    """Wall time of this process by part."""

    fast: float = 0.0
    slow: float = 0.0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    started: float = field(default_factory=time.perf_counter)


class Session:
    """One run, driven from one process. Use as a context manager; see `fst_core.interleave`.

    Args:
        ranks: the processes of the run, this one the first; by default this one alone.

    Raises:
        RunBusy: on entry, if another process writes the same folder.
        RunMismatch: on entry, if the folder holds a run of another config.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        observer: Callable[[dict[str, Any]], None] | None = None,
        ranks: Ranks = ALONE,
    ):
        self.config = config
        self.folder = folder
        self.observer = observer
        self.ranks = ranks
        self.on_call: Callable[[], None] | None = None
        """Told, in the same thread, after every engine call that is counted."""
        self.ledger = Ledger()
        self.seconds = Seconds()
        self.next_phase = 0
        self.step_done = 0
        self.population = first_population(config, folder)
        self.recent: tuple[Rollout, ...] = ()

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # a failed start leaves nothing open
            stack.callback(lock(self.folder).close)
            refuse_other_config(self.folder, self.config)
            self._build()
            if self.slow is not None:
                stack.callback(self.slow.close)
            keep_config(self.folder, self.config)
            self.journal = Journal(self.folder / "journal.jsonl")
            stack.callback(self.journal.close)
            self._resume()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # Building and resuming

    def _build(self) -> None:
        config = self.config
        self.ranks.tell("start", config, self.folder)
        learner = Learner(self.ranks, config, self.folder)
        several = self.ranks.size > 1
        self.tasks = learner.tasks
        self.problems = Problems(config, self.tasks)
        self.policy = SharedPolicy(learner) if several else learner.policy
        self.held_out = [
            problem
            for task in self.tasks.trained
            for problem in self.tasks.held_out(task.name, "validation", config.evaluation.problems)
        ]
        self.measuring = Measuring(
            config,
            self.tasks,
            self.held_out,
            self.policy,
            partial(self._roll_out, "evaluation"),
            lambda pairs, seeds: self._roll_out("evaluation", pairs, seeds, self.policy.frozen),
        )
        room = self._room_for_context()
        refuse_vain_search(config, self.population.contexts, self.policy, self.policy.window)
        learner.do("build")
        self.slow: SlowPart | None = learner.slow
        self.parameters = learner.policy.count_parameters()
        if self.slow is None:
            self.parameters["trainable"] = 0
        if several and learner.slow is not None:
            self.slow = SharedSlow(learner)
        self.fast: FastPart | None = None
        if not isinstance(config.fast, NoFast):
            tools = FastTools(
                partial(self._roll_out, "fast"),
                self.tasks.solution,
                self._chat,
                config.seed,
                config.population_size,
                min(config.contexts.max_tokens, room),
                self.policy.count_tokens,
            )
            self.fast = make_fast(config.fast, tools)

    def _room_for_context(self) -> int:
        """Tokens the window leaves for a context, beside a completion and the longest problem seen.

        Raises:
            ContextTooLong: if the seed context does not fit.
        """
        held, policy = self.measuring.held(), self.policy
        return room_for_context(self.config, self.tasks, held, policy, policy.window)

    def _resume(self) -> None:
        checkpoints = list_checkpoints(self.folder / "checkpoints")
        weights = None
        if checkpoints:
            state = read_state(checkpoints[-1])
            if state.config_hash != config_hash(self.config.model_dump(mode="json")):
                raise CheckpointError(f"{checkpoints[-1]} belongs to another config than this run")
            if state.journal_seq >= self.journal.next_seq:
                raise CheckpointError(
                    f"{self.journal.path} ends before checkpoint {checkpoints[-1]}: parts of the "
                    "journal are gone; restore it, or start afresh with --fresh"
                )
            if state.step and self.slow:
                check_slow(checkpoints[-1])
                weights = checkpoints[-1] / "slow"
            self.journal.rewind(state.journal_seq)
            self.population, self.next_phase = state.population, state.next_phase
            self.step_done, self.recent = state.step, state.recent
            self.ledger = Ledger(**state.ledger)
            if state.problems is not None:
                self.problems.restore(state.problems)
            self._record_checkpoint(checkpoints[-1].name)
        else:
            self.journal.rewind(-1)
            rows = self.config.loop.steps * self.config.loop.problems_per_step
            train = list(map(self.tasks.train, range(rows)))
            origin = provenance(self.config, train, self.held_out)
            origin["device"] = device_name(pick_device(self.config.policy.device))
            self._record(("run", {**origin, "parameters": self.parameters}))
        if self.slow is not None:
            self._open_slow(self.slow, weights)

    @staticmethod
    def _open_slow(slow: SlowPart, weights: Path | None) -> None:
        if weights is None:
            slow.open(None)
            return
        try:
            slow.open(weights)
        except UNREADABLE as error:
            raise damaged(weights.parent, (str(error).splitlines() or [repr(error)])[0]) from error

    # The three kinds of phase

    def evolve(self, cycle: int, start: int, stop: int) -> None:
        """Fast phase: a better population for slow steps [start, stop)."""
        assert self.fast is not None
        began = time.perf_counter()
        problems = self.problems.between(start, stop)
        if self._is_told_of_switch(start):
            contexts = self.config.contexts
            self.population = seeded(contexts.seed, self.config.population_size, contexts.parts)
            self.recent = ()
        set_seeds(self.config.seed, "fast", cycle)
        evolution = self.fast.evolve(self.population, problems, cycle, self.recent)
        self.population = evolution.population
        if self.config.fast.reads is None:
            self.recent = ()
        took = time.perf_counter() - began
        self.seconds.fast += took
        fields = {"cycle": cycle, "step": start, "evolution": shown(evolution), "seconds": took}
        self._record(("fast", {**fields, "ledger": asdict(self.ledger)}))

    def step(self) -> None:
        """One slow step."""
        assert self.slow is not None
        began = time.perf_counter()
        problems = self.problems.between(self.step_done, self.step_done + 1)
        further = self.problems.further(self.step_done).values()
        report = self.slow.step(self.population, [*problems, *further])
        calls = (report.rollouts, *report.replaced)
        for rollouts in filter(None, calls):
            self._count("slow", [r.completion for r in rollouts])
        self.step_done = report.step
        self.problems.observe(report.step, list(chain(*calls)))
        reads = self.config.fast.reads
        self.recent = readable((*self.recent, *report.rollouts), report.step, reads)
        took = time.perf_counter() - began
        self.seconds.slow += took
        fields = {"step": report.step, "metrics": dict(report.metrics), "seconds": took}
        fields |= self.problems.rearranged(report.step)
        if isinstance(self.config.environment, SequenceConfig):
            fields["task"] = self.config.task_at(report.step)
        sample = self._sampled("slow", report.step, report.rollouts)
        self._record(("slow", {**fields, "ledger": asdict(self.ledger)}), *sample)

    def evaluate(self, step: int) -> None:
        """Held-out measurements (see `Measuring.at`); they change no generator's state."""
        contexts = {"seed": Context(self.config.contexts.seed)}
        if self.config.has_contexts:
            contexts["best"] = self.population.best
        with preserved():
            set_seeds(self.config.seed, "evaluation", step)
            for measured in self.measuring.at(step, contexts):
                self._record_measured(step, measured)

    def _record_measured(self, step: int, measured: Measured) -> None:
        kind, label, found = measured.kind, measured.label, measured.found
        self.seconds.evaluation += measured.seconds
        odd = [f"{n} is {value}" for n, value in found.metrics.items() if not math.isfinite(value)]
        if odd:
            raise TrainingDiverged(
                f"training diverged by step {step} ({'; '.join(odd)} under the {label} context); "
                "lower slow.learning_rate, then run again: the last checkpoint is intact"
            )
        fields: dict[str, Any] = {"step": step, **measured.about, "context": label}
        fields |= {"context_id": found.context.id, "metrics": found.metrics}
        fields |= {"tasks": found.tasks} if found.tasks else {}
        fields |= {"rewards": found.rewards, "seconds": measured.seconds}
        self._record((kind, {**fields, "ledger": asdict(self.ledger)}))
        if kind == "evaluation":
            self._record(*self._sampled(f"evaluation-{label}", step, found.rollouts))

    # Boundaries

    def save(self) -> None:
        """Write a checkpoint of everything up to here."""
        began = time.perf_counter()
        self.journal.sync()  # a checkpoint names its last event
        state = State(
            self.step_done,
            self.next_phase,
            self.journal.next_seq - 1,
            self.population,
            asdict(self.ledger),
            config_hash(self.config.model_dump(mode="json")),
            self.recent,
            self.problems.state(),
        )
        save_slow = self.slow.save if self.slow else None
        root = self.folder / "checkpoints"
        target = write_checkpoint(root, state, save_slow, self.config.checkpoint.keep)
        self.seconds.checkpoint += time.perf_counter() - began
        self._record_checkpoint(target.name)

    def finish(self) -> None:
        """Close the books of a run whose phases are all done."""
        seconds = asdict(self.seconds)
        seconds["total"] = time.perf_counter() - seconds.pop("started")
        fields = {"step": self.step_done, "seconds": seconds, "ledger": asdict(self.ledger)}
        self._record(("end", fields))

    # Plumbing

    def _is_told_of_switch(self, step: int) -> bool:
        sequence = self.config.environment
        if not isinstance(sequence, SequenceConfig) or not sequence.told:
            return False
        return step > 0 and step % sequence.task_steps == 0

    def _roll_out(
        self,
        loop: str,
        pairs: Sequence[Pair],
        seeds: Sequence[int],
        sampler: Sampler | None = None,
    ) -> list[Rollout]:
        rollouts = roll_out(sampler or self.policy, self.tasks, pairs, seeds, logprobs=False)
        self._count(loop, [r.completion for r in rollouts])
        return rollouts

    def _count(self, loop: str, completions: Sequence[Completion]) -> None:
        self.ledger.add(loop, len(completions), sum(len(c.token_ids) for c in completions))
        if self.on_call is not None:
            self.on_call()

    def _chat(
        self, messages: Sequence[Sequence[Mapping[str, str]]], seeds: Sequence[int]
    ) -> list[str]:
        """Texts the policy itself writes, for `reflection.type = "policy"`."""
        settings = self.config.fast.writer
        assert isinstance(settings, PolicyReflection)
        sampling = Sampling(settings.temperature, settings.max_new_tokens, logprobs=False)
        prompts = self.policy.prompts_of(messages)
        done = self.policy.generate(prompts, seeds, sampling)
        self._count("reflection", done)
        return [c.text for c in done]

    def _sampled(self, loop: str, step: int, rollouts: Sequence[Rollout]) -> list[Entry]:
        """A few rollouts as an entry of the journal; none of a step on given answers."""
        if not rollouts:
            return []
        # A little more than a quarter apart, so that the sample meets different context slots.
        apart = len(rollouts) // SAMPLE_ROLLOUTS
        apart += max(1, self.config.loop.group_size // SAMPLE_ROLLOUTS)
        chosen = {i * apart % len(rollouts): None for i in range(SAMPLE_ROLLOUTS)}
        sample = [
            {
                "problem": r.problem_id,
                "question": r.question,
                "context_id": r.context_id,
                "text": r.completion.text,
                "reward": r.verdict.reward,
                "feedback": list(r.verdict.feedback),
            }
            for r in map(rollouts.__getitem__, chosen)
        ]
        return [("rollouts", {"step": step, "loop": loop, "sample": sample})]

    def _record_checkpoint(self, name: str) -> None:
        fields = {"step": self.step_done, "name": name, "next_phase": self.next_phase}
        self._record(("checkpoint", fields))

    def _record(self, *entries: Entry) -> None:
        for event in self.journal.append_all(entries):
            if self.observer is not None:
                self.observer(event)


def first_population(config: RunConfig, folder: Path) -> Population:
    """The population before the first fast phase: K times the seed, or another run's last.

    Raises:
        ConfigError: if the run it comes from is not there, or its population has another size or
            other components.
    """
    size, start, parts = config.population_size, config.contexts.start_from, config.contexts.parts
    if start is None:
        return seeded(config.contexts.seed, size, parts)
    contexts = read_state(final_checkpoint(folder.parent.parent / start)).population.contexts
    if len(contexts) != size:
        raise ConfigError(
            f"contexts.size = {size}, but the population of {start} (contexts.start_from) has "
            f"{len(contexts)} contexts; set the one to the other"
        )
    if parts and any(dict(context.parts).keys() != dict(parts).keys() for context in contexts):
        other = ", ".join(dict(contexts[0].parts)) or "one text"
        raise ConfigError(
            f"contexts.components names {', '.join(dict(parts))}, but the contexts of {start} "
            f"(contexts.start_from) are made of {other}; name the same, or leave "
            "contexts.components out"
        )
    return Population(contexts)


def shown(evolution: Evolution) -> dict[str, Any]:
    """An evolution for the journal: without the fast part's own memory, which checkpoints keep."""
    return to_json(replace(evolution, population=replace(evolution.population, memory={})))
