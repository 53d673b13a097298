"""Records survive JSON."""

import json

import pytest

from fst_core.records import Completion, StopReason, completion_from_json, to_json, well_formed


@pytest.mark.parametrize("reason", list(StopReason))
def test_a_completion_survives_json(reason: StopReason) -> None:
    done = Completion((3, 5, 2), (-0.5, -1.25e-7, 0.0), "ab\n", reason, 7)
    assert completion_from_json(json.loads(json.dumps(to_json(done)))) == done


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        ("plain \U0001f600 \ufeff text", "plain \U0001f600 \ufeff text"),
        ("a\ud83db", "a\ufffdb"),
        ("\ude00", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
    ],
)
def test_every_text_can_be_made_one_that_can_be_encoded(text: str, whole: str) -> None:
    assert well_formed(text) == whole
    assert well_formed(text).encode().decode() == whole
