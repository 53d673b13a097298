"""Small configs and helpers that many tests use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fst_core.config import RunConfig

TINY: dict[str, Any] = {
    "name": "test",
    "environment": {"type": "directives", "task": "echo", "required": ["dashes"]},
    "policy": {"type": "tiny", "max_new_tokens": 10},
    "loop": {"steps": 4, "cycle_steps": 2, "problems_per_step": 4, "group_size": 4},
    "contexts": {"size": 2},
    "fast": {"type": "gepa", "metric_calls": 40, "anchors": 4, "minibatch": 2, "proposals": 2},
    "slow": {"type": "cispo", "learning_rate": 1e-3, "warmup_steps": 1, "beta": 0.0},
    "evaluation": {"every": 2, "problems": 4, "samples": 1},
}


def tiny_config(**tables: Any) -> RunConfig:
    """The small run with some tables changed: `tiny_config(slow={"beta": 0.1})`."""
    data = dict(TINY)
    for name, change in tables.items():
        old = data.get(name)
        if isinstance(old, dict) and isinstance(change, dict) and "type" not in change:
            change = {**old, **change}
        data[name] = change
    if data["slow"].get("type") == "cispo":
        batch = data["loop"]["problems_per_step"] * data["loop"]["group_size"]
        data["slow"] = {"micro_batch": batch, **data["slow"]}
    return RunConfig.model_validate(data)


def run(
    config: RunConfig,
    folder: Path,
    observer: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run to the end in this process; the journal's events."""
    # torch and TRL load here, so that light tests stay light.
    from fst_core.interleave import interleave
    from fst_core.journal import read_events
    from fst_core.session import Session

    with Session(config, folder, observer) as session:
        interleave(session)
    return read_events(folder / "journal.jsonl")
