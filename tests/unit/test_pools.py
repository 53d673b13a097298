"""Problem pools: the same problems as the live stream, the same bytes, checked by hash."""

import json
import os
import re
from pathlib import Path

import pytest

from fst_core.config import DirectivesConfig, EnvironmentConfig, JsonlConfig, ReasoningGymConfig
from fst_core.environments.errors import DataError
from fst_core.environments.pools import (
    build_pools,
    check_own,
    check_pools,
    sha256_of,
    write_manifest,
)
from fst_core.environments.registry import make_environment
from fst_core.records import SPLITS, Split
from tests.unit.commands import unreadable

COUNTS: dict[Split, int] = {"train": 6, "validation": 3, "test": 3}


@pytest.fixture
def jsonl(tmp_path: Path) -> JsonlConfig:
    rows = [{"question": f"q{i}?", "answer": str(i), "level": [i]} for i in range(90)]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JsonlConfig(path=str(path))


def same_as_live(config: EnvironmentConfig, data: Path) -> None:
    live = make_environment(config)
    build_pools(live, data / live.name, COUNTS)
    pooled = make_environment(config, data=str(data))
    for split in SPLITS:
        assert pooled.size(split) == COUNTS[split]
        for index in range(COUNTS[split]):
            problem = pooled.problem(split, index)
            assert problem == live.problem(split, index)
            for text in ("", problem.reference, f"<answer>{problem.reference}</answer>"):
                assert pooled.judge(problem, text) == live.judge(problem, text)


@pytest.mark.parametrize(
    "dataset", ["chain_sum", "path_star", "codeio", "rearc", "gsm_symbolic", "n_queens"]
)
def test_a_pool_equals_the_live_stream(dataset: str, tmp_path: Path) -> None:
    same_as_live(ReasoningGymConfig(dataset=dataset, question_note="Be brief.", seed=4), tmp_path)


def test_pools_of_other_environments_equal_the_live_stream(
    tmp_path: Path, jsonl: JsonlConfig
) -> None:
    same_as_live(DirectivesConfig(), tmp_path)
    same_as_live(jsonl, tmp_path)


def test_a_pool_needs_no_source_file(tmp_path: Path, jsonl: JsonlConfig) -> None:
    build_pools(make_environment(jsonl), tmp_path / "jsonl", COUNTS)
    Path(jsonl.path).unlink()
    assert make_environment(jsonl, data=str(tmp_path)).size("train") == 6


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    config = ReasoningGymConfig(dataset="chain_sum", seed=3)
    first = build_pools(make_environment(config), tmp_path / "a", COUNTS)
    second = build_pools(make_environment(config), tmp_path / "b", COUNTS)
    assert first == second
    for name in ("train.jsonl", "validation.jsonl", "test.jsonl", "manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert first["seed"] == 3 and first["counts"] == COUNTS
    assert first["environment"]["dataset"] == "chain_sum"
    assert first["generator"].keys() == {"reasoning-gym"}
    assert first["sha256"]["test.jsonl"] == sha256_of(tmp_path / "a" / "test.jsonl")
    line = (tmp_path / "a" / "train.jsonl").read_text().splitlines()[0]
    assert list(json.loads(line)) == sorted(json.loads(line))


def test_past_the_end_of_a_pool_is_an_index_error(tmp_path: Path) -> None:
    config = ReasoningGymConfig(dataset="chain_sum")
    build_pools(make_environment(config), tmp_path / "chain_sum", COUNTS)
    pooled = make_environment(config, data=str(tmp_path))
    with pytest.raises(IndexError, match="has 6 train problems, and problem number 7"):
        pooled.problem("train", 6)


def test_too_many_problems_are_refused(tmp_path: Path, jsonl: JsonlConfig) -> None:
    with pytest.raises(DataError, match="900 test problems of environment 'jsonl' were asked for"):
        build_pools(make_environment(jsonl), tmp_path / "pool", {"test": 900})


def test_a_pool_of_other_settings_is_refused(tmp_path: Path) -> None:
    build_pools(
        make_environment(ReasoningGymConfig(dataset="chain_sum")), tmp_path / "chain_sum", COUNTS
    )
    with pytest.raises(DataError, match="made with seed = 0, the config says 1"):
        make_environment(ReasoningGymConfig(dataset="chain_sum", seed=1), data=str(tmp_path))


def test_missing_and_broken_pools_are_named(tmp_path: Path) -> None:
    config = ReasoningGymConfig(dataset="chain_sum")
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read .*; build the pools"):
        make_environment(config, data=str(tmp_path))
    pool = tmp_path / "chain_sum"
    build_pools(make_environment(config), pool, COUNTS)
    with (pool / "test.jsonl").open("a") as file:
        file.write('{"id": 1}\n')
    with pytest.raises(DataError, match=r"test\.jsonl:4: is no problem"):
        make_environment(config, data=str(tmp_path))
    (pool / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"train\.jsonl: cannot be read"):
        make_environment(config, data=str(tmp_path))
    (pool / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json: is no JSON"):
        make_environment(config, data=str(tmp_path))


def test_a_folder_is_compared_with_its_own_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command runs: a manifest of other pools there says nothing of these."""
    monkeypatch.chdir(tmp_path)
    Path("data.manifest.json").write_text('{"other/train.jsonl": "0"}')
    mine = Path("mine")
    build_pools(make_environment(ReasoningGymConfig(dataset="gcd")), mine / "gcd", COUNTS)
    assert check_own(mine) == [mine / "gcd" / "manifest.json"]
    assert check_own(mine / "gcd") == [mine / "gcd" / "manifest.json"]
    monkeypatch.chdir(mine)
    assert check_own(".") == [Path("gcd/manifest.json")]
    monkeypatch.chdir(tmp_path)
    before = (mine / "gcd" / "test.jsonl").read_text()
    (mine / "gcd" / "test.jsonl").write_text(before + "\n")
    with pytest.raises(DataError, match=r"gcd/test.jsonl: SHA-256 is \w{64}, .* says \w{64}"):
        check_own(mine)
    write_manifest(mine, "mine.manifest.json")
    assert check_own(mine) == [Path("mine.manifest.json")]
    (mine / "gcd" / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"absent \(no such file\), mine\.manifest\.json says"):
        check_own(mine)
    Path("mine.manifest.json").unlink()
    with pytest.raises(DataError, match=r"absent \(no such file\), mine/gcd/manifest\.json says"):
        check_own(mine)


@pytest.mark.parametrize("content", ["", "{}", '{"sha256": {}}', '{"sha256": 5}'])
def test_a_folder_without_hashes_says_how_to_have_them(content: str, tmp_path: Path) -> None:
    (tmp_path / ("manifest.json" if content else "mine.txt")).write_text(content)
    told = "build the pool again" if content else f"fst data manifest {tmp_path} --out {tmp_path}."
    with pytest.raises(DataError, match=re.escape(told)):
        check_own(tmp_path)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("/", "/: is the root of all folders and holds no pools; name the folder"),
        ("{}/nowhere", "no such folder; name the folder that holds the pools"),
        ("{}/file/inside", "no such folder"),
        ("{}/a\0b", "no such folder"),
        ("{}/file", "is no folder but a file"),
        ("{}/pipe", "is no folder but a named pipe"),
        ("{}/link", "a link to nothing"),
        ("{}/loop", "cannot be read"),
        ("{}/empty", "is empty; build pools in it: fst data build CONFIG --out"),
        ("{}/closed", "cannot be read (no permission); allow it, or name"),
    ],
)
def test_what_holds_no_pools_is_told_as_what_it_is(
    what: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "closed"):
        (tmp_path / name).mkdir()
    (tmp_path / "closed" / "mine.txt").touch()
    access = os.access  # the super-user is refused nothing
    monkeypatch.setattr(os, "access", lambda p, mode: access(p, mode) and Path(p).name != "closed")
    folder = what.format(tmp_path)
    with pytest.raises(DataError, match=re.escape(told)) as error:
        check_own(folder)
    assert str(error.value).startswith(f"{folder}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["manifest.json", "train.jsonl", "validation.jsonl", "test.jsonl"])
def test_a_pipe_in_a_pool_is_refused_unread(name: str, tmp_path: Path) -> None:
    config = ReasoningGymConfig(dataset="chain_sum")
    build_pools(make_environment(config), tmp_path / "chain_sum", COUNTS)
    (tmp_path / "chain_sum" / name).unlink()
    os.mkfifo(tmp_path / "chain_sum" / name)
    with pytest.raises(DataError, match=rf"{name}: is no file but a named pipe; name the file"):
        make_environment(config, data=str(tmp_path))


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_a_manifest_that_is_no_file_is_refused_unread(what: str, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest"
    unreadable(manifest, what)
    with pytest.raises(DataError, match="manifest: is no file but a "):
        check_pools(tmp_path, manifest)


def test_check_pools_names_the_file_and_both_hashes(tmp_path: Path) -> None:
    data, manifest = tmp_path / "data", tmp_path / "data.manifest.json"
    build_pools(make_environment(ReasoningGymConfig(dataset="gcd")), data / "gcd", COUNTS)
    hashes = write_manifest(data, manifest)
    assert sorted(hashes) == [
        f"gcd/{name}" for name in ("manifest.json", "test.jsonl", "train.jsonl", "validation.jsonl")
    ]
    (data / ".gitignore").write_text("hidden files do not count")
    check_pools(data, manifest)

    test = data / "gcd" / "test.jsonl"
    before = test.read_bytes()
    test.write_bytes(before + b"\n")
    message = f"gcd/test.jsonl: SHA-256 is {sha256_of(test)}, .* says {hashes['gcd/test.jsonl']}"
    with pytest.raises(DataError, match=message):
        check_pools(data, manifest)
    test.unlink()
    with pytest.raises(DataError, match=r"gcd/test.jsonl: SHA-256 is absent \(no such file\), "):
        check_pools(data, manifest)
    test.write_bytes(before)
    (data / "extra.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"extra.jsonl: SHA-256 is \w{64}, .* says nothing \(extra"):
        check_pools(data, manifest)
    with pytest.raises(DataError, match=r"none\.json: cannot be read"):
        check_pools(data, tmp_path / "none.json")
