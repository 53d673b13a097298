"""Where the time of a whole run goes: its parts timed from outside, the device drained at each."""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fst_core.bench.timing import drain
from fst_core.config import RunConfig
from fst_core.interleave import interleave
from fst_core.session import Session


class Clock:
    """Own seconds per part: time inside a nested part counts for that part alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = time.perf_counter()

    def _turn(self) -> None:
        drain()
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def wrap(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, its time booked under `part`."""

        def timed(*arguments: Any, **options: Any) -> Any:
            self._turn()
            self._open.append(part)
            try:
                return call(*arguments, **options)
            finally:
                self._turn()
                self._open.pop()

        return timed


def bench_parts(config: RunConfig) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds by part of a run, and what its cycle boundaries cost."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        session: Any = Session(config, Path(folder) / "study" / "run")
        with session:
            _wire(clock, session)
            clock.wrap("other", interleave)(session)
        return dict(clock.seconds), {"steps": config.loop.steps}


def _wire(clock: Clock, session: Any) -> None:
    policy, slow = session.policy, session.slow
    for owner, name, part in (
        (policy.engine, "generate", "generate"),
        (policy.frozen, "generate", "generate"),
        (policy.engine, "sync", "sync"),
        (policy, "score", "score"),
        (policy, "prompts_of", "chat template"),
        (session.tasks, "judge", "judge"),
        (session, "evolve", "evolve (search itself)"),
        (session, "evaluate", "evaluate (plumbing)"),
        (session, "save", "checkpoint"),
        (session.journal, "append_all", "journal"),
        (session, "step", "slow step (rest of TRL)"),
    ):
        setattr(owner, name, clock.wrap(part, getattr(owner, name)))
    if slow is not None:
        trainer = slow.trainer
        trainer.compute_loss = clock.wrap("forward and backward", trainer.compute_loss)


def shares(seconds: dict[str, float]) -> str:
    """A table of parts, largest first."""
    total = sum(seconds.values())
    lines = ["| part | seconds | share |", "| --- | ---: | ---: |"]
    for part, took in sorted(seconds.items(), key=lambda item: -item[1]):
        lines.append(f"| {part} | {took:.2f} | {took / total:.1%} |")
    return "\n".join([*lines, f"| whole run | {total:.2f} | 100% |", ""])
