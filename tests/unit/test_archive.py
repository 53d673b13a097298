"""Where a run is kept in a store; what is kept there is tested against a store (tests/e2e)."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")

from fst_core.archive import _read_manifest, run_url
from fst_core.cli_store import _path_of
from fst_core.config.model import ConfigError
from fst_core.storage import StorageError, Store

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


@pytest.mark.parametrize("url", ["s3://[/x", "s3://", "runs", "s3://KEY:SECRETX@bucket/runs"])
def test_an_address_that_is_none_is_refused_without_a_secret(url: str) -> None:
    with pytest.raises(StorageError, match="address of a store") as refused:
        Store(url)
    assert "SECRETX" not in str(refused.value)


def test_a_password_in_the_servers_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://user:hunter2@127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(StorageError, match="does not answer") as refused:
        Store("s3://bucket/runs").names()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "files", [[], {"journal.jsonl": {"object": "o"}}, {"journal.jsonl": 5}, {"../x": {}}]
)
def test_a_damaged_manifest_is_told(files: Any) -> None:
    class Holding:
        url = "s3://bucket/runs/demo/fst-s0"

        def read(self, name: str) -> tuple[bytes, str]:
            told = {"format": 1, "run": "r", "position": {}, "files": files, "removed": []}
            return json.dumps(told).encode(), "version"

    with pytest.raises(StorageError, match=r"manifest\.json (is damaged|names files)"):
        _read_manifest(Holding())  # type: ignore[arg-type]
