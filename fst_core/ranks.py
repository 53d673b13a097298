"""One run on several processes (torchrun, accelerate launch): rank 0 drives, the others serve it.

Rank 0 alone holds the session: journal, lock, ledger, fast loop, checkpoints' folder. Every rank
holds the policy and the slow part, and does what rank 0 broadcasts: generate and score its share of
the rows, take a slow step, save. Commands travel over a group of their own (gloo on the CPU), whose
timeout is longer than any fast phase. A rollout's draws depend on its own seed only, so sharding
changes nothing but rounding.

An error on any rank stops all: its sentence goes into the rendezvous store, which a thread of every
rank watches, since a rank that waits inside a collective cannot be told in any other way. With one
process no group is made and nothing here runs.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.environments.tasks import Tasks
from fst_core.failures import sentence_for
from fst_core.launch import Launch, launch, refuse_processes
from fst_core.policy.base import Sampling, TokenScores, refuse_too_long
from fst_core.policy.device import pick_device
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.randomness import set_seeds
from fst_core.records import Completion, Population, Problem
from fst_core.run_folder import final_weights
from fst_core.slow.base import SlowPart, SlowTools, StepReport
from fst_core.slow.registry import make_slow

COMMANDS_TIMEOUT = timedelta(days=30)
"""How long a rank waits for rank 0's next command."""
COLLECTIVES_TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others inside a slow step."""
POLL_SECONDS = 0.2
STOPPING_SECONDS = 5.0
"""Longest wait of a failing rank for the others to stop."""
FAILED, STOPPED = "fst/failed", "fst/stopped"


class Ranks:
    """The processes of a run as one of them sees them; `Ranks()` is a process alone."""

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None, group: Any = None):
        self.rank, self.size = rank, size
        self._store, self._group = store, group
        self._left = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def tell(self, name: str, *given: Any) -> None:
        """Rank 0: have every other rank do something."""
        if self.size > 1:
            dist.broadcast_object_list([name, given], src=0, group=self._group)

    def hear(self) -> tuple[str, tuple[Any, ...]]:
        """Other ranks: the next thing to do, and with what."""
        told: list[Any] = [None, None]
        dist.broadcast_object_list(told, src=0, group=self._group)
        return told[0], told[1]

    def share(self) -> slice:
        """This rank's rows of a batch: every `size`-th, so that lengths mix."""
        return slice(self.rank, None, self.size)

    def merged(self, mine: list[Any]) -> list[Any]:
        """Rank 0: the rows of all shares, in order; nothing on other ranks."""
        shares: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(mine, shares, dst=0, group=self._group)
        rows = [None] * sum(map(len, shares or ()))
        for rank, share in enumerate(shares or ()):
            rows[rank :: self.size] = share
        return rows

    def watch(self) -> None:
        """Start the thread that ends this process when another rank has failed."""
        self._watcher.start()

    def _unwatch(self) -> None:
        """End the thread: one inside the store's C++ code at the interpreter's end aborts it."""
        self._left.set()
        self._watcher.join(STOPPING_SECONDS)

    def _watch(self) -> None:
        store = self._store.clone()
        while not self._left.wait(POLL_SECONDS):
            try:
                if not store.check([FAILED]):
                    continue
                told = store.get(FAILED).decode()
                store.add(STOPPED, 1)
            except RuntimeError:  # the process that holds the store is gone
                told = "the process that holds the rendezvous is gone"
            if self._left.is_set():
                return
            if self.rank == 0:
                _say_error(told)
            os._exit(1)  # the main thread may be inside a collective for ever

    def fail(self, error: BaseException) -> None:
        """Tell every rank why this one stops, and wait until they have stopped."""
        self._unwatch()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, when the others end
        told = f"rank {self.rank}: {sentence_for(error) or repr(error)}"
        first = True
        with contextlib.suppress(RuntimeError):  # a store that is gone has told them already
            known = self._store.compare_set(FAILED, "", told).decode()
            first = known == told
            self._wait_for_others()
            told = known
        if self.rank == 0 and first:
            return  # to be told by whoever catches it
        if first and sentence_for(error) is None:
            traceback.print_exception(error)
        if first or self.rank == 0:
            _say_error(told)
        os._exit(1)

    def _wait_for_others(self) -> None:
        until = time.monotonic() + STOPPING_SECONDS
        stopped = self._store.add(STOPPED, 1)
        while stopped < self.size and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            stopped = self._store.add(STOPPED, 0)

    def leave(self) -> None:
        """End together, after the last command."""
        if self.rank == 0:
            self.tell("stop")
        self._unwatch()
        dist.barrier(group=self._group)
        dist.destroy_process_group()


def _say_error(sentence: str) -> None:
    sys.stderr.write(f"error: {sentence}\n")
    sys.stderr.flush()  # the process ends without Python's own


ALONE = Ranks()


@contextmanager
def joined(config: RunConfig) -> Iterator[Ranks]:
    """The ranks of a launch, with their process group; a process alone where none was launched.

    Raises:
        ConfigError: if the run cannot be split over so many processes, or what the launcher says
            of them cannot be read.
    """
    launched = launch()
    if launched.size == 1:
        yield ALONE
        return
    ranks = _connect(config, launched)
    try:
        if ranks.rank == 0:
            refuse_processes(config, ranks.size)
        yield ranks
    except BaseException as error:
        ranks.fail(error)
        raise
    ranks.leave()


def _connect(config: RunConfig, launched: Launch) -> Ranks:
    device = pick_device(config.policy.device)
    if device.type == "cuda":
        present = torch.cuda.device_count()
        if launched.local_rank >= present:
            raise ConfigError(
                f"LOCAL_RANK = {launched.local_rank}, but this host has {present} GPUs; launch at "
                "most one process for each"
            )
        torch.cuda.set_device(launched.local_rank)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, rank, size = next(dist.rendezvous("env://"))
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVES_TIMEOUT
    )
    group = dist.new_group(backend="gloo", timeout=COMMANDS_TIMEOUT)
    if rank:  # an interrupt is rank 0's to handle: the others serve it until it has stopped
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    ranks = Ranks(rank, size, store, group)
    ranks.watch()
    return ranks


def first_weights(config: RunConfig, folder: Path) -> Path | None:
    """Weights of the run that this one starts from; None for the base model's."""
    if config.start_from is None:
        return None
    return final_weights(folder.parent.parent / config.start_from)


class Learner:
    """What every rank holds: the policy and the slow part, doing this rank's share of a command."""

    def __init__(self, ranks: Ranks, config: RunConfig, folder: Path):
        torch.set_num_threads(config.threads)
        self.ranks, self.config = ranks, config
        self.tasks = Tasks(config)
        set_seeds(config.seed, "build", 0)
        self.policy = LanguageModelPolicy(config.policy, first_weights(config, folder))
        self.slow: SlowPart | None = None

    def do(self, name: str, *given: Any) -> Any:
        """Rank 0: a command on every rank; what this one returns."""
        self.ranks.tell(name, *given)
        return getattr(self, name)(*given)

    def build(self) -> None:
        """Make the slow part."""
        tools = SlowTools(self.config, self.policy, self.tasks)
        self.slow = make_slow(self.config.slow, tools)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling,
        base: bool,
    ) -> list[Completion]:
        """A share of the prompts, by the policy or its base; all completions on rank 0."""
        mine = self.ranks.share()
        sampler = self.policy.frozen if base else self.policy
        return self.ranks.merged(sampler.generate(prompts[mine], seeds[mine], sampling))

    def score(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> list[TokenScores]:
        """A share of the completions; all scores on rank 0."""
        mine = self.ranks.share()
        return self.ranks.merged(self.policy.score(prompts[mine], completions[mine]))

    def open(self, checkpoint: Path | None) -> None:
        """See `slow.base.SlowPart`."""
        assert self.slow is not None
        self.slow.open(checkpoint)

    def step(self, population: Population, problems: Sequence[Problem]) -> StepReport:
        """See `slow.base.SlowPart`; every rank takes the step, on its share of the rows."""
        assert self.slow is not None
        return self.slow.step(population, problems)

    def save(self, folder: Path) -> None:
        """See `slow.base.SlowPart`; rank 0 writes."""
        assert self.slow is not None
        self.slow.save(folder)

    def close(self) -> None:
        """This rank's slow part only."""
        if self.slow is not None:
            self.slow.close()


class SharedPolicy:
    """The policy of all ranks, seen from rank 0 (see `fst_core.policy.base.Policy`)."""

    def __init__(self, learner: Learner, base: bool = False):
        self.learner, self.base = learner, base
        self.sampling, self.window = learner.policy.sampling, learner.policy.window

    @property
    def version(self) -> int:
        """Slow steps behind the weights; 0 for the base model's."""
        return 0 if self.base else self.learner.policy.version

    @property
    def frozen(self) -> "SharedPolicy":
        """The base model as a sampler."""
        return SharedPolicy(self.learner, base=True)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, ending where the assistant's turn begins."""
        return self.learner.policy.prompt_ids(messages)

    def prompts_of(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
        """The same of every chat, at once."""
        return self.learner.policy.prompts_of(chats)

    def count_tokens(self, text: str) -> int:
        """Tokens of plain text."""
        return self.learner.policy.count_tokens(text)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling | None = None,
    ) -> list[Completion]:
        """Completions of all ranks' engines; `sampling` None takes the run's own.

        Raises:
            ContextTooLong: before any rank begins.
        """
        chosen = sampling or self.sampling
        refuse_too_long(prompts, chosen, self.window)
        done: list[Completion] = self.learner.do(
            "generate", list(prompts), list(seeds), chosen, self.base
        )
        return done

    def score(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> list[TokenScores]:
        """See `fst_core.policy.base.Policy.score`."""
        found: list[TokenScores] = self.learner.do("score", list(prompts), list(completions))
        return found


class SharedSlow:
    """The slow parts of all ranks, driven from rank 0 (see `fst_core.slow.base.SlowPart`)."""

    def __init__(self, learner: Learner):
        self.learner = learner

    def open(self, checkpoint: Path | None) -> None:
        """Every rank reads the checkpoint."""
        self.learner.do("open", checkpoint)

    def step(self, population: Population, problems: Sequence[Problem]) -> StepReport:
        """One optimizer step on all ranks, on the problems and population of rank 0."""
        report: StepReport = self.learner.do("step", population, list(problems))
        return report

    def save(self, folder: Path) -> None:
        """Every rank takes part; rank 0 writes."""
        self.learner.do("save", folder)

    def close(self) -> None:
        """Rank 0's own; the others close theirs when they are told to stop."""
        self.learner.close()


def serve(ranks: Ranks) -> None:
    """Do what rank 0 says, until it says stop."""
    name, given = ranks.hear()
    if name == "stop":
        return
    learner = Learner(ranks, *given)  # "start": the run's config and folder
    try:
        while (heard := ranks.hear())[0] != "stop":
            getattr(learner, heard[0])(*heard[1])
    finally:
        learner.close()
