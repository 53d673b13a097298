"""Run folders to and from a real S3 store, and everything that may go wrong on the way.

No test needs a clock to be right: which copy is further is told by checkpoint, end and events, and
whether a file changed by its hash (`test_a_clock_that_was_set_back`).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from fst_core import copies, storage
from fst_core.archive import MANIFEST, OBJECTS, archive, fetch, restore, run_url
from fst_core.checkpoint import list_checkpoints
from fst_core.content import PART_BYTES, Content, content_of
from fst_core.journal import comparable, read_events
from fst_core.run_folder import EARLIER, RunBusy, ended, lock, set_aside
from fst_core.storage import StorageError, Store
from infra.servers import ROOT
from tests.e2e.lab import Lab
from tests.e2e.run_folders import LARGE, SMALL, append, begin, checkpoint, tree

PARTS = -(-LARGE // PART_BYTES)


@pytest.fixture
def url(servers: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of the test's own, with its keys in the environment."""
    for name, value in servers.env.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return f"s3://{servers.bucket}/{tmp_path.name}"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each S3 operation was called."""
    counted: Counter[str] = Counter()

    def count(model: Any, **_: Any) -> None:
        counted[model.name] += 1

    class Counting(boto3.Session):
        def client(self, *args: Any, **options: Any) -> Any:
            made = super().client(*args, **options)
            made.meta.events.register("before-call.s3", count)
            return made

    monkeypatch.setattr(storage.boto3, "Session", Counting)
    yield counted


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one checkpoint."""
    folder = begin(tmp_path / "study" / "fst-s0")
    checkpoint(folder, 2)
    return folder


def child(code: str, lab: Lab, *words: object) -> subprocess.CompletedProcess[str]:
    return lab.run(sys.executable, "-c", code, *map(str, words), check=False)


def manifest(url: str) -> dict[str, Any]:
    found = Store(url).read(MANIFEST)
    assert found is not None
    told: dict[str, Any] = json.loads(found[0])
    return told


def test_there_and_back(url: str, run: Path, tmp_path: Path, calls: Counter[str]) -> None:
    checkpoint(run, 3, weights=None)
    place = run_url(url, run)
    sent = archive(run, place)
    assert sent.size < 1.1 * LARGE, "shared weights are sent once"
    assert calls["UploadPart"] == PARTS
    other = tmp_path / "other" / "study" / "fst-s0"
    assert fetch(url, other).size == sent.size
    assert tree(other) == tree(run)
    weights = [other / "checkpoints" / n / "slow" / "model.safetensors" for n in ("0002", "0003")]
    assert weights[0].samefile(weights[1])
    assert not (other / ".arriving").exists()
    assert fetch(url, other).further


def test_only_what_changed_is_sent(url: str, run: Path, tmp_path: Path) -> None:
    place = run_url(url, run)
    archive(run, place)
    assert archive(run, place).files == 0
    checkpoint(run, 3, weights=None)
    assert archive(run, place).files == 2, "journal and state"
    checkpoint(run, 4)
    archive(run, place)
    append(run, "end")
    archive(run, place)
    kept = {entry["object"] for entry in manifest(place)["files"].values()}
    assert set(Store(place).names(OBJECTS)) == kept, "what the run no longer keeps is gone"
    assert fetch(url, tmp_path / "b" / "study" / "fst-s0").files == len(kept)
    assert tree(tmp_path / "b" / "study" / "fst-s0") == tree(run)


DIES = """
import os, signal, sys
from pathlib import Path
from fst_core.archive import archive
gone = 0
def die(path, count, size):
    global gone
    gone += size > 10_000_000
    if gone == 2:
        os.kill(os.getpid(), signal.SIGKILL)
archive(Path(sys.argv[1]), sys.argv[2], on_bytes=die)
"""


def test_an_upload_killed_in_the_middle_is_taken_up(
    url: str, run: Path, servers: Lab, tmp_path: Path, calls: Counter[str]
) -> None:
    place = run_url(url, run)
    assert child(DIES, servers, run, place).returncode == -signal.SIGKILL
    assert Store(place).read(MANIFEST) is None, "half a run is none"
    with pytest.raises(StorageError, match="no run at"):
        restore(place, tmp_path / "b" / "fst-s0")
    archive(run, place)
    assert calls["CreateMultipartUpload"] == 0
    assert calls["UploadPart"] <= PARTS - 2
    restore(place, tmp_path / "b" / "fst-s0")
    assert tree(tmp_path / "b" / "fst-s0") == tree(run)


def test_an_archive_killed_after_another_leaves_that_one_whole(
    url: str, run: Path, servers: Lab, tmp_path: Path
) -> None:
    place, before = run_url(url, run), tree(run)
    archive(run, place)
    checkpoint(run, 4, keep=1)
    assert child(DIES, servers, run, place).returncode == -signal.SIGKILL
    restore(place, tmp_path / "b" / "fst-s0")
    assert tree(tmp_path / "b" / "fst-s0") == before
    append(run, "rewind", to=-1)
    checkpoint(run, 5, keep=1)
    archive(run, place)
    kept = {entry["object"] for entry in manifest(place)["files"].values()}
    assert set(Store(place).names(OBJECTS)) == kept
    assert not Store(place)._unfinished(OBJECTS), "an upload nobody goes on with is ended"


def test_a_flipped_byte_is_found(url: str, run: Path, tmp_path: Path, servers: Lab) -> None:
    place = run_url(url, run)
    archive(run, place)
    path = "checkpoints/0002/slow/optimizer.pt"
    entry = manifest(place)["files"][path]
    data = bytearray((run / path).read_bytes())
    data[500] ^= 1
    store = Store(place)
    store.remove([entry["object"]])
    store.write(entry["object"], bytes(data), None)
    other = begin(tmp_path / "b" / "fst-s0")
    before = tree(other)
    with pytest.raises(StorageError, match=r"is damaged .SHA-256.*archive the run again"):
        restore(place, other)
    assert tree(other) == before
    shutil.rmtree(other)
    with pytest.raises(StorageError, match="is damaged"):
        restore(place, other)
    assert not (other / "journal.jsonl").exists()


def test_a_file_that_changes_on_the_way_is_refused(
    url: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = run / "checkpoints" / "0002" / "slow" / "model.safetensors"

    def then_spoil(descriptor: int, size: int) -> Content:
        content = content_of(descriptor, size)
        if size == LARGE:
            with weights.open("r+b") as file:
                file.seek(LARGE - 1)
                file.write(b"!")
        return content

    monkeypatch.setattr(copies, "content_of", then_spoil)
    with pytest.raises(StorageError, match="BadDigest"):
        archive(run, run_url(url, run))
    assert Store(run_url(url, run)).read(MANIFEST) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "refuses .* with these keys .SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "refuses .* with these keys .InvalidAccessKeyId"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, "does not answer at http://127.0.0.1:9"),
        ({"AWS_ENDPOINT_URL_S3": "no address"}, "AWS_ENDPOINT_URL_S3 is no address"),
        ({"FST_STORE": "s3://no-such-bucket/runs"}, "there is no bucket no-such-bucket"),
        ({"FST_STORE": "runs"}, "'runs/study/fst-s0' is no address of a store"),
    ],
)
def test_a_store_that_cannot_be_used_is_told_in_a_sentence(
    changed: dict[str, str], said: str, url: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    before = tree(run)
    place = run_url(changed.get("FST_STORE", url), run)
    with pytest.raises(StorageError, match=said):
        archive(run, place)
    with pytest.raises(StorageError, match=said):
        fetch(changed.get("FST_STORE", url), run)
    assert tree(run) == before


def test_no_keys(url: str, run: Path, servers: Lab, tmp_path: Path) -> None:
    absent = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    absent["AWS_EC2_METADATA_DISABLED"] = "true"
    done = servers.run("fst", "archive", str(run), "--to", url, check=False, **absent)
    assert done.returncode == 1
    assert "there are no keys for" in done.stderr


def test_a_store_that_goes_away_in_the_middle(
    url: str, run: Path, servers: Lab, tmp_path: Path, calls: Counter[str]
) -> None:
    place = run_url(url, run)
    stopped: list[str] = []

    def stop(path: str, count: int, size: int) -> None:
        if size > PART_BYTES and not stopped:
            stopped.append(path)
            servers.stop("s3")

    try:
        with pytest.raises(StorageError, match=r"does not answer.*goes on where this stopped"):
            archive(run, place, on_bytes=stop)
    finally:
        servers.start("s3")
    calls.clear()
    archive(run, place)
    assert (calls["CreateMultipartUpload"], calls["UploadPart"]) <= (0, PARTS - 1)
    restore(place, tmp_path / "b" / "fst-s0")
    assert tree(tmp_path / "b" / "fst-s0") == tree(run)


ARCHIVES = """
import sys
from pathlib import Path
from fst_core.archive import archive
archive(Path(sys.argv[1]), sys.argv[2])
"""


def test_two_archives_of_one_folder_at_once(
    url: str, run: Path, servers: Lab, tmp_path: Path
) -> None:
    place = run_url(url, run)
    words = [sys.executable, "-c", ARCHIVES, str(run), place]
    both = [subprocess.Popen(words, env=servers.env) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    kept = {entry["object"] for entry in manifest(place)["files"].values()}
    assert set(Store(place).names(OBJECTS)) == kept, "nothing was sent twice"
    restore(place, tmp_path / "b" / "fst-s0")
    assert tree(tmp_path / "b" / "fst-s0") == tree(run)


def test_two_hosts_archive_one_run_at_once(url: str, run: Path, tmp_path: Path) -> None:
    """The slower finds that the manifest it read has been replaced, and goes on from that one."""
    place, other = run_url(url, run), tmp_path / "other" / "fst-s0"
    archive(run, place)
    shutil.copytree(run, other)
    checkpoint(run, 3)
    checkpoint(other, 4)
    asked: list[str] = []

    def meanwhile(path: str, count: int, size: int) -> None:
        if not asked:
            asked.append(path)
            archive(run, place)

    archive(other, place, on_bytes=meanwhile)
    restore(place, tmp_path / "b" / "fst-s0")
    assert tree(tmp_path / "b" / "fst-s0") == tree(other)
    kept = {entry["object"] for entry in manifest(place)["files"].values()}
    assert set(Store(place).names(OBJECTS)) == kept
    assert archive(run, place).further, "what is further is not replaced"
    assert manifest(place)["position"]["checkpoint"] == 4


def test_a_run_that_is_archived_while_it_is_fetched(url: str, run: Path, tmp_path: Path) -> None:
    place, other = run_url(url, run), tmp_path / "b" / "fst-s0"
    archive(run, place)
    asked: list[str] = []

    def meanwhile(path: str, count: int, size: int) -> None:
        if not asked:
            asked.append(path)
            checkpoint(run, 3, weights=SMALL, keep=1)
            archive(run, place)

    restore(place, other, on_bytes=meanwhile)
    assert tree(other) == tree(run)
    assert [path.name for path in (other / "checkpoints").iterdir()] == ["0003"]


def test_restore_on_a_full_disk(url: str, run: Path, tmp_path: Path) -> None:
    place, disk = run_url(url, run), tmp_path / "disk"
    archive(run, place)
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        other = begin(disk / "study" / "fst-s0")
        before = tree(other)
        with pytest.raises(StorageError, match=r"disk of .* is full.*0.04 GB.*free some space"):
            restore(place, other)
        assert tree(other) == before
        assert not (other / ".arriving").exists(), "what had arrived makes room"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_clock_that_was_set_back(url: str, run: Path, tmp_path: Path) -> None:
    """Times of files and events run backwards here; only counts and hashes are compared."""
    place = run_url(url, run)
    archive(run, place)
    checkpoint(run, 3)
    append(run, "slow", time=-5.0)
    for path in run.rglob("*"):
        os.utime(path, (0, 0))
    assert archive(run, place).files > 0
    other = tmp_path / "b" / "fst-s0"
    shutil.copytree(run, other)
    append(other, "slow", time=-9.0)
    before = tree(other)
    assert restore(place, other).further, "one event more is further, whatever its time"
    assert tree(other) == before


def test_a_folder_that_is_further_is_left_as_it_is(url: str, run: Path) -> None:
    archive(run, run_url(url, run))
    checkpoint(run, 3)
    before = tree(run)
    assert fetch(url, run).further
    assert tree(run) == before


def test_a_folder_that_is_behind_is_brought_up(url: str, run: Path, tmp_path: Path) -> None:
    behind = tmp_path / "b" / "study" / "fst-s0"
    shutil.copytree(run, behind)
    checkpoint(run, 3, weights=None)
    checkpoint(run, 4, weights=None)
    archive(run, run_url(url, run))
    assert fetch(url, behind).size < 10_000, "weights that are here are not fetched"
    assert tree(behind) == tree(run)


def test_a_run_that_is_being_written_is_not_replaced(url: str, run: Path, tmp_path: Path) -> None:
    behind = tmp_path / "b" / "study" / "fst-s0"
    shutil.copytree(run, behind)
    checkpoint(run, 3, weights=None)
    archive(run, run_url(url, run))
    with lock(behind), pytest.raises(RunBusy):
        fetch(url, behind)


def test_another_run_of_the_same_name(url: str, run: Path, tmp_path: Path) -> None:
    other = begin(tmp_path / "b" / "study" / "fst-s0", time=2000.0)
    checkpoint(other, 5)
    place = run_url(url, run)
    archive(run, place)
    with pytest.raises(StorageError, match=r"another run of the same name.*--replace"):
        archive(other, place)
    with pytest.raises(StorageError, match="holds another run than"):
        restore(place, other)
    assert fetch(url, other).files == 0
    assert manifest(place)["position"]["checkpoint"] == 2
    archive(other, place, instead=True)
    assert manifest(place)["position"]["checkpoint"] == 5


def test_a_fresh_start_replaces_its_earlier_run(url: str, run: Path) -> None:
    place = run_url(url, run)
    archive(run, place)
    held = set_aside(run, ["config.json"])
    assert held is not None
    with held:
        assert fetch(url, run).files == 0, "the run set aside does not come back from the store"
        append(run, "run", time=3000.0)
        assert (run / EARLIER).is_dir()
    shutil.rmtree(run / EARLIER)
    archive(run, place)
    assert manifest(place)["position"]["events"] == 1


def test_a_manifest_may_not_write_elsewhere(url: str, run: Path, tmp_path: Path) -> None:
    place = run_url(url, run)
    archive(run, place)
    told = manifest(place)
    told["files"]["../../escaped"] = told["files"]["config.json"]
    store = Store(place)
    found = store.read(MANIFEST)
    assert found is not None
    store.write(MANIFEST, json.dumps(told).encode(), found[1])
    with pytest.raises(StorageError, match="names files that no run has"):
        restore(place, tmp_path / "b" / "fst-s0")
    assert not (tmp_path / "escaped").exists()


def test_commands(url: str, run: Path, tmp_path: Path, servers: Lab) -> None:
    done = servers.run("fst", "archive", str(run.parent), FST_STORE=url)
    assert f"files, {sum(map(size_of, tree_paths(run)))} bytes sent to {url}" in done.stderr
    runs = str(tmp_path / "b")
    done = servers.run("fst", "restore", f"{url}/study", "--runs", runs, check=False)
    assert done.returncode == 1
    assert "there are fst-s0" in done.stderr
    servers.run("fst", "restore", run_url(url, run), "--runs", runs)
    assert tree(Path(runs) / "study" / "fst-s0") == tree(run)
    done = servers.run("fst", "restore", run_url(url, run), "--runs", runs)
    assert "nothing was changed" in done.stderr
    done = servers.run("fst", "archive", str(run), check=False, FST_STORE="")
    assert (done.returncode, "no store is named" in done.stderr) == (1, True)


def tree_paths(folder: Path) -> list[Path]:
    return [folder / name for name in tree(folder)]


def size_of(path: Path) -> int:
    return path.stat().st_size


FLOW = """
import sys
from pathlib import Path
from prefect import flow
from tasks.archive import fetch, keep
@flow
def both(folder: Path) -> tuple[bool, bool]:
    return fetch(folder), keep(folder)
print(both(Path(sys.argv[1])))
"""


def test_tasks(url: str, run: Path, servers: Lab) -> None:
    def told(**env: str) -> subprocess.CompletedProcess[str]:
        return servers.run(sys.executable, "-c", FLOW, str(run), check=True, **env)

    assert told(FST_STORE="").stdout.strip() == "(True, True)"
    assert told(FST_STORE=url).stdout.strip() == "(True, True)"
    assert manifest(run_url(url, run))["position"]["checkpoint"] == 2
    away = told(FST_STORE=url, AWS_ENDPOINT_URL_S3="http://127.0.0.1:9")
    assert away.stdout.strip() == "(False, False)"
    assert "does not answer" in away.stderr


def test_a_run_restored_from_its_middle_ends_like_an_undisturbed_one(
    url: str, tmp_path: Path, servers: Lab
) -> None:
    def words(runs: str) -> list[str]:
        config = ["configs/tiny/smoke.toml", "--arm", "fst", "--no-track"]
        return ["fst", "run", *config, "--runs", str(tmp_path / runs)]

    folder = tmp_path / "killed" / "smoke" / "fst-s0"
    with subprocess.Popen(words("killed"), env=servers.env, cwd=ROOT) as process:
        deadline = time.monotonic() + 300
        while not list_checkpoints(folder / "checkpoints") and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        assert not ended(folder)
        archive(folder, run_url(url, folder))
        process.kill()
    servers.run("fst", "restore", run_url(url, folder), "--runs", str(tmp_path / "restored"))
    servers.run(*words("restored"))
    servers.run(*words("whole"))
    ends = [tmp_path / runs / "smoke" / "fst-s0" for runs in ("restored", "whole")]
    restored, whole = (comparable(read_events(end / "journal.jsonl")) for end in ends)
    assert restored[1:] == whole[1:]  # the first tells of the code, which may be edited meanwhile
    last = [list_checkpoints(end / "checkpoints")[-1] / "slow" for end in ends]
    weights = [(end / "model.safetensors").read_bytes() for end in last]
    assert weights[0] == weights[1]
