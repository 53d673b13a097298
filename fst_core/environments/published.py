"""Rows of problem data, from a file or the hub, checked and named by where they stand."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fst_core.config.imported import ImportedBase
from fst_core.config.model import NotHere
from fst_core.environments.errors import DataAbsent, DataError
from fst_core.environments.files import is_regular
from fst_core.hub import data_from_cache_alone, why_unreachable

Row = dict[str, Any]
Placed = tuple[str, Row]
"""Where a row stands (file or data set, and its number) and what it holds."""
Numbered = Iterable[tuple[int, Any]]
MOST_LEVELS = 100
"""Objects and lists inside each other that a row may have."""


def rows_of(config: ImportedBase) -> Iterator[Placed]:
    """All rows: of the file at `path` where there is one, else of the hub's data set.

    Raises:
        DataAbsent: if there is no file and no hub is named, or the hub cannot be read.
        DataError: naming file and row, for what is no file, a file that is not in its format, text
            that is no Unicode, or a row of too many levels.
    """
    path = Path(config.path) if config.path else None
    if path is not None and is_regular(path):
        return _checked(f"{path}", _reader(path)(path))
    if config.hub:
        return _checked(f"{config.hub} ({config.hub_split})", _from_hub(config))
    raise DataAbsent(
        f"{path}: no such file; put the published file there, or set environment.hub to the data "
        "set's id to fetch it"
    )


def rows_of_lines(path: Path) -> Iterator[Placed]:
    """All rows of a JSON lines file; blank lines are passed over.

    Raises:
        DataAbsent: if there is no such file.
        DataError: naming file and line, for what is no file or no text, a line that is no JSON
            object, text that is no Unicode, or a row of too many levels.
    """
    return _checked(f"{path}", _json_lines(path))


def _reader(path: Path) -> Callable[[Path], Numbered]:
    readers: dict[str, Callable[[Path], Numbered]] = {
        ".json": _json_rows,
        ".jsonl": _json_lines,
        ".parquet": _parquet_rows,
    }
    reader = readers.get(path.suffix.casefold())
    if reader is None:
        known = ", ".join(readers)
        raise DataError(f"{path}: is no {known} file; convert it, or give it its right ending")
    return reader


def _checked(source: str, rows: Numbered) -> Iterator[Placed]:
    for number, row in rows:
        where = f"{source}:{number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: the row is no object but {type(row).__name__}")
        if _too_deep(row):
            raise DataError(
                f"{where}: objects and lists stand more than {MOST_LEVELS} levels deep; flatten "
                "the row, or leave it out"
            )
        try:
            json.dumps(row, ensure_ascii=False, default=str).encode()
        except (UnicodeEncodeError, RecursionError) as error:
            raise DataError(
                f"{where}: cannot be read ({error}); correct the row, or leave it out"
            ) from error
        yield where, row


def _too_deep(row: Row) -> bool:
    level: list[Any] = [row]
    for _ in range(MOST_LEVELS):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def _json_rows(path: Path) -> Numbered:
    data = _parsed(f"{path}", _text(path))
    if not isinstance(data, list):
        raise DataError(f"{path}: holds no list of rows; JSON lines end in .jsonl")
    return enumerate(data, start=1)


def _json_lines(path: Path) -> Numbered:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield number, _parsed(f"{path}:{number}", line)


def _text(path: Path) -> str:
    if not is_regular(path):
        raise DataAbsent(f"{path}: no such file; put it there, or correct the path")
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error.reason})") from error


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: is no JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be read ({error})") from error


def _parquet_rows(path: Path) -> Numbered:
    import pyarrow as pa  # noqa: PLC0415  (a second to import, and few files need it)
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return enumerate(pq.read_table(path).to_pylist(), start=1)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no Parquet file ({error})") from error
    except OverflowError as error:  # a time past the year 9999
        raise DataError(
            f"{path}: a value cannot be read ({error}); correct it, or leave out its column"
        ) from error


def _from_hub(config: ImportedBase) -> Numbered:
    try:
        import datasets  # noqa: PLC0415  (optional, and slow to import)
    except ImportError as error:
        raise NotHere(
            "environment.hub is read through the package datasets, which is not installed: "
            "pip install datasets, or set environment.path to the published file"
        ) from error
    datasets.disable_progress_bars()
    unreachable = why_unreachable()
    try:
        with data_from_cache_alone() if unreachable else nullcontext():
            table = datasets.load_dataset(
                config.hub, config.hub_subset, split=config.hub_split, revision=config.revision
            )
    except Exception as error:  # whatever the hub, its cache or the network raise
        told = unreachable or next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataAbsent(
            f"environment.hub = {config.hub!r}: the data set cannot be read from the hub "
            f"({told}); download its file and set environment.path, or check id, subset, split "
            "and network"
        ) from error
    return enumerate(map(dict, table), start=1)


def value_at(row: Mapping[str, Any], column: str) -> Any:
    """What a column holds; a dotted name looks inside objects. None where there is nothing."""
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def text_at(where: str, row: Mapping[str, Any], column: str) -> str:
    """The text of a column.

    Raises:
        DataError: naming row and column, if it holds no text or none that is not blank.
    """
    value = value_at(row, column)
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{where}: {column!r} must be text that is not empty; the row has "
            f"{', '.join(map(repr, row)) or 'no columns'}"
        )
    return value.strip()


def plain_text(value: Any) -> str:
    """A text without the space around it, or a finite number as text; empty for anything else."""
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return str(value)
    return value.strip() if isinstance(value, str) else ""


def once(seen: dict[str, str], value: str, where: str, what: str) -> None:
    """Note where a value stands.

    Args:
        seen: where each value stood so far; it gains this one.
        what: what the value is, for the message.

    Raises:
        DataError: naming both places, if the value stood before.
    """
    if value in seen:
        raise DataError(f"{where}: the same {what} already stands at {seen[value]}")
    seen[value] = where
