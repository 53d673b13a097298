"""Run folders to and from the store in FST_STORE, as task runs: a store that is away costs a
failed task run, never a run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from fst_core.counting import counted

if TYPE_CHECKING:
    from fst_core.archive import Moved

RETRIES = 2
RETRY_SECONDS = 5
STORE = "FST_STORE"
"""Variable with the address of the store, s3://BUCKET/PREFIX; without it, runs stay here."""


@task(name="archive", task_run_name="archive {folder.name}", cache_policy=NO_CACHE)
def send_run(folder: Path, store: str) -> None:
    """Send what the store lacks of a run.

    Raises:
        StorageError: if the store cannot be used.
    """
    from fst_core.archive import archive, run_url

    moved = archive(folder, run_url(store, folder))
    _tell(folder, moved, "sent")


@task(name="fetch", task_run_name="fetch {folder.name}", cache_policy=NO_CACHE)
def bring_run(folder: Path, store: str) -> None:
    """Bring a run that the store has more of.

    Raises:
        StorageError: if the store cannot be used.
    """
    from fst_core.archive import fetch as bring
    from fst_core.run_folder import RunBusy

    try:
        moved = bring(store, folder)
    except RunBusy as busy:  # whoever writes it has the newest
        get_run_logger().info("%s", busy)
        return
    _tell(folder, moved, "fetched")


def _tell(folder: Path, moved: "Moved", how: str) -> None:
    if moved.files:
        told = f"{counted(moved.files, 'file')}, {counted(moved.size, 'byte')} {how}"
        get_run_logger().info("%s: %s", folder, told)


def fetch(folder: Path) -> bool:
    """Bring a run folder from the store in FST_STORE, if that is further than this folder.

    Returns:
        False, told by the state of the task run, if the store cannot be used.
    """
    return _tried(lambda store: bring_run(folder, store))


def keep(folder: Path, final: bool = False) -> bool:
    """Send what the store in FST_STORE lacks of a run folder; `final` tries a few times.

    Returns:
        False, told by the state of the task run, if the store cannot be used.
    """
    send = send_run
    if final:
        send = send_run.with_options(retries=RETRIES, retry_delay_seconds=RETRY_SECONDS)
    return _tried(lambda store: send(folder, store))


def _tried(move: Callable[[str], object]) -> bool:
    store = os.environ.get(STORE, "")
    if not store:
        return True
    try:
        from fst_core.storage import StorageError
    except ImportError:
        get_run_logger().warning("boto3 is not installed: pip install 'fst-lab[lab]'")
        return False
    try:
        move(store)
    except StorageError:  # the task run's state tells it
        return False
    return True
