"""What whoever launched a process says of it, read from the environment without torch."""

import functools
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from fst_core.config import NoSlow, RunConfig
from fst_core.config.model import ConfigError
from fst_core.counting import counted

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a process of several cannot do without, beside WORLD_SIZE."""
STUDIED = "FST_STUDIED"
"""Variable that a study sets for the processes of its runs: it has told what holds for all."""
SILENT_SECONDS = 10.0
"""Longest wait of a process that stays silent for the launcher to end it."""
TRIED = 4
"""Processes that any host may have, however few its cores: enough to try a split."""
LAST_PORT = 65535
REMEDY = "start with torchrun or accelerate launch, or unset WORLD_SIZE for one process"


@dataclass(frozen=True, slots=True)
class Launch:
    """Which process of how many this one is."""

    rank: int = 0
    local_rank: int = 0
    """Its number on this host."""
    size: int = 1
    """Processes of the run, on all hosts."""


def launch() -> Launch:
    """The launch of this process; of one alone where none is in the environment.

    Raises:
        ConfigError: if the launcher's variables are no numbers, some are missing, or the address
            of the first process is none.
    """
    size = _number("WORLD_SIZE", 1)
    if size < 1:
        raise ConfigError(f"WORLD_SIZE = {size} is no number of processes; {REMEDY}")
    if size == 1:
        return Launch()
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        raise ConfigError(f"WORLD_SIZE = {size} is set without {', '.join(missing)}; {REMEDY}")
    rank, local_rank = _number("RANK", 0), _number("LOCAL_RANK", 0)
    port, address = _number("MASTER_PORT", 0), os.environ["MASTER_ADDR"]
    if not 1 <= port <= LAST_PORT:
        raise ConfigError(f"MASTER_PORT = {port} is no port (1 to {LAST_PORT}); {REMEDY}")
    if not _resolves(address):
        raise ConfigError(f"MASTER_ADDR = {address!r} is no host that is known here; {REMEDY}")
    if not 0 <= local_rank <= rank < size:
        raise ConfigError(
            f"RANK = {rank} and LOCAL_RANK = {local_rank} do not fit WORLD_SIZE = {size}; {REMEDY}"
        )
    return Launch(rank, local_rank, size)


def speaks() -> bool:
    """Whether this process tells what all processes of a host find: the first of a host does.

    Every process does where the launcher's variables cannot be read.
    """
    try:
        return launch().local_rank == 0
    except ConfigError:
        return True


def wait_to_be_ended() -> None:
    """Leave the first process of a launch the time to tell what all have found.

    The launcher ends every process as soon as one has failed.
    """
    with suppress(KeyboardInterrupt):
        time.sleep(SILENT_SECONDS)


def refuse_processes(config: RunConfig, size: int) -> None:
    """Refuse a number of processes that the run's batch or this host cannot be shared out to.

    A run without a slow part may have any number that the host bears: they share its rollouts.

    Raises:
        ConfigError: naming the setting, or the host's cores.
    """
    if ":" in config.policy.device:
        raise ConfigError(
            f"policy.device = {config.policy.device!r} puts {size} processes on one device; set "
            '"auto" or "cuda", and each takes its own'
        )
    if not isinstance(config.slow, NoSlow):
        _refuse_split(config, size)
    _refuse_crowd(size)


def _refuse_split(config: RunConfig, size: int) -> None:
    """Refuse a number of processes that does not divide a step's problems and micro-batches."""
    loop = config.loop
    if loop.problems_per_step % size:
        raise ConfigError(
            f"loop.problems_per_step = {loop.problems_per_step} cannot be split over {size} "
            "processes; launch a number of processes that divides it"
        )
    rows = loop.problems_per_step * loop.group_size // size
    try:
        config.slow.refuse_rows(rows, f"that each of {size} processes trains on")
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _refuse_crowd(size: int) -> None:
    """Refuse more processes than this host has cores, each of which holds a model of its own."""
    here = _number("LOCAL_WORLD_SIZE", size)
    cores = os.cpu_count() or 1
    if here > max(cores, TRIED):
        raise ConfigError(
            f"{here} processes on this host, which has {counted(cores, 'core')}, would only wait "
            f"for each other; start {max(cores, TRIED)} at most, or as many as it has GPUs"
        )


@functools.cache
def _resolves(address: str) -> bool:
    """Whether a host name or address is known; asked once a process."""
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError):
        return False
    return True


def _number(name: str, absent: int) -> int:
    text = os.environ.get(name) or str(absent)
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"{name} = {text!r} is no whole number; {REMEDY}") from error
