"""Records survive JSON."""

import json

import pytest

from fst_core.records import Completion, StopReason, completion_from_json, to_json


@pytest.mark.parametrize("reason", list(StopReason))
def test_a_completion_survives_json(reason: StopReason) -> None:
    done = Completion((3, 5, 2), (-0.5, -1.25e-7, 0.0), "ab\n", reason, 7)
    assert completion_from_json(json.loads(json.dumps(to_json(done)))) == done
