"""A run's event names every file that its problems come from, and no other."""

from pathlib import Path

import pytest

from fst_core.environments.pools import sha256_of
from fst_core.provenance import data_hashes
from tests.runs import tiny_config

FILES = ("one/train.jsonl", "one/manifest.json", "suite/test.jsonl", "other/train.jsonl")
ROWS = ("own.jsonl", "hover.json", "split/train.jsonl", "split/test.jsonl", "split/notes.txt")
SUITE = {"axis": "easy to hard", "name": "suite"}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*(f"data/{file}" for file in FILES), *ROWS):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)


def test_the_pools_of_a_run_are_hashed_and_no_other() -> None:
    task = {"type": "jsonl", "path": "own.jsonl", "name": "one"}
    suite = {**SUITE, "environment": {"type": "directives", "name": "any"}}
    config = tiny_config(environment=task, data="data", evaluation={"suites": [suite]})
    wanted = ("one/manifest.json", "one/train.jsonl", "suite/test.jsonl")
    assert data_hashes(config) == {name: sha256_of(Path("data", name)) for name in wanted}


def test_imported_files_are_hashed(tmp_path: Path) -> None:
    far = tmp_path / "hover.json"
    tasks = [
        {"type": "jsonl", "path": "own.jsonl", "name": "a"},
        {"type": "hover", "path": str(far)},
        {"type": "polaris", "path": "absent.parquet", "hub": "org/set"},
        {"type": "choices", "hub": "org/set"},
        {"type": "directives"},
    ]
    suite = {**SUITE, "environment": {"type": "jsonl", "path": "./split"}}
    mixture = {"type": "mixture", "tasks": tasks}
    config = tiny_config(environment=mixture, evaluation={"suites": [suite]})
    wanted = ("own.jsonl", str(far), "split/test.jsonl", "split/train.jsonl")
    assert data_hashes(config) == {name: sha256_of(Path(name)) for name in wanted}
    far.write_text("changed")
    assert data_hashes(config)[str(far)] == sha256_of(far)


def test_a_generator_reads_no_file() -> None:
    assert data_hashes(tiny_config()) == {}
