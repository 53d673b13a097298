"""Ctrl-C, or a polite kill, that cannot get lost.

Python drops a KeyboardInterrupt that is raised within a `__del__` or a callback of the collector,
and the program goes on. So what was asked is remembered, and a run asks between two phases.
"""

import signal
from types import FrameType

_asked = False


def end_on(*numbers: signal.Signals) -> None:
    """Have signals raise KeyboardInterrupt, here and wherever `stop_if_asked` is called."""
    for number in numbers:
        signal.signal(number, _interrupt)


def stop_if_asked() -> None:
    """Raise if such a signal has come, though nobody may have heard of it.

    Raises:
        KeyboardInterrupt: for that signal.
    """
    if _asked:
        raise KeyboardInterrupt


def _interrupt(_: int, __: FrameType | None) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt
