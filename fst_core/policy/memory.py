"""What happens when a device runs out of memory: half the batch, once; then a clear end."""

import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate.utils.memory import clear_device_cache

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class MemoryFull(RuntimeError):
    """Memory ran out although the batch had been halved, or could not be."""


class Halving:
    """Runs a call in batches of a size, halved for good when memory first runs out.

    A call must be fit to be done again from its start: same size or not, same result. One object
    guards one place of one run (an engine, the training step).

    Args:
        knob: the setting that the size comes from, named to the user.
        may_retry: False where other processes wait inside the same call: the first time ends it.
    """

    def __init__(self, knob: str, may_retry: bool = True) -> None:
        self.knob = knob
        self.may_retry = may_retry
        self.halved = False

    def size(self, whole: int) -> int:
        """What a configured size is now."""
        return max(1, whole // 2) if self.halved else whole

    def run(self, call: Callable[[int], Result], whole: int) -> Result:
        """The result of `call(size)`.

        Raises:
            MemoryFull: the second time in a run, or where the size is 1 already.
        """
        try:
            return call(self.size(whole))
        except torch.OutOfMemoryError as error:
            self._refuse(whole, error)
        # Outside the handler, so that nothing keeps what the failed call had allocated.
        self.halved = True
        clear_device_cache(garbage_collection=True)
        logger.warning(
            "out of memory: going on with %s = %d, half of what is configured; "
            "set it so to have no retry",
            self.knob,
            self.size(whole),
        )
        return self.run(call, whole)

    def _refuse(self, whole: int, error: torch.OutOfMemoryError) -> None:
        if self.halved or whole == 1 or not self.may_retry:
            raise MemoryFull(
                f"out of memory with {self.knob} = {self.size(whole)}; lower {self.knob}, then run "
                "again: the last checkpoint is intact"
            ) from error
