"""A run that kills itself (SIGKILL) at a named point: `python -m tests.invariants.killed_run`."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fst_core.quiet import settle_environment

settle_environment()

POINTS = ("generation", "backward", "fast", "checkpoint-write", "checkpoint-rename", "sync")


def die_at_call(number: int, call: Callable[..., Any], after: bool = False) -> Callable[..., Any]:
    """The same call, but the process dies at the number-th one (before it, or after it)."""
    count = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        result = call(*arguments, **options) if after or count < number else None
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return counted


def arm(point: str) -> None:
    """Set the trap."""
    import accelerate

    from fst_core.fast import gepa
    from fst_core.policy import transformers_engine
    from fst_core.slow.group import GroupSlow

    if point == "generation":
        transformers_engine.draw = die_at_call(60, transformers_engine.draw)
    elif point == "backward":
        accelerate.Accelerator.backward = die_at_call(4, accelerate.Accelerator.backward)  # type: ignore[method-assign]
    elif point == "fast":
        gepa.Adapter.batch_evaluate = die_at_call(7, gepa.Adapter.batch_evaluate)  # type: ignore[method-assign]
    elif point == "checkpoint-write":
        GroupSlow.save = die_at_call(2, GroupSlow.save, after=True)  # type: ignore[method-assign]
    elif point == "checkpoint-rename":
        Path.rename = die_at_call(4, Path.rename, after=True)  # type: ignore[method-assign]
    elif point == "sync":
        import mlflow

        client = mlflow.MlflowClient
        client.log_batch = die_at_call(3, client.log_batch, after=True)  # type: ignore[method-assign]
    else:
        raise SystemExit(f"unknown point {point}; one of {', '.join(POINTS)}")


def main(folder: str, point: str, tables: str = "{}") -> None:
    from fst_core import tracking
    from tests.runs import run, tiny_config

    arm(point)
    uri = os.environ.get("MLFLOW_TRACKING_URI")

    def observe(event: dict[str, Any]) -> None:
        if uri and event["kind"] == "checkpoint":
            tracking.sync(Path(folder), uri)

    run(tiny_config(**json.loads(tables)), Path(folder), observe)


if __name__ == "__main__":
    main(*sys.argv[1:])
