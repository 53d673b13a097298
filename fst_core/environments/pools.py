"""Problem pools: the first problems of an environment as files, versioned and checked by hash.

A pool is a folder `data/NAME/` with one JSON lines file per split and a manifest.json that says how
it was made. One git-tracked manifest holds the SHA-256 of every file of all pools.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fst_core.environments.base import Environment
from fst_core.environments.errors import DataError, PastTheEnd
from fst_core.environments.files import is_regular, refuse_no_folder
from fst_core.records import SPLITS, Problem, Split, Verdict, problem_from_json, to_json

MANIFEST = "manifest.json"
"""Name of the file in each pool that says how it was made."""


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=indent) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def settings_of(environment: Environment) -> dict[str, Any]:
    """What an environment is made from, as plain JSON types: its config, or its public fields."""
    config = getattr(environment, "config", None)
    if isinstance(config, BaseModel):
        return config.model_dump(mode="json")
    if is_dataclass(environment):
        names = [f.name for f in fields(environment) if f.init]
        plain: dict[str, Any] = json.loads(_json({n: getattr(environment, n) for n in names}))
        return plain
    return {"name": environment.name}


def build_pools(
    environment: Environment, folder: str | Path, counts: Mapping[Split, int]
) -> dict[str, Any]:
    """Write the first `counts[split]` problems of each split, and the manifest, into a folder.

    The same environment and counts give the same bytes.

    Returns:
        The manifest: settings, package version, seed, counts, SHA-256 per file.

    Raises:
        DataError: if a split holds fewer problems than asked for.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    hashes: dict[str, str] = {}
    for split in SPLITS:
        path = folder / f"{split}.jsonl"
        rows = [to_json(p) for p in _first(environment, split, counts.get(split, 0))]
        _write(path, "".join(map(_json, rows)))
        hashes[path.name] = sha256_of(path)
    settings = settings_of(environment)
    manifest = {
        "environment": settings,
        "generator": {"reasoning-gym": version("reasoning-gym")}
        if settings.get("type") == "reasoning_gym"
        else {},
        "seed": settings.get("seed"),
        "counts": {split: counts.get(split, 0) for split in SPLITS},
        "sha256": hashes,
    }
    _write(folder / MANIFEST, _json(manifest, indent=2))
    return manifest


def _first(environment: Environment, split: Split, count: int) -> list[Problem]:
    try:
        return [environment.problem(split, index) for index in range(count)]
    except IndexError as error:
        raise DataError(
            f"{count} {split} problems of environment {environment.name!r} were asked for, but it "
            f"has fewer ({error})"
        ) from error


class PooledEnvironment:
    """An environment whose problems come from a pool; judging is left to the one it was made of."""

    def __init__(self, environment: Environment, folder: str | Path) -> None:
        """Read a pool.

        Raises:
            DataError: if a file is missing or broken, or the pool was made with other settings.
        """
        self.name = environment.name
        self._environment = environment
        self._folder = Path(folder)
        self._check_settings()
        self._problems = {split: _read_pool(self._folder / f"{split}.jsonl") for split in SPLITS}

    def problem(self, split: Split, index: int) -> Problem:
        """The index-th problem of a split.

        Raises:
            IndexError: if the index is negative or past the end of the pool.
        """
        problems = self._problems[split]
        if not 0 <= index < len(problems):
            raise PastTheEnd(self.name, split, index, len(problems))
        return problems[index]

    def size(self, split: Split) -> int:
        """Number of problems of a split in the pool; finite for train too."""
        return len(self._problems[split])

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """The verdict of the environment the pool was made of."""
        return self._environment.judge(problem, completion)

    def solution(self, problem: Problem) -> str | None:
        """The solution of the environment the pool was made of."""
        return self._environment.solution(problem)

    def _check_settings(self) -> None:
        path = self._folder / MANIFEST
        made, wanted = _read_json(path).get("environment", {}), settings_of(self._environment)
        differing = sorted(k for k in made.keys() | wanted.keys() if made.get(k) != wanted.get(k))
        if differing:
            key = differing[0]
            raise DataError(
                f"{path}: the pool was made with {key} = {made.get(key)!r}, the config says "
                f"{wanted.get(key)!r}; build the pool again or use another name"
            )


def _text(path: Path) -> str:
    if not is_regular(path):
        raise DataError(f"{path}: cannot be read (no such file); build the pools")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); build the pools") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not UTF-8 text ({error.reason}); build the pools again"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: is no JSON ({error.msg})") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: is no JSON object")
    return data


def _read_pool(path: Path) -> list[Problem]:
    problems = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line:
            try:
                problems.append(problem_from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}:{number}: is no problem ({error!r})") from error
    return problems


def hashes_of(folder: str | Path) -> dict[str, str]:
    """SHA-256 of every file under a folder, by path relative to it; hidden files do not count."""
    root = Path(folder)
    paths = {p.relative_to(root): p for p in root.rglob("*") if p.is_file()}
    kept = {r: p for r, p in paths.items() if not any(part.startswith(".") for part in r.parts)}
    return {r.as_posix(): sha256_of(kept[r]) for r in sorted(kept)}


def write_manifest(data_folder: str | Path, manifest_file: str | Path) -> dict[str, str]:
    """Write {relative path: SHA-256} of all pools into the one manifest that git tracks."""
    hashes = hashes_of(data_folder)
    _write(Path(manifest_file), _json(hashes, indent=2))
    return hashes


def check_own(data_folder: str | Path) -> list[Path]:
    """Compare the pools of a folder, or the one that it is, with the folder's own manifests.

    DIR.manifest.json beside DIR holds the hashes of all its files; without it, each pool's
    manifest.json holds those of its problems.

    Returns:
        The manifests that were read.
    Raises:
        DataError: if there is none, or a file is not what its manifest says.
    """
    folder = Path(data_folder)
    refuse_no_folder(folder)
    whole = _manifest_beside(folder)
    if whole is not None and is_regular(whole):
        check_pools(folder, whole)
        return [whole]
    found = (folder / MANIFEST, *sorted(folder.glob(f"*/{MANIFEST}")))
    pools = [path for path in found if is_regular(path)]
    if not pools:
        raise DataError(f"{folder}: {_without_manifest(folder, whole)}")
    for manifest in pools:
        _check_pool(manifest)
    return pools


def _manifest_beside(folder: Path) -> Path | None:
    """Where the one manifest of all a folder's files would be; None beside the root."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.{MANIFEST}") if named.name else None


def _without_manifest(folder: Path, whole: Path | None) -> str:
    """What to do about a folder that no manifest speaks of."""
    if whole is None:
        return "is the root of all folders and holds no pools; name the folder that holds them"
    if not any(folder.iterdir()):
        return f"is empty; build pools in it: fst data build CONFIG --out {folder}"
    return (
        "no manifest says what its files should be; make one of what they are now: "
        f"fst data manifest {folder} --out {whole}"
    )


def _check_pool(manifest: Path) -> None:
    hashes = _read_json(manifest).get("sha256")
    if not isinstance(hashes, dict) or not hashes:
        raise DataError(f"{manifest}: holds no hashes of a pool's files; build the pool again")
    found = {name: sha256_of(p) for name in hashes if is_regular(p := manifest.parent / name)}
    _compare(manifest.parent, hashes, found, manifest)


def check_pools(data_folder: str | Path, manifest_file: str | Path) -> None:
    """Compare every file of the pools with the manifest that git tracks.

    Raises:
        DataError: naming the first file that differs and both hashes, or that is missing or extra.
    """
    refuse_no_folder(Path(data_folder))
    _compare(data_folder, _read_json(Path(manifest_file)), hashes_of(data_folder), manifest_file)


def _compare(
    folder: str | Path,
    wanted: Mapping[str, Any],
    found: Mapping[str, str],
    manifest: str | Path,
) -> None:
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            there = found.get(name, "absent (no such file)")
            told = wanted.get(name, "nothing (extra file)")
            raise DataError(f"{Path(folder) / name}: SHA-256 is {there}, {manifest} says {told}")
