"""Plans: the order of phases, and which of them is the last."""

from typing import Any

import pytest

from fst_core.interleave import is_last, plan
from tests.runs import tiny_config

NONE = {"type": "none"}


@pytest.mark.parametrize("fast", [{}, {"fast": NONE}])
@pytest.mark.parametrize("slow", [{}, {"slow": NONE}])
@pytest.mark.parametrize("steps", [0, 1, 4, 7])
@pytest.mark.parametrize("cycle", [1, 3, 7])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_one_phase_is_the_last_and_it_ends_the_plan(
    fast: dict[str, Any], slow: dict[str, Any], steps: int, cycle: int, every: int
) -> None:
    loop = {"steps": steps, "cycle_steps": cycle}
    config = tiny_config(loop=loop, evaluation={"every": every}, **fast, **slow)
    phases = plan(config)
    assert [is_last(config, phase) for phase in phases] == [False] * (len(phases) - 1) + [True]
