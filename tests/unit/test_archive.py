"""Where a run is kept in a store; what is kept there is tested against a store (tests/e2e)."""

from pathlib import Path

import pytest

pytest.importorskip("boto3")

from fst_core.archive import run_url
from fst_core.cli_store import _path_of
from fst_core.config.model import ConfigError

STORE = "s3://bucket/prefix/"


@pytest.mark.parametrize(
    ("folder", "kept"),
    [
        ("runs/demo/fst-s0", "demo/fst-s0"),
        ("runs/nightly/2026-11-28/demo/fst-s0", "nightly/2026-11-28/demo/fst-s0"),
        ("other/demo/fst-s0", "other/demo/fst-s0"),
        ("/elsewhere/runs/demo/fst-s0", "demo/fst-s0"),
    ],
)
def test_a_run_is_kept_by_its_path_so_that_one_night_is_never_taken_for_another(
    folder: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_url(STORE, Path(folder)) == f"s3://bucket/prefix/{kept}"
    assert run_url(STORE, Path(folder).absolute()) == f"s3://bucket/prefix/{kept}"


def test_clones_in_two_places_keep_a_run_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = set()
    for clone in ("one", "two"):
        (tmp_path / clone).mkdir()
        monkeypatch.chdir(tmp_path / clone)
        kept.add(run_url(STORE, Path("runs/nightly/2026-11-28/demo/rl-s1")))
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://bucket/prefix/demo/fst-s0", "demo/fst-s0"),
        ("s3://bucket/prefix/nightly/2026-11-28/demo/fst-s0", "nightly/2026-11-28/demo/fst-s0"),
        ("s3://other/nightly/2026-11-28/demo/fst-s0", "demo/fst-s0"),
    ],
)
def test_a_run_comes_back_to_where_it_was_kept_from(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FST_STORE", STORE)
    assert _path_of(url) == Path(place)


@pytest.mark.parametrize("url", ["s3://bucket/fst-s0", "runs/demo/fst-s0", "s3://bucket/../../x"])
def test_what_is_no_archived_run_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no archived run"):
        _path_of(url)
