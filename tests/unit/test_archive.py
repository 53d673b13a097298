"""Where a run is kept in a store; what is kept there is tested against a store (tests/e2e)."""

import errno
import fcntl
import gzip
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("boto3")

from fst_core import archive as archives
from fst_core.archive import MANIFEST, archive, fetch, run_url
from fst_core.cli_store import _path_of
from fst_core.config.model import ConfigError
from fst_core.content import Content
from fst_core.copies import PACKED, files_below
from fst_core.home import place_of
from fst_core.journal import JournalError
from fst_core.offline import RUN_FILES
from fst_core.run_folder import ARRIVING, BUSY, REPLACES
from fst_core.storage import StorageError, Store
from fst_core.storage_errors import CA_BUNDLES
from tests.unit.commands import call

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


def test_two_folders_are_never_kept_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("exp", "exp#1", "exp#2", "exp?1", "exp?2", "exp%231", "exp;1", " exp", "exp ")
    stores = [Store(run_url(STORE, Path("runs") / name / "fst-s0")) for name in names]
    assert [store.prefix for store in stores] == [f"prefix/{name}/fst-s0" for name in names]


def test_a_run_is_kept_by_where_it_is_not_by_how_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    written = ("../any/run", "../here/../any/run", "../any/./run", str(tmp_path / "any" / "run"))
    assert {run_url(STORE, Path(text)) for text in written} == {"s3://bucket/prefix/any/run"}
    assert run_url(STORE, Path("runs/../runs/a/b")) == "s3://bucket/prefix/a/b"
    assert run_url(STORE, Path("/run")) == "s3://bucket/prefix/run"


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


@pytest.mark.parametrize(
    "url",
    [
        *("s3://", "runs", "s3://KEY:SECRETX@bucket/runs", "s3://KEY:a/SECRETX@bucket/runs"),
        *("KEY:SECRETX@bucket/runs", "s3://bucket/a/../b", "s3://bucket/./b", "s3://bucket/.."),
        *(f"s3://bucket/a{sign}b" for sign in "\t\n\r\x00\x7f\x85\udcff\ufffe"),
    ],
)
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


# Manifests and journals that are damaged


class Held:
    """A store of one run, in memory."""

    def __init__(self, url: str):
        self.url = url

    objects: dict[str, bytes]
    progress: Any

    def read(self, name: str) -> tuple[bytes, str] | None:
        return (self.objects[name], "v1") if name in self.objects else None

    def write(self, name: str, data: bytes, version: str | None) -> None:
        assert version == ("v1" if name in self.objects else None)
        self.objects[name] = data

    def names(self, below: str) -> dict[str, int]:
        return {n: len(data) for n, data in self.objects.items() if n.startswith(below)}

    def remove(self, names: list[str]) -> None:
        for name in names:
            del self.objects[name]

    def upload(self, stem: str, leaf: str, descriptor: int, content: Content, _: Any) -> str:
        self.objects[f"{stem}-1/{leaf}"] = os.pread(descriptor, content.size, 0)
        return f"{stem}-1/{leaf}"

    def download(self, name: str, path: Path, *_: Any) -> None:
        path.write_bytes(self.objects[name])

    def forget_uploads(self, *_: Any) -> None:
        """None are unfinished."""


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the store of every archive holds."""
    monkeypatch.setattr(Held, "objects", {}, raising=False)
    monkeypatch.setattr(archives, "Store", Held)
    return Held.objects


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "study" / "fst-s0"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text(
        json.dumps({"seq": 0, "kind": "run", "config": {}}) + "\n"
    )
    return folder


FILE: dict[str, Any] = {"object": "o", "sha256": "s", "size": 1}
WHOLE: dict[str, Any] = {
    "format": 1,
    "run": "r",
    "position": {"checkpoint": 1, "ended": False, "events": 2},
    "files": {"journal.jsonl": FILE},
    "removed": [],
}
POSITION = WHOLE["position"]
FILES: list[Any] = [[], {"journal.jsonl": 5}, {"../x": FILE}]
FILES += [{"journal.jsonl": {**FILE, key: None}} for key in FILE]
POSITIONS: list[Any] = [{}, [], 3, {**POSITION, "events": "2"}, {**POSITION, "events": None}]
TOLD: list[Any] = [[], None, {}, {**WHOLE, "run": None}]
TOLD += [{**WHOLE, "files": files} for files in FILES]
TOLD += [{**WHOLE, "position": position} for position in POSITIONS]
TOLD += [{**WHOLE, "removed": removed} for removed in (None, [["o"]], [3])]
DAMAGED = [b"", b"\xff\xfe", b"[" * 100_000, *(json.dumps(told).encode() for told in TOLD)]


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_manifest_is_told_and_replaced_on_demand(
    data: bytes, run: Path, objects: dict[str, bytes]
) -> None:
    url = "s3://bucket/study/fst-s0"
    objects[MANIFEST] = data
    for use in (lambda: archive(run, url), lambda: fetch("s3://bucket", run)):
        with pytest.raises(StorageError, match=r"manifest\.json is damaged .*archive --replace"):
            use()
    assert objects == {MANIFEST: data}
    assert archive(run, url, instead=True).mended
    assert not archive(run, url, instead=True).mended
    assert fetch("s3://bucket", run).further


def test_a_manifest_of_another_version_is_not_replaced(
    run: Path, objects: dict[str, bytes]
) -> None:
    objects[MANIFEST] = data = json.dumps({**WHOLE, "format": 2}).encode()
    with pytest.raises(StorageError, match="has another format"):
        archive(run, "s3://bucket/study/fst-s0", instead=True)
    assert objects == {MANIFEST: data}


def test_the_command_says_that_a_damaged_manifest_was_replaced(
    run: Path, objects: dict[str, bytes]
) -> None:
    objects[MANIFEST] = b"{"
    refused = call("archive", run, "--to", "s3://bucket")
    assert (refused.code, "fst archive --replace RUN" in refused.err) == (1, True)
    first, second = (call("archive", run, "--to", "s3://bucket", "--replace") for _ in range(2))
    assert "was damaged there is replaced" in first.err and "damaged" not in second.err


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("journal.jsonl", b"", "its journal is empty"),
        ("journal.jsonl", b'{"seq": 0, "kind": "ru', "its journal is empty"),
        ("journal.jsonl", b"\n", "journal.jsonl:1: damaged line"),
        ("journal.jsonl", b"garbage\n", "journal.jsonl:1: damaged line"),
        ("journal.jsonl", b"\xff\n", "journal.jsonl:1: damaged line"),
        ("journal.jsonl", b"[]\n", "journal.jsonl:1: the line is no event"),
        ("journal.jsonl", b'{"seq": 1, "kind": "run"}\n', "sequence 1, expected 0"),
        ("journal.jsonl.gz", gzip.compress(b""), "its journal is empty"),
        ("journal.jsonl.gz", b"garbage", "damaged archive"),
        ("journal.jsonl.gz", gzip.compress(b"{}\n" * 99)[:-9], "damaged archive"),
    ],
)
def test_a_folder_whose_journal_tells_no_run_is_not_archived(
    name: str, data: bytes, said: str, run: Path, objects: dict[str, bytes]
) -> None:
    (run / "journal.jsonl").unlink()
    (run / name).write_bytes(data)
    with pytest.raises((StorageError, JournalError), match=said):
        archive(run, "s3://bucket/study/fst-s0", instead=True)
    assert not objects


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC])
def test_a_folder_in_which_nothing_can_be_written_is_archived(
    number: int, run: Path, objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(run.iterdir())
    opens, paths_open = os.open, Path.open

    def read_only(path: Path, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(number, os.strerror(number), str(path))
        return opens(path, flags, *rest, **more)

    def path_read_only(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if set(mode) & set("wax+"):
            raise OSError(number, os.strerror(number), str(path))
        return paths_open(path, mode, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "open", path_read_only)
    assert archive(run, "s3://bucket/study/fst-s0").files == 1
    assert set(run.iterdir()) == before and MANIFEST in objects


@pytest.mark.parametrize("writable", [True, False])
def test_two_archives_of_a_folder_wait_for_each_other(
    writable: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not writable:
        monkeypatch.setattr(archives, "BUSY", "no/such/folder/lock")
    with archives._alone(run):
        second = os.open(run / archives.BUSY if writable else run, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(second)


def test_a_damaged_packed_journal_is_told_when_its_run_comes_from_the_store(
    run: Path, objects: dict[str, bytes]
) -> None:
    archive(run, "s3://bucket/study/fst-s0")
    (run / "journal.jsonl").rename(run / "journal.jsonl.gz")
    with pytest.raises(StorageError, match=r"journal\.jsonl\.gz is damaged .*; remove it"):
        fetch("s3://bucket", run)


# Settings that are wrong


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A server that refuses every request with the S3 error in `code`; boto3 is led to it."""
    told = SimpleNamespace(code="AccessDenied")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"<Error><Code>{told.code}</Code><Message>no</Message></Error>".encode()
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """No lines between the tests'."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    told.port = server.server_port
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{told.port}")
    for name in CA_BUNDLES:
        monkeypatch.delenv(name, raising=False)
    yield told
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("code", "bucket", "said"),
    [
        ("NoSuchBucket", "bucket", "there is no bucket bucket in the store"),
        ("InvalidBucketName", "bucket", "'bucket' is no bucket's name"),
        *(
            ("NoSuchBucket", name, f"'{name}' is no bucket's name; correct the store's address")
            for name in ("Bucket", "my_bucket", "ab", "a..b", "-abc", "abc.", "a" * 64, "10.0.0.1")
        ),
        *(
            ("", name, f"'{name}' is no bucket's name")
            for name in ("a b", "a!b", "a#b", "bucket:80")
        ),
        *(
            (code, "bucket", "refuses the region .*; correct AWS_DEFAULT_REGION")
            for code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
        ),
        ("KeyTooLongError", "bucket", "too long for the store .*; shorten FST_STORE, or the run f"),
        ("InvalidArgument", "bucket", "InvalidArgument: no.*, so put that right, then do the same"),
        ("RequestTimeout", "bucket", "RequestTimeout: no.*, so try the same again later$"),
    ],
)
def test_what_the_store_refuses_is_told_with_its_cause(
    code: str, bucket: str, said: str, answering: SimpleNamespace
) -> None:
    answering.code = code
    with pytest.raises(StorageError, match=said):
        Store(f"s3://{bucket}/runs").names()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *(("AWS_DEFAULT_REGION", region, f"^'{region}' is no name of a region; set AWS_DEFAULT_R")
          for region in ("not a region", "eu_west", "-eu")),
        ("AWS_CA_BUNDLE", "/nowhere/ca.pem", "^AWS_CA_BUNDLE = '/nowhere/ca.pem' is no file"),
        ("AWS_CA_BUNDLE", "/", "^AWS_CA_BUNDLE = '/' is no file; correct it"),
        ("AWS_CA_BUNDLE", __file__, "no secure connection .*; set AWS_CA_BUNDLE to a file"),
        ("REQUESTS_CA_BUNDLE", "/nowhere", "^REQUESTS_CA_BUNDLE = '/nowhere' is no file"),
        ("AWS_DEFAULT_REGION", "us-east-1", "no secure connection .*_S3 to its http:// address"),
        *(("AWS_ENDPOINT_URL_S3", url, "^AWS_ENDPOINT_URL_S3 is no address .*; write http://HOST")
          for url in ("nonsense", "ftp://ann:hunter2@127.0.0.1", "http://ann:hunter2@h:99999")),
    ],
)  # fmt: skip
def test_a_setting_of_the_store_that_is_wrong_is_named(
    name: str, value: str, said: str, answering: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"https://127.0.0.1:{answering.port}")
    monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=said) as refused:
        Store("s3://bucket/runs").names()
    assert "hunter2" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_setting_that_is_no_address_is_not_called_one(
    answering: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "many")
    with pytest.raises(StorageError, match=r"'many'.*; correct that value in the variables"):
        Store("s3://bucket/runs").names()


def test_what_others_leave_in_a_checkpoint_is_no_part_of_it(tmp_path: Path) -> None:
    inside = tmp_path / "checkpoints" / "0001"
    for name in ("state.json", ".DS_Store", "slow/._model.safetensors", "slow/model.safetensors"):
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).touch()
    (inside / ".nfs").mkdir()
    (inside / ".nfs" / "0001").touch()
    kept = [str(path.relative_to(inside)) for path in files_below(inside)]
    assert kept == ["slow/model.safetensors", "state.json"]


def test_a_place_is_the_same_by_a_link_to_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to("project")
    monkeypatch.chdir(tmp_path / "link")
    night = Path("runs/nightly/2026-11-28/demo/fst-s0")
    assert place_of(tmp_path / "link" / night) == place_of(night) == str(night.relative_to("runs"))


def test_a_run_that_was_archived_can_be_begun_afresh() -> None:
    assert {BUSY, REPLACES, ARRIVING, PACKED} <= RUN_FILES
