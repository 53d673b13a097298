"""Rows of a published data set, from a file or the hub, checked and named by where they stand."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fst_core.config.imported import ImportedBase
from fst_core.config.model import NotHere
from fst_core.environments.errors import DataAbsent, DataError

Row = dict[str, Any]
Placed = tuple[str, Row]
"""Where a row stands (file or data set, and its number) and what it holds."""


def rows_of(config: ImportedBase) -> Iterator[Placed]:
    """All rows: of the file at `path` where there is one, else of the hub's data set.

    Raises:
        DataAbsent: if there is no file and no hub is named, or the hub cannot be read.
        DataError: naming file and line, for a file that is not in its format.
    """
    path = Path(config.path) if config.path else None
    if path is not None and path.is_file():
        return _read(path)
    if config.hub:
        return _from_hub(config)
    raise DataAbsent(
        f"{path}: no such file; put the published file there, or set environment.hub to the data "
        "set's id to fetch it"
    )


def _read(path: Path) -> Iterator[Placed]:
    readers: dict[str, Callable[[Path], Iterable[tuple[int, Any]]]] = {
        ".json": _json_rows,
        ".jsonl": _json_lines,
        ".parquet": _parquet_rows,
    }
    reader = readers.get(path.suffix.casefold())
    if reader is None:
        known = ", ".join(readers)
        raise DataError(f"{path}: is no {known} file; convert it, or give it its right ending")
    for number, row in reader(path):
        yield f"{path}:{number}", _object(f"{path}:{number}", row)


def _object(where: str, row: Any) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where}: the row is no object but {type(row).__name__}")
    return row


def _json_rows(path: Path) -> Iterable[tuple[int, Any]]:
    data = _parsed(f"{path}", _text(path))
    if not isinstance(data, list):
        raise DataError(f"{path}: holds no list of rows; JSON lines end in .jsonl")
    return enumerate(data, start=1)


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield number, _parsed(f"{path}:{number}", line)


def _text(path: Path) -> str:
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


def _parquet_rows(path: Path) -> Iterable[tuple[int, Any]]:
    import pyarrow as pa  # noqa: PLC0415  (a second to import, and few files need it)
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return enumerate(pq.read_table(path).to_pylist(), start=1)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Parquet file ({error})") from error


def _from_hub(config: ImportedBase) -> Iterator[Placed]:
    try:
        import datasets  # noqa: PLC0415  (optional, and slow to import)
    except ImportError as error:
        raise NotHere(
            "environment.hub is read through the package datasets, which is not installed: "
            "pip install datasets, or set environment.path to the published file"
        ) from error
    datasets.disable_progress_bars()
    source = f"{config.hub} ({config.hub_split})"
    try:
        table = datasets.load_dataset(
            config.hub, config.hub_subset, split=config.hub_split, revision=config.revision
        )
    except Exception as error:  # whatever the hub, its cache or the network raise
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise DataAbsent(
            f"environment.hub = {config.hub!r}: the data set cannot be read from the hub "
            f"({told[0]}); download its file and set environment.path, or check id, subset, split "
            "and network"
        ) from error
    return ((f"{source}:{number}", dict(row)) for number, row in enumerate(table, start=1))


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
            f"{where}: {column!r} must be text that is not empty; the row has {', '.join(row)}"
        )
    return value.strip()
