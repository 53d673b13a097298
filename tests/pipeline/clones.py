"""Copies of the working tree as git repositories of their own, in which DVC is really run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import yaml

from tests.pipeline.stages import declared

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

SMALL = {
    "steps": 2,
    "cycle_steps": 2,
    "problems_per_step": 2,
    "group_size": 4,
    "metric_calls": 12,
    "anchors": 2,
    "minibatch": 2,
    "proposals": 1,
    "micro_batch": 8,
    "warmup_steps": 1,
    "every": 2,
    "problems": 2,
    "samples": 1,
}
"""Settings with which a run of any study takes seconds."""


def environment(root: Path, **more: str) -> dict[str, str]:
    """Variables with which commands run the code of a clone, and not that of this tree."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DVC_")}
    return {**kept, "PATH": path, "PYTHONPATH": str(root), **more}


def run(
    root: Path, *words: str, check: bool = True, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a clone; raises AssertionError with its output where it fails."""
    done = subprocess.run(
        words, cwd=root, env=environment(root, **more), capture_output=True, text=True, timeout=900
    )
    assert not check or done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def clone(root: Path) -> Path:
    """Commit every file that git tracks here, or would add, in a new repository."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    run(root, "git", "init", "--quiet", "--initial-branch", "main")
    run(root, "git", "config", "user.name", "test")
    run(root, "git", "config", "user.email", "test@localhost")
    commit(root, "as it is")
    return root


def commit(root: Path, message: str) -> None:
    """Commit everything in a clone."""
    run(root, "git", "add", "--all")
    run(root, "git", "commit", "--quiet", "--allow-empty", "--message", message)


def shrink(root: Path, kept: Mapping[str, Collection[str]]) -> None:
    """Leave some runs of the pipeline in a clone, and make them take seconds; pools stay whole.

    Runs of a sequence stay as long as they are: their steps are its tasks'.

    Args:
        kept: by stage, the runs (ARM-SEED) that stay; other runs' stages go, and the base model's.
    """
    for path in (root / "configs/tiny").glob("*.toml"):
        runs, suites, rest = path.read_text().partition("[[evaluation.suites]]")
        if "sequence" not in runs:
            path.write_text(re.sub(r"(?m)^(\w+) = \d+$", _smaller, runs) + suites + rest)
    path = root / "dvc.yaml"
    pipeline = yaml.safe_load(path.read_text())
    for name, stage in list(pipeline["stages"].items()):
        if "foreach" in stage:
            every = stage["foreach"].items()
            stage["foreach"] = {run: item for run, item in every if run in kept.get(name, ())}
            if not stage["foreach"]:
                del pipeline["stages"][name]
    del pipeline["plots"], pipeline["stages"]["base_model"]
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False))
    made = {out for stage in declared(root).values() for out in stage.outs}
    report = pipeline["stages"]["report"]
    report["deps"] = [dep for dep in report["deps"] if dep in made or not dep.startswith("runs/")]
    studies = sorted({"/".join(dep.split("/")[:3]) for dep in report["deps"] if dep in made})
    report["cmd"][0] = f"fst report {' '.join(studies)} --out outputs/report"
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False))


def _smaller(match: re.Match[str]) -> str:
    name = match[1]
    return f"{name} = {SMALL[name]}" if name in SMALL else match[0]
