"""Journal -> MLflow as task runs: an MLflow that is away costs a failed task run, never a run."""

from collections.abc import Callable
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

RETRIES = 2
RETRY_SECONDS = 5


@task(name="track", task_run_name="track {folder.name}", cache_policy=NO_CACHE)
def send_journal(folder: Path, final: bool = False) -> None:
    """Send what a run's journal holds beyond what MLflow has.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    from fst_core.tracking import sync

    sync(folder, final=final)


@task(name="prepare store", task_run_name="prepare store {experiment}", cache_policy=NO_CACHE)
def make_store(experiment: str) -> None:
    """Make MLflow's store and an experiment once, before many runs write to them.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    from fst_core.tracking import prepare

    prepare(experiment)


@task(name="track report", task_run_name="track report {experiment}", cache_policy=NO_CACHE)
def send_report(experiment: str, out_dir: Path) -> None:
    """Put a study's report on the experiment's study run.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    from fst_core.tracking import log_report

    log_report(experiment, out_dir)


def track(folder: Path, final: bool = False) -> bool:
    """Send a run's journal; False, told by the task run's state, if MLflow cannot be used."""
    send = send_journal
    if final:
        send = send_journal.with_options(retries=RETRIES, retry_delay_seconds=RETRY_SECONDS)
    return _tried(lambda: send(folder, final))


def prepare_store(experiment: str) -> bool:
    """Make MLflow's store; False, told by the task run's state, if MLflow cannot be used."""
    return _tried(lambda: make_store(experiment))


def track_report(experiment: str, out_dir: Path) -> bool:
    """Send a study's report; False, told by the task run's state, if MLflow cannot be used."""
    return _tried(lambda: send_report(experiment, out_dir))


def _tried(send: Callable[[], object]) -> bool:
    from fst_core.tracking import TrackingError

    try:
        send()
    except TrackingError:  # the task run's state tells it
        return False
    return True
