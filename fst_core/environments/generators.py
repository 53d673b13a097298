"""The generators of reasoning-gym, made safe to build a lab on: indexable without end, repeatable
from process to process, scored without running a policy's text.
"""

import contextlib
import io
import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from reasoning_gym.composite import DatasetSpec
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS, create_dataset

from fst_core.config.model import ConfigError
from fst_core.environments.errors import DataError
from fst_core.environments.safety import harmless
from fst_core.records import seed_of

Entry = dict[str, Any]

CHUNK = 500
"""Items drawn from one instance of a generator; several families cannot be large."""
HASH_ORDERED = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
"""Families that draw from Python sets, so that their problems depend on PYTHONHASHSEED."""
TUPLED = frozenset({"arc_agi", "rearc"})
"""Families whose scorer compares tuples, which JSON does not keep."""
MISSCORED = frozenset({"game_of_life_halting"})
"""Families whose scorer gives full marks to any text: scored here by equality."""
UNREPEATABLE = re.compile(
    r"(?<!rng\.)\brandom\s*[.(]|\bfrom (?:numpy\.random|random import (?!Random\b))|\brandom as\b"
    r"|\bsecrets\b|\buuid|\burandom\b|\btime\.|\.now\(|\.today\(|\bhash\(|\bid\("
    r"|\bset[()]|\{[^{}:]* for [^{}:]*\}"
)
"""Signs that a codeio program draws its inputs or outputs anew each time, or depends on hashing."""
SCORER_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip
"""What scorers of the package raise on an answer they cannot parse."""


def _create(dataset: str, options: Mapping[str, Any], seed: int) -> ProceduralDataset:
    """One instance of a generator; errors name the config key to change."""
    if dataset not in DATASETS:
        close = get_close_matches(dataset, DATASETS, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(close)}?" if close else "see reasoning-gym for its names."
        )
        raise ConfigError(
            f"environment.dataset: reasoning-gym has no generator {dataset!r}; {hint}"
        )
    for key in ("seed", "size"):
        if key in options:
            raise ConfigError(f"environment.options.{key}: is set by the lab; use environment.seed")
    settings = dict(options)
    try:
        if dataset == "composite":
            settings["datasets"] = _parts(settings.get("datasets", []))
        return create_dataset(dataset, seed=seed, size=CHUNK, **settings)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"environment.options: generator {dataset!r} refuses {dict(options)!r} ({error})"
        ) from error


def _parts(specs: list[dict[str, Any]]) -> list[DatasetSpec]:
    if any(spec.get("name") == "codeio" for spec in specs):
        raise ValueError("codeio cannot be a part of a composite; use it by itself")
    return [DatasetSpec(**spec) for spec in specs]


def _tupled(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tupled, value))
    return {k: _tupled(v) for k, v in value.items()} if isinstance(value, dict) else value


class Generator:
    """One reasoning-gym generator with its options, as an endless indexable source of entries."""

    def __init__(self, dataset: str, options: Mapping[str, Any], seed: int) -> None:
        """Create the generator.

        Raises:
            ConfigError: for an unknown generator or options it refuses.
        """
        self.dataset, self.options, self.seed = dataset, options, seed
        self._programs: list[dict[str, Any]] = []
        self._chunk = 0
        self._instance = self._make(0)

    def entry(self, index: int) -> Entry | None:
        """The index-th question, answer and metadata in plain JSON types; None if it is unusable.

        Raises:
            DataError: if the problems would differ from process to process.
        """
        self._check_repeatable()
        chunk, place = divmod(index, CHUNK)
        if chunk != self._chunk:
            self._chunk, self._instance = chunk, self._make(chunk)
        entry = self._program_entry(place) if self.dataset == "codeio" else self._instance[place]
        plain: Entry | None = json.loads(json.dumps(entry, default=str))
        return plain if plain and _usable(plain) else None

    def score(self, entry: Entry, answer: str) -> float | None:
        """The package's own score in [0, 1]; None where its scorer cannot read the answer."""
        family = family_of(entry, self.dataset)
        if answer != entry["answer"] and not harmless(family, answer):
            return None
        if family in MISSCORED:
            return float(answer.strip().casefold() == str(entry["answer"]).casefold())
        if family in TUPLED:
            entry = {**entry, "metadata": _tupled(entry["metadata"])}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                score = float(self._instance.score_answer(answer, entry))
        except SCORER_ERRORS:
            return None
        return min(1.0, max(0.0, score))

    def _program_entry(self, place: int) -> Entry | None:
        """A codeio entry, made by running one of the package's programs; None where that fails.

        Some programs write files: they run in a folder of their own.
        """
        # The package keeps the programs on the class, where another instance overwrites them.
        type(self._instance)._jsonl_data = self._programs
        with (
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
        ):
            warnings.simplefilter("ignore")
            try:
                entry: Entry = self._instance[place]
            except (TypeError, ValueError, OverflowError):  # outputs that are no JSON
                return None
        return entry

    def _make(self, chunk: int) -> ProceduralDataset:
        seed = seed_of("reasoning_gym", self.dataset, self.seed, chunk) % 2**31
        instance = _create(self.dataset, self.options, seed)
        if self.dataset == "codeio":
            programs = type(instance)._jsonl_data
            self._programs = [
                p for p in programs if _repeatable(p["code_sample"], p["input_generator"])
            ]
        return instance

    def _check_repeatable(self) -> None:
        used = {self.dataset, *(d["name"] for d in self.options.get("datasets", []))}
        if used & HASH_ORDERED and os.environ.get("PYTHONHASHSEED", "random") == "random":
            raise DataError(
                f"generator {', '.join(sorted(used & HASH_ORDERED))!r} draws from Python sets, so "
                "its problems differ from process to process: start Python with PYTHONHASHSEED=0, "
                "or use problem pools"
            )


def family_of(entry: Mapping[str, Any], dataset: str) -> str:
    """The generator an entry comes from; differs from `dataset` for the composite generator."""
    return str(entry["metadata"].get("source_dataset", dataset))


@cache
def _repeatable(program: str, inputs: str) -> bool:
    """Whether a codeio program gives the same inputs and outputs in every process."""
    return not UNREPEATABLE.search(program) and not UNREPEATABLE.search(inputs)


def _usable(entry: Entry) -> bool:
    """Whether the question has one right answer that a completion can hold."""
    answer = entry["answer"]
    if answer is not None and (not str(answer).strip() or "Integral(" in str(answer)):
        return False  # an empty answer, or an integral that the package could not solve
    metadata = entry["metadata"]
    # codeio gives empty inputs and outputs where its program failed
    return not metadata.get("input_data", True) == metadata.get("output_data", True) == {}
