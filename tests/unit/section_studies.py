"""Studies for the tests of report sections: run folders of arms with any name, read back."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fst_core.report.markup import join
from fst_core.report.runs import read_runs
from fst_core.report.section import Section, Study
from fst_core.report.summary import summarize
from fst_core.report.tables import all_tables
from tests.journals import JournalWriter, start


def begin(root: Path, arm: str, seed: int, like: str = "rl", **changes: Any) -> JournalWriter:
    """A run folder of an arm with any name, whose config is that of the built-in arm `like`."""
    writer = start(root / f"{arm}-s{seed}", like, seed, **changes)
    config = writer.path.with_name("config.json")
    config.write_text(json.dumps({**json.loads(config.read_text()), "arm": arm}))
    return writer


def read_study(root: Path) -> Study:
    """The study of every run folder under `root`, in the order of their names."""
    runs = read_runs(sorted(root.iterdir()))
    tables = all_tables(runs)
    return Study("synthetic", runs, summarize(runs, tables["curves"]), tables)


def answer(section: Callable[[Study], Section | None], root: Path) -> Section:
    """What a section says of the runs under `root`; its summary is JSON without NaN."""
    found = section(read_study(root))
    assert found is not None
    json.dumps(found.summary, allow_nan=False)
    return found


def told(section: Section) -> str:
    """The HTML of a section's body."""
    return join(*section.body)


def sequence(names: Sequence[str], task_steps: int) -> Mapping[str, Any]:
    """Config changes that make a run train on tasks one after another."""
    tasks = [{"type": "directives", "name": name} for name in names]
    environment = {"type": "sequence", "task_steps": task_steps, "tasks": tasks}
    steps = task_steps * len(names)
    return {
        "environment": environment,
        "loop": {"steps": steps, "cycle_steps": 2, "problems_per_step": 4, "group_size": 4},
    }
