"""`fst archive` and `fst restore`: run folders to and from an S3 store."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from fst_core.cli_options import err, say
from fst_core.config.model import ConfigError
from fst_core.counting import counted

if TYPE_CHECKING:
    from fst_core.archive import OnBytes

LARGE_BYTES = 8 << 20
"""A file of this size or more is shown while it goes over."""


def archive_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run or study folders.")],
    to: Annotated[
        str, typer.Option("--to", metavar="s3://BUCKET/PREFIX", help="Else FST_STORE.")
    ] = "",
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Also where the store holds another run, or a damaged one."),
    ] = False,
) -> None:
    """Send what an S3 store lacks of each run; a run may be going on."""
    from fst_core.study import find_runs

    store = to or os.environ.get("FST_STORE", "")
    if not store:
        raise ConfigError("no store is named: set FST_STORE, or give --to s3://BUCKET/PREFIX")
    folders = find_runs(runs, say)
    _need_boto3()
    from fst_core.archive import archive, run_url

    for folder in folders:
        url = run_url(store, folder)
        with _shown() as on_bytes:
            moved = archive(folder, url, replace, on_bytes)
        if moved.further:
            say(f"{folder}: {url} is further; to get it: fst restore {url}")
        else:
            mended = "; what was damaged there is replaced" if moved.mended else ""
            files = counted(moved.files, "file")
            say(f"{folder}: {files}, {moved.size} bytes sent to {url}{mended}")


def restore_run(
    url: Annotated[str, typer.Argument(metavar="s3://.../STUDY/RUN", help="An archived run.")],
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are.")] = Path(
        "runs"
    ),
) -> None:
    """Bring a run from an S3 store into DIR, unless what is there is as far.

    A run of the store in FST_STORE goes where its path there says, another into DIR/STUDY/RUN.
    """
    _need_boto3()
    from fst_core.archive import restore

    folder = runs / _path_of(url.rstrip("/"))
    with _shown() as on_bytes:
        moved = restore(url, folder, on_bytes)
    if moved.further:
        say(f"{folder}: as far as {url}, or further; nothing was changed")
    else:
        say(f"{folder}: {counted(moved.files, 'file')}, {moved.size} bytes fetched from {url}")


def _path_of(url: str) -> Path:
    """Where below the folder of all runs an archived run belongs."""
    parts = url.split("/")
    if not url.startswith("s3://") or len(parts) < 5 or ".." in parts:
        raise ConfigError(f"{url!r} is no archived run; write s3://BUCKET/.../STUDY/RUN")
    store = os.environ.get("FST_STORE", "").rstrip("/")
    kept = url.removeprefix(f"{store}/").split("/") if store else []
    return Path(*(kept if 2 <= len(kept) < len(parts) else parts[-2:]))


def _need_boto3() -> None:
    if importlib.util.find_spec("boto3") is None:
        raise ConfigError("boto3 is not installed: pip install 'fst-lab[lab]'")


@contextmanager
def _shown() -> Iterator["OnBytes"]:
    """Bars of large files on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, TransferSpeedColumn(), console=err, disable=not err.is_terminal
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def on_bytes(path: str, count: int, size: int) -> None:
            if size >= LARGE_BYTES:
                if path not in tasks:
                    tasks[path] = bars.add_task(path, total=size)
                bars.advance(tasks[path], count)

        yield on_bytes
