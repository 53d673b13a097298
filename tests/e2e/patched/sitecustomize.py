"""What every Python process does first whose PYTHONPATH names this folder: as its variables say.

FST_TEST_HOLD "slow N" or "fast N", or several with commas between: the run waits in a slow phase,
after step N, or in the fast phase of cycle N, after its first rollouts. It does so once a place:
FST_TEST_HELD is a folder whose file "slow N" then holds its process number. It goes on when there
is a file "slow N go"; other processes do not wait.
FST_TEST_BACK "N": after its Nth slow step, this process's clock goes back by an hour.
"""

import importlib.abc
import importlib.util
import os
import sys
import time
from pathlib import Path

BACK_SECONDS = 3600.0


class WhenLoaded(importlib.abc.MetaPathFinder):
    """Calls a function with a module, once that is loaded."""

    def __init__(self, name, call):
        self.name = name
        self.call = call

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_call(module):
            load(module)
            self.call(module)

        spec.loader.exec_module = load_and_call
        return spec


PLACES = [place for place in os.environ.get("FST_TEST_HOLD", "").split(",") if place]


def hold(place):
    """Wait until somebody lets this process go on; only the first process that comes here."""
    if place not in PLACES:
        return
    folder = Path(os.environ["FST_TEST_HELD"])
    try:
        with (folder / place).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    while not (folder / f"{place} go").exists():
        time.sleep(0.1)


def turn_back():
    """Let this process's clock say an hour less from now on."""
    true = time.time
    time.time = lambda: true() - BACK_SECONDS


def patch(module):
    """Make sessions stop, or the clock go back, where the variables say."""
    session = module.Session
    back = os.environ.get("FST_TEST_BACK", "")
    step, evolve, roll_out = session.step, session.evolve, session._roll_out

    def step_and_hold(self):
        step(self)
        hold(f"slow {self.step_done}")
        if back and self.step_done == int(back):
            turn_back()

    def evolve_known_cycle(self, cycle, start, stop):
        self.evolving = cycle
        evolve(self, cycle, start, stop)

    def roll_out_and_hold(self, loop, *given):
        done = roll_out(self, loop, *given)
        if loop == "fast":
            hold(f"fast {self.evolving}")
        return done

    session.step = step_and_hold
    session.evolve = evolve_known_cycle
    session._roll_out = roll_out_and_hold


if PLACES or "FST_TEST_BACK" in os.environ:
    sys.meta_path.insert(0, WhenLoaded("fst_core.session", patch))
