"""Run folders as training leaves them, without the training: journal, config, checkpoints."""

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

NEEDED = {"run": {"config": {}}, "slow": {"step": 1, "metrics": {}}}
"""What every reader of a journal takes for granted of its events."""
SMALL, LARGE = 1000, 40_000_000
"""Bytes of an optimizer's file, and of weights that go over in three parts."""


def begin(folder: Path, seed: int = 0, time: float = 1000.0) -> Path:
    """A run with its first event."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"seed": seed}))
    (folder / "lock").write_text("1")
    append(folder, "run", time)
    return folder


def append(folder: Path, kind: str, time: float = 1000.0, **fields: object) -> None:
    journal = folder / "journal.jsonl"
    seq = journal.read_bytes().count(b"\n") if journal.exists() else 0
    event = {"seq": seq, "time": time, "kind": kind, **NEEDED.get(kind, {}), **fields}
    with journal.open("a") as file:
        file.write(json.dumps(event) + "\n")


def checkpoint(folder: Path, phase: int, weights: int | None = LARGE, keep: int = 2) -> Path:
    """The next checkpoint; without weights of its own it shares those of the one before."""
    root = folder / "checkpoints"
    before = sorted(root.glob("[0-9]*"))
    target = root / f"{phase:04d}"
    target.mkdir(parents=True)
    if weights is None:
        shutil.copytree(before[-1] / "slow", target / "slow", copy_function=os.link)
    else:
        (target / "slow").mkdir()
        noise = random.Random(phase)
        (target / "slow" / "model.safetensors").write_bytes(noise.randbytes(weights))
        (target / "slow" / "optimizer.pt").write_bytes(noise.randbytes(SMALL))
    (target / "state.json").write_text(json.dumps({"next_phase": phase}))
    append(folder, "checkpoint")
    for old in sorted(root.glob("[0-9]*"))[:-keep]:
        shutil.rmtree(old)
    return target


def tree(folder: Path) -> dict[str, str]:
    """Hash of every file that makes a run."""
    names = ["config.json", "journal.jsonl"]
    paths = [folder / name for name in names] + sorted((folder / "checkpoints").rglob("*"))
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
    }
