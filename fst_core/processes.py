"""The process of a run, seen from outside: how it is started, what ends it, and why it ended."""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from fst_core.launch import STUDIED
from fst_core.run_folder import RunBusy

LOG = "log.txt"
"""The file of a run's folder that holds what its processes print."""
SENTENCE = "error: "
"""How a command begins the sentence that it ends with."""
PARENT = "FST_PARENT_PID"
"""Variable that tells a process which one started it."""
PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 20.0
"""Time an interrupted run has to close its files before it is killed."""


def spawn(
    command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a run's process in a session of its own, out of reach of the terminal's Ctrl-C.

    It ends when this process does (see `end_with_parent`), and holds its log until then, so that
    the last line of a log is of one process.

    Raises:
        RunBusy: if the process of another study writes that log.
    """
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        folder = Path(os.fsdecode(output.name)).parent
        raise RunBusy(f"another study, or flow, runs {folder}; wait for it or stop it") from error
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment, PARENT: str(os.getpid()), STUDIED: "1"},
        start_new_session=True,
    )


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """Have Linux end this process, by default as Ctrl-C would, when who started it is gone."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)
    if os.getppid() != int(parent):  # it was gone before
        sys.exit(f"{SENTENCE}what started this process (pid {parent}) is gone")


def end_processes(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, wait for all of them together, and kill those that do not."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def log_end(log: Path) -> int:
    """Where a log ends: the byte at which the next process will begin to write."""
    return log.stat().st_size if log.exists() else 0


def why_ended(log: Path, begin: int = 0, most: int = 1) -> str:
    """Why the processes of a run ended, by what they wrote to its log.

    Args:
        begin: byte at which they began to write.
        most: lines to tell where they ended without a sentence.
    Returns:
        The last sentence behind "error: "; else the last lines, each once; empty where nothing was
        written.
    """
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").strip().splitlines()
    told = [line.removeprefix(SENTENCE) for line in lines if line.startswith(SENTENCE)]
    return told[-1] if told else "\n".join(list(dict.fromkeys(lines))[-most:])
