"""Servers that outlive the command which started them, told apart from later ones by start time.

Each is the leader of a session of its own, so that what it started can be ended with it. Process
numbers are used again, after a reboot above all: a record also holds the boot and the clock tick at
which the process began. Reads /proc, so Linux only.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
STATE, SESSION, BEGAN = 0, 3, 19
"""Fields of /proc/PID/stat, counted from behind the command's name."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was started, as it is kept in a file."""

    pid: int
    boot: str
    began: int
    """Clock ticks after the boot."""


def start(command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> Started:
    """Start a command in `folder`, its output appended to `log`, in a session of its own."""
    with log.open("a") as output:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.returncode = 0  # whoever is its parent later reaps it; Popen shall not warn
    fields = _stat(process.pid)
    return Started(process.pid, _boot(), int(fields[BEGAN]) if fields else -1)


def alive(process: Started) -> bool:
    """Whether the very process is still running."""
    return _is_leader(process) and _stat(process.pid)[STATE] != "Z"


def end(process: Started, grace_seconds: float) -> None:
    """End a process and all of its session: asked at first, killed after the time of grace."""
    _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while members(process):
        if time.monotonic() > deadline:
            _signal(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        _reap(process)


def members(process: Started) -> list[int]:
    """Living processes of the session; none where the leader's number now means another."""
    if (
        process.pid < 2
        or process.boot != _boot()
        or (_stat(process.pid) and not _is_leader(process))
    ):
        return []
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = {number: _stat(number) for number in numbers}
    return [
        number
        for number, fields in stats.items()
        if fields and fields[STATE] != "Z" and int(fields[SESSION]) == process.pid
    ]


def _signal(process: Started, number: signal.Signals) -> None:
    for pid in members(process):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _reap(process: Started) -> None:
    with suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def _is_leader(process: Started) -> bool:
    fields = _stat(process.pid)
    return bool(fields) and int(fields[BEGAN]) == process.began and process.boot == _boot()


def _boot() -> str:
    return BOOT.read_text().strip()


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
