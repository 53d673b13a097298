"""Which GPUs of this host a run computes on: slots on the Prefect server, and cards of its own.

    python -m tasks.cards      # tell the server how many cards this host has

The slot, of the concurrency limit `gpu-HOSTNAME`, makes runs wait for each other where people see
it; the lock on the card makes sure that no two processes of one user share a card, whichever
server they report to.
"""

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from prefect import get_client, get_run_logger
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from fst_core.config import RunConfig
from fst_core.failures import sentence_for
from tasks.tries import Refused

FAKED = "FST_CARDS"
"""Variable with a number of cards to take as there, for tests on hosts without one."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
LEASE_SECONDS = 60
"""A run that died gives its slot back within this time; the slot of a living one is renewed."""
POLL_SECONDS = 2.0
_KEPT: dict[str, TextIO] = {}
"""Locks that last as long as this process: CUDA, once begun, stays on its card."""


def cards() -> list[str]:
    """The cards that this process may use, by the name under which CUDA finds each."""
    faked = os.environ.get(FAKED)
    if faked is not None:
        if not faked.isdecimal():
            raise Refused(f"{FAKED} = {faked!r} is no number of cards; correct it, or unset it")
        return [str(index) for index in range(int(faked))]
    present = _present()
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return present
    chosen = [name.strip() for name in visible.split(",")]
    named = [present[int(c)] if c.isdigit() and int(c) < len(present) else c for c in chosen]
    return [name for name in named if name in present]


def _present() -> list[str]:
    """UUIDs of this host's cards, in the order of their places in the machine."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)
    return re.findall(r"^GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)", listed.stdout, re.MULTILINE)


def wanted_cards(config: RunConfig) -> list[str]:
    """The cards that a run could compute on; none where it computes on the CPU."""
    device = config.policy.device
    if device not in ("auto", "cuda") and not device.startswith("cuda:"):
        return []
    found = cards()
    number = device.partition(":")[2]
    return found[int(number) : int(number) + 1] if number.isdigit() else found


def limit_name() -> str:
    """The concurrency limit whose slots are this host's cards."""
    return f"gpu-{socket.gethostname()}"


def make_limit(count: int | None = None) -> str | None:
    """Give this host's limit one slot per card; its name, or None where there is no card.

    Args:
        count: number of cards; None counts them.
    """
    slots = len(cards()) if count is None else count
    if not slots:
        return None
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(limit_name(), slots)
    return limit_name()


@contextmanager
def cards_for(config: RunConfig, count: int = 1) -> Iterator[list[str]]:
    """In a flow: wait for slots and cards, and hold them while the block lasts.

    CUDA sees these cards alone, so enter the block before anything begins CUDA. A process in which
    CUDA has begun keeps its card until it ends.

    Args:
        count: processes of the run, each on a card of its own.
    Yields:
        The cards' names; none for a run on the CPU.
    Raises:
        Refused: if the server has no limit for this host, or it has too few cards.
    """
    wanted = wanted_cards(config)
    if not wanted:
        yield []
        return
    if count > len(wanted):
        raise Refused(
            f"{count} processes need a card each, and {socket.gethostname()} has {len(wanted)} "
            "for them; lower processes"
        )
    with ExitStack() as stack:
        _refuse_missing_limit()
        stack.enter_context(
            concurrency(
                limit_name(),
                occupy=count,
                lease_duration=LEASE_SECONDS,
                strict=True,
                raise_on_lease_renewal_failure=False,  # the card is still ours by its lock
            )
        )
        names = list[str]()
        for _ in range(count):
            left = [name for name in wanted if name not in names]
            names.append(stack.enter_context(own_card(left)))
        told = ", ".join(names)
        get_run_logger().info("computes on card %s of %s", told, socket.gethostname())
        if ":" not in config.policy.device:
            stack.enter_context(_only(names))
        yield names


def _refuse_missing_limit() -> None:
    try:
        with get_client(sync_client=True) as client:
            client.read_global_concurrency_limit_by_name(limit_name())
    except ObjectNotFound as error:
        raise Refused(
            f"the Prefect server has no concurrency limit {limit_name()!r}, so runs could share a "
            "card; run `python -m tasks.cards` on this host"
        ) from error


@contextmanager
def own_card(wanted: Sequence[str]) -> Iterator[str]:
    """Hold the lock of one of some cards, waiting for it; the card's name."""
    kept = next((name for name in wanted if name in _KEPT), None)
    if kept is not None:
        yield kept
        return
    name, file = _first_free(wanted)
    try:
        yield name
    finally:
        if _cuda_begun():
            _KEPT[name] = file
        else:
            file.close()


def _first_free(wanted: Sequence[str]) -> tuple[str, TextIO]:
    told = False
    while True:
        for name in wanted:
            file = _lock(name)
            if file is not None:
                return name, file
        if not told:
            get_run_logger().info("every card is in use; waiting for %s", " or ".join(wanted))
        told = True
        time.sleep(POLL_SECONDS)


def _lock(name: str) -> TextIO | None:
    """The open lock of a card; None where another process holds it. It goes with its process."""
    folder = Path(tempfile.gettempdir()) / f"fst-cards-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = (folder / f"{name}.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def _only(names: Sequence[str]) -> Iterator[None]:
    """Let CUDA, and processes begun in the block, see some cards."""
    before = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(names)
    try:
        yield
    finally:
        os.environ.pop(VISIBLE)
        if before is not None:
            os.environ[VISIBLE] = before


def _cuda_begun() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def main() -> None:
    """Command line of `python -m tasks.cards`."""
    try:
        name = make_limit()
    except Exception as error:
        sys.exit(f"error: {sentence_for(error) or f'the Prefect server: {error}'}")
    told = "this host has no card" if name is None else f"{name}: {len(cards())} slots"
    sys.stdout.write(told + "\n")


if __name__ == "__main__":
    main()
