"""A signal to stop is obeyed between two phases, though the exception that told it was dropped."""

import signal

import pytest

from fst_core import interrupts
from fst_core.interleave import plan, remaining
from fst_core.interrupts import end_on, stop_if_asked
from tests.runs import tiny_config


class Runner:
    config = tiny_config()
    next_phase = 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_stops_a_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGUSR2)

    monkeypatch.setattr(interrupts, "_asked", False)
    before = signal.getsignal(signal.SIGUSR2)
    end_on(signal.SIGUSR2)
    try:
        phases = remaining(Runner())  # type: ignore[arg-type]
        assert next(phases) == plan(Runner.config)[0]
        Collected()
        with pytest.raises(KeyboardInterrupt):
            next(phases)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_run_that_nobody_stops_goes_through_all_of_its_phases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interrupts, "_asked", False)
    stop_if_asked()
    assert list(remaining(Runner())) == plan(Runner.config)  # type: ignore[arg-type]
