"""Run a trainer's one long train() call step by step, without a thread.

Hugging Face's Trainer owns its loop. A greenlet gives that loop a stack of its own on the same
thread, so control can leave it in front of every step and come back later: no locks, no second
thread whose CUDA device, autocast state or exceptions would have to be carried over.
"""

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class Stepped:
    """A long-running call that pauses wherever it calls `pause`."""

    def __init__(self, call: Callable[[], Any]):
        self._call = call
        self._inner = greenlet(self._run)

    def _run(self) -> None:
        self._call()

    def pause(self) -> None:
        """Called inside the long call: hand control back to whoever resumed it."""
        if getcurrent() is self._inner:
            parent = self._inner.parent
            assert parent is not None
            parent.switch()

    def resume(self) -> None:
        """Run the call up to its next pause or its end; its exceptions are raised here.

        Raises:
            RuntimeError: if the call has already ended.
        """
        if self._inner.dead:
            raise RuntimeError("the training loop has already ended")
        self._inner.parent = getcurrent()
        self._inner.switch()

    @property
    def ended(self) -> bool:
        return bool(self._inner.dead)

    def close(self) -> None:
        """Unwind the call where it paused."""
        if self._inner and not self._inner.dead:
            self._inner.parent = getcurrent()
            self._inner.throw(GreenletExit)
