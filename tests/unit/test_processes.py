"""The process of a run, seen from outside."""

from pathlib import Path

import pytest

from fst_core.processes import why_ended


@pytest.mark.parametrize(
    ("wrote", "most", "told"),
    [
        ("12:00 | INFO | a\nerror: no arm 'x'; known\n", 1, "no arm 'x'; known"),
        ("error: first\nerror: second\nthe launcher's own words\n", 3, "second"),
        ("a\nb\nKeyError: 'x'\n\n", 1, "KeyError: 'x'"),
        ("a\nb\nKeyError: 'x'\n", 2, "b\nKeyError: 'x'"),
        ("gone\ngone\n", 5, "gone"),
        ("not valid \udcff UTF-8\n", 1, "not valid \ufffd UTF-8"),
        ("", 5, ""),
        ("an error: in the middle\n", 1, "an error: in the middle"),
    ],
)
def test_why_processes_ended(tmp_path: Path, wrote: str, most: int, told: str) -> None:
    """What an earlier process wrote is none of their words."""
    log, earlier = tmp_path / "log.txt", b"error: of an earlier process\n"
    log.write_bytes(earlier + wrote.encode(errors="surrogateescape"))
    assert why_ended(log, len(earlier), most) == told
