"""Journal -> MLflow as task runs: an MLflow that is away costs a warning, never a run."""

from pathlib import Path

from prefect import get_run_logger, task
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


@task(name="track report", task_run_name="track report {experiment}", cache_policy=NO_CACHE)
def send_report(experiment: str, out_dir: Path) -> None:
    """Put a study's report on the experiment's study run; creates the store if there is none.

    Raises:
        TrackingError: if MLflow cannot be used.
    """
    from fst_core.tracking import log_report

    log_report(experiment, out_dir)


def track(folder: Path, final: bool = False) -> bool:
    """Send a run's journal; False, with a warning in the flow's log, if MLflow cannot be used."""
    from fst_core.tracking import TrackingError

    send = send_journal
    if final:
        send = send_journal.with_options(retries=RETRIES, retry_delay_seconds=RETRY_SECONDS)
    try:
        send(folder, final)
    except TrackingError as error:
        get_run_logger().warning("%s", error)
        return False
    return True


def track_report(experiment: str, out_dir: Path) -> bool:
    """Send a study's report; False, with a warning in the flow's log, if MLflow cannot be used."""
    from fst_core.tracking import TrackingError

    try:
        send_report(experiment, out_dir)
    except TrackingError as error:
        get_run_logger().warning("%s", error)
        return False
    return True
