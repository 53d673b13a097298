"""DVC with the lab's S3 store: a clone that pulls has everything, and goes on from there."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.e2e.lab import Lab
from tests.pipeline.clones import clone, commit, run, shrink

pytestmark = pytest.mark.timeout(1200)
KEPT = {"train": ["base-0", "rl-0"], "plasticity": ["rl-0"]}
PREFIX = "dvc/files/md5/"


def store(lab: Lab) -> dict[str, str]:
    """The variables by which a client finds the store."""
    return {name: value for name, value in lab.env.items() if name.startswith("AWS_")}


@pytest.fixture(scope="module")
def pushed(servers: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which a small pipeline has run, committed and pushed."""
    root = clone(tmp_path_factory.mktemp("pushed"))
    shrink(root, KEPT)
    run(root, "dvc", "repro")
    commit(root, "run")
    run(root, "dvc", "push", **store(servers))
    return root


def copy_of(root: Path, target: Path) -> Path:
    """A fresh git clone, without any file that DVC keeps."""
    run(root, "git", "clone", "--quiet", str(root), str(target))
    run(target, "git", "config", "user.name", "test")
    run(target, "git", "config", "user.email", "test@localhost")
    assert not (target / "runs").exists() and not (target / "data").exists()
    return target


@pytest.fixture(scope="module")
def pulled(servers: Lab, pushed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = copy_of(pushed, tmp_path_factory.mktemp("pulled") / "clone")
    run(target, "dvc", "pull", **store(servers))
    return target


def ran(done: "subprocess.CompletedProcess[str]") -> set[str]:
    """Stages whose commands `dvc repro` ran."""
    return set(re.findall(r"Running stage '(.+)'", done.stdout))


def test_a_clone_that_pulls_has_everything_and_repro_does_nothing(pushed, pulled):
    assert run(pulled, "dvc", "status").stdout.strip() == "Data and pipelines are up to date."
    assert ran(run(pulled, "dvc", "repro")) == set()
    assert run(pulled, "git", "status", "--porcelain").stdout == ""
    journal = "runs/repro/demo/rl-s0/journal.jsonl"
    assert (pulled / journal).read_bytes() == (pushed / journal).read_bytes()


def test_one_changed_key_runs_the_stages_that_read_it_and_its_numbers_are_compared(pulled):
    """As an experiment, of the probes' config: they begin with the weights that were pulled."""
    setting = "configs/tiny/plasticity.toml:loop.steps=4"
    assert ran(run(pulled, "dvc", "exp", "run", "--set-param", setting)) == {
        "plasticity@rl-0",
        "report",
    }
    keys = json.loads(run(pulled, "dvc", "params", "diff", "HEAD", "--json").stdout)
    steps = {"old": 2, "new": 4, "diff": 2}
    assert keys == {"configs/tiny/plasticity.toml": {"loop.steps": steps}}
    found = json.loads(run(pulled, "dvc", "metrics", "diff", "HEAD", "--json").stdout)
    numbers = found["docs/results/repro/metrics.json"]
    assert numbers["demo-plasticity.from-rl.slow_rollouts"] == {"old": 16, "new": 32, "diff": 16}
    assert {name.split(".")[0] for name in numbers} == {"demo-plasticity"}


def change(path: Path, old: str, new: str) -> None:
    """Replace one piece of text in a file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_wrong_credentials_are_said_and_nothing_is_lost(servers, pushed, tmp_path):
    target = copy_of(pushed, tmp_path / "clone")
    wrong = store(servers) | {"AWS_SECRET_ACCESS_KEY": "not-the-key"}
    for action in ("pull", "push"):
        root = target if action == "pull" else with_one_more(pushed)
        done = run(root, "dvc", action, check=False, **wrong)
        assert done.returncode != 0
        assert "Forbidden" in done.stderr
        assert "not-the-key" not in done.stdout + done.stderr
    run(target, "dvc", "pull", **store(servers))
    assert run(target, "dvc", "status").stdout.strip() == "Data and pipelines are up to date."


def with_one_more(root: Path) -> Path:
    """A clone whose cache holds a file that the store lacks."""
    (root / "more.txt").write_text("one more")
    run(root, "dvc", "add", "--quiet", "more.txt")
    return root


def test_a_bucket_that_does_not_exist_is_said(servers, pushed):
    more = with_one_more(pushed)
    run(more, "dvc", "remote", "modify", "--local", "store", "url", "s3://no-such-bucket/dvc")
    done = run(more, "dvc", "push", check=False, **store(servers))
    (more / ".dvc/config.local").unlink()
    assert done.returncode != 0
    assert "bucket does not exist" in done.stderr
    run(more, "dvc", "push", **store(servers))


def test_a_damaged_object_is_found_when_it_is_pulled(servers, pushed, tmp_path):
    """And replaced, once the store is whole again."""
    client = boto3.client(
        "s3",
        endpoint_url=servers.urls["s3"],
        aws_access_key_id=servers.env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=servers.env["AWS_SECRET_ACCESS_KEY"],
        region_name=servers.env["AWS_DEFAULT_REGION"],
    )
    lock = (pushed / "dvc.lock").read_text()
    found = re.search(r"path: outputs/report/summary.json\n +hash: md5\n +md5: (\w\w)(\w+)", lock)
    assert found is not None
    key = f"{PREFIX}{found[1]}/{found[2]}"
    whole = client.get_object(Bucket=servers.bucket, Key=key)["Body"].read()
    client.put_object(Bucket=servers.bucket, Key=key, Body=whole[:-2] + b"!\n")
    target = copy_of(pushed, tmp_path / "clone")
    done = run(target, "dvc", "pull", check=False, **store(servers))
    assert done.returncode != 0
    assert "outputs/report/summary.json" in done.stderr
    assert not (target / "outputs/report/summary.json").exists()
    client.put_object(Bucket=servers.bucket, Key=key, Body=whole)
    run(target, "dvc", "pull", **store(servers))
    assert run(target, "dvc", "status").stdout.strip() == "Data and pipelines are up to date."


def test_changed_data_stops_the_pipeline_before_any_training(servers, pushed, tmp_path):
    """Until the new hashes are accepted; a file changed by hand alone is put back instead."""
    target = copy_of(pushed, tmp_path / "clone")
    run(target, "dvc", "pull", **store(servers))
    journal = target / "runs/repro/demo/rl-s0/journal.jsonl"
    before = journal.read_bytes()
    change(target / "data/brackets/train.jsonl", "\n", "\n\n")
    checked = run(target, "fst", "data", "check", "data", check=False)
    assert checked.returncode == 1 and "data/brackets/train.jsonl" in checked.stderr
    assert len(set(re.findall(r"\b[0-9a-f]{64}\b", checked.stderr))) == 2
    assert ran(run(target, "dvc", "repro")) == set()
    run(target, "fst", "data", "check", "data")
    change(target / "configs/tiny/demo.toml", '"dashes"]', '"upper"]')
    stopped = run(target, "dvc", "repro", check=False)
    assert stopped.returncode != 0
    assert ran(stopped) == {"generate", "check"}
    assert "data/directives/manifest.json: SHA-256 is" in stopped.stderr
    assert journal.read_bytes() == before
    run(target, "fst", "data", "manifest", "data", "--out", "data.manifest.json")
    assert "Running stage 'train@rl-0'" in run(target, "dvc", "repro", "train@rl-0").stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(line).returncode:
        pytest.skip("a file system of a given size can be mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_a_pull_goes_on_where_there_is_room(
    servers, pushed, tmp_path, small_disk
):
    target = copy_of(pushed, tmp_path / "clone")
    run(target, "dvc", "cache", "dir", "--local", str(small_disk))
    done = run(target, "dvc", "pull", check=False, **store(servers))
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    run(target, "dvc", "pull", **store(servers))
    assert run(target, "dvc", "status").stdout.strip() == "Data and pipelines are up to date."
