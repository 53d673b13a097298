"""The command line in this process, and one finished run that several tests look at."""

import atexit
import functools
import io
import os
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from fst_core.cli import main

CONFIG = """
name = "tiny"

[environment]
type = "directives"
task = "echo"
required = ["answer-tag", "dashes"]

[policy]
type = "tiny"
max_new_tokens = 12

[contexts]
size = 2

[loop]
steps = 2
cycle_steps = 1
problems_per_step = 4
group_size = 4

[fast]
type = "gepa"
metric_calls = 24
anchors = 4
minibatch = 2
proposals = 2

[slow]
type = "cispo"
learning_rate = 5e-4
warmup_steps = 1
beta = 0.0
micro_batch = 16

[evaluation]
every = 1
problems = 4
samples = 1

[study]
arms = ["base"]
seeds = [0]

[arms.broken.policy]
max_new_tokens = 512
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def call(*words: object) -> Answer:
    """Run `fst WORDS` in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Answer(code, out.getvalue(), err.getvalue())


def write_config(folder: Path, text: str = CONFIG) -> Path:
    """The tiny study's TOML in a folder."""
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def unreadable(path: Path, what: str) -> None:
    """Put at a path what is there and is no file; reading most of these would never end."""
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@functools.cache
def finished() -> tuple[Path, Path, Answer]:
    """(config, run folder, what the command said) of one whole run, made once per test process."""
    root = Path(tempfile.mkdtemp(prefix="fst-test-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    config = write_config(root)
    answer = call("run", config, "--runs", root / "runs", "--no-track")
    return config, root / "runs" / "tiny" / "fst-s0", answer
