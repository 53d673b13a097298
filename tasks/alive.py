"""Whose run it is: one whose flow run was given to another process stops at its next boundary, and
that other one waits for it.

A run that gives no sign of life is marked as crashed and put back, though its process may be alive:
stopped for a while, cut off from the server, or without the worker that started it. The lock of the
run folder keeps two processes from writing it at once.
"""

import os
import select
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect import get_client, get_run_logger
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, ObjectNotFound
from prefect.states import Cancelled

from fst_core.run_folder import JOURNAL, RunBusy, lock

if TYPE_CHECKING:
    from tasks.sessions import AnySession

POLL_SECONDS = 2.0
TOLD_SECONDS = 60.0
"""Least time between two lines about a wait."""
QUIET_SECONDS = 1800.0
"""A process that holds a run folder and has written nothing for so long is not waited for."""
BOUNDARIES = 3
"""Checkpoints that the other process may write while this one waits: one that had to stop does so
after its first, or the next one where the server did not answer it."""


class Lost(Abort):
    """The flow run is no longer this process's: it ends, and leaves the flow run's state alone."""


class Occupied(RunBusy):
    """The run folder is another run's, which goes on: another try would meet it again."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a flow run, of which a process is the owner until another start follows."""

    flow_run_id: UUID
    run_count: int
    """How often the flow run has been started, this time included."""

    def loss(self) -> str | None:
        """Why the flow run is no longer this attempt's; None while it is, as far as one knows."""
        try:
            with get_client(sync_client=True) as client:
                run = client.read_flow_run(self.flow_run_id)
        except ObjectNotFound:
            return "its flow run has been deleted"
        except httpx.HTTPError as error:  # no reason to stop a run
            get_run_logger().warning("the Prefect server could not be asked: %r", error)
            return None
        return self._loss(run)

    def _loss(self, run: FlowRun) -> str | None:
        if run.state is None or not run.state.is_running():
            return f"its flow run is {run.state_name}: {_message(run)}"
        if run.run_count != self.run_count:
            return f"its flow run has been started again (start {run.run_count})"
        return None

    def stop_if_lost(self, session: "AnySession", saved: bool) -> None:
        """At a boundary between phases: go on only while the flow run is this attempt's.

        Args:
            saved: whether the session's checkpoint of this boundary is written.
        Raises:
            Lost: if it is another's, or shall stop; the checkpoint is written then.
        """
        loss = self.loss()
        if loss is None:
            return
        if not saved:
            session.save()
        self._end(f"{session.folder}: stopped at a checkpoint, since {loss}")

    def wait_for(self, folder: Path) -> None:
        """Wait while another process writes a run folder, until it comes to a boundary.

        Raises:
            Occupied: if it goes on beyond a boundary, so that it is a run of its own.
            RunBusy: if it writes nothing for half an hour.
            Lost: if the flow run is meanwhile no longer this attempt's.
        """
        if not folder.is_dir():
            return
        holder: Holder | None = None
        while True:
            try:
                lock(folder).close()
                return
            except RunBusy as busy:
                holder = holder or Holder(folder, busy.holder)
                holder.look()
            if (loss := self.loss()) is not None:
                self._end(f"{folder}: waits no longer, since {loss}")
            time.sleep(POLL_SECONDS)

    def _end(self, why: str) -> None:
        """Raise Lost; where the flow run is to be cancelled, and its worker gone, it now is."""
        get_run_logger().warning("%s", why)
        with suppress(httpx.HTTPError, ObjectNotFound), get_client(sync_client=True) as client:
            run = client.read_flow_run(self.flow_run_id)
            if run.state is not None and run.state.is_cancelling():
                client.set_flow_run_state(run.id, Cancelled(message=why))
        raise Lost(why)


class Holder:
    """The process that writes a run folder, as seen in the run's journal."""

    def __init__(self, folder: Path, name: str):
        """`name` tells which process it is; empty if that is unknown."""
        self.path = folder / JOURNAL
        self.name = name
        self.size, self.first = self._state()
        self.moved = self.told = time.monotonic()
        self.who = f"{folder} is being written by another process"
        get_run_logger().info(
            "%s; waiting for its next checkpoint%s", self.who, f" ({name})" if name else ""
        )

    def look(self) -> None:
        """Tell how far it is.

        Raises:
            Occupied: if it goes on, however long one waits.
            RunBusy: if it seems to hang.
        """
        now, (size, checkpoints) = time.monotonic(), self._state()
        if size != self.size:
            self.size, self.moved = size, now
        who = f"{self.who} ({self.name})" if self.name else self.who
        if checkpoints - self.first >= BOUNDARIES:
            raise Occupied(
                f"{who}, which is a run of its own and goes on; wait until that has ended, or "
                "give this one another name (name=... among the overrides), seed or folder (runs)",
                self.name,
            )
        if now - self.moved > QUIET_SECONDS:
            raise RunBusy(
                f"{who}, which has written nothing for {(now - self.moved) / 60:.0f} minutes; if "
                "it hangs, stop it, then start this run again: it goes on at the last checkpoint",
                self.name,
            )
        if now - self.told > TOLD_SECONDS:
            self.told = now
            text = "still waiting for %s: %d bytes, the last %.0f s ago"
            get_run_logger().info(text, self.path, size, now - self.moved)

    def _state(self) -> tuple[int, int]:
        """Size of the journal, and how many checkpoints it tells of."""
        data = self.path.read_bytes() if self.path.exists() else b""
        return len(data), data.count(b'"kind": "checkpoint"')


def outlive_reader(descriptors: Sequence[int] = (1, 2)) -> None:
    """Let this process go on when the worker that reads its output is gone.

    Without a reader, the next line logged would end it: to Prefect's console, a broken pipe is a
    reason to exit. From then on, what is written there is dropped; the server still gets the log.
    """
    pipes = [number for number in descriptors if stat.S_ISFIFO(os.fstat(number).st_mode)]
    if pipes:
        threading.Thread(target=_drop_unread, args=(pipes,), daemon=True).start()


def _drop_unread(pipes: Sequence[int]) -> None:
    poll, left = select.poll(), set(pipes)
    for number in pipes:
        poll.register(number, 0)  # errors are told unasked
    while left:
        for number, _ in poll.poll():
            poll.unregister(number)
            left.discard(number)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


def current_attempt() -> Attempt:
    """In a flow: the attempt that this process is."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None, "only a flow has an attempt"
    return Attempt(context.flow_run.id, context.flow_run.run_count)


def _message(run: FlowRun) -> str:
    return (run.state.message if run.state else None) or "no reason is given"
