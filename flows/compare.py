"""Arms x seeds side by side: the study a config describes, its report, and where to look.

    python -m flows.compare configs/tiny/demo.toml

Runs that are not finished go on at their last checkpoint and finished ones are kept, unless
--fresh replaces them.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow, get_run_logger, tags
from prefect.runtime import flow_run
from prefect.settings import get_current_settings
from prefect.states import Completed, State
from prefect.task_runners import ThreadPoolTaskRunner
from rich.console import Console

from flows.options import Listed, add_shared_options, at_least, told_as_a_sentence
from flows.parameters import (
    Arms,
    ConfigPath,
    Data,
    Dated,
    Deployment,
    Jobs,
    Overrides,
    Runs,
    Seeds,
    Track,
    Where,
    described,
    inside_project,
    starts_inside_project,
)
from flows.server import prefect_server, refuse_without_server
from fst_core.addresses import without_password
from fst_core.cli_options import say
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.dropped import dropped_notes
from fst_core.offline import replaced
from fst_core.preflight import preflight
from fst_core.study import expand, notes_beside, reported_beside, run_folder
from infra.servers import PREFECT_UI
from tasks.report import write_report
from tasks.runs import PROCESSES, Order, run_process, with_data
from tasks.show import tag_with_place
from tasks.track import prepare_store, track_report
from tasks.tries import Told, told_as_failed
from tasks.workers import run_on_workers

if TYPE_CHECKING:
    from fst_core.report import Report


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a study came to."""

    report: "Report"
    seconds: dict[str, float]
    """Wall time of the flow by part."""
    failures: tuple[str, ...]
    """One message per run that failed."""


class StudyFailed(Told):
    """Runs of a study failed; the report over what there is has been made."""

    def __init__(self, comparison: Comparison):
        super().__init__("\n".join(comparison.failures))
        self.comparison = comparison


class Stopwatch:
    """Wall time by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the block's wall time to a part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began


@flow(name="compare", flow_run_name="compare {config_path}")
@described
def compare(
    config_path: ConfigPath,
    arms: Arms = (),
    seeds: Seeds = (),
    jobs: Jobs = None,
    overrides: Overrides = (),
    runs: Runs = "runs",
    data: Data = None,
    track: Track = True,
    on: Where = "here",
    deployment: Deployment = "train/train",
    dated: Dated = False,
) -> Comparison:
    """Train every arm with every seed, at most `jobs` at once, and report on all of them.

    A run that fails stops no other, and the report is made over what there is.

    Raises:
        ConfigError: before anything starts, if one of the runs cannot be run.
        Refused: if a deployment's run is to leave the project.
        StudyFailed: after the report, if runs failed.
    """
    with told_as_failed() as ending:
        overrides = with_data(overrides, data)
        runs = inside_project(dated_folder(runs) if dated else runs)
        planned, study = expand(config_path, overrides, arms, seeds)
        starts_inside_project(planned, runs)
        order = Order(config_path, overrides, runs, track, on, deployment)
        ending.state = told(run_and_report(order, planned, jobs or study.jobs))
    return ending.state


def run_and_report(
    order: Order, planned: list[RunConfig], jobs: int, beside: Sequence[Path] = ()
) -> Comparison:
    """Train the runs of a study, at most `jobs` at once; report on them and on others.

    Args:
        order: What every run is started with.
        planned: The runs; the report goes to the folder of their study.
        jobs: Runs at once.
        beside: Folders of further runs that the report covers, in front of the study's own.
    Raises:
        StudyFailed: after the report, if runs failed.
    """
    watch, name = Stopwatch(), planned[0].name
    root = Path(order.runs)
    tag_with_place(root / name)
    for note in dropped_notes(order.config_path, planned):
        get_run_logger().warning("note: %s", note)
    if order.track:
        with watch.time("MLflow"):  # its first use creates the tables: once, before the fan-out
            prepare_store(name)
    with watch.time("runs"):
        failures = run_all(order, planned, jobs)
    with watch.time("report"):
        kept, other = reported_beside(order.config_path, order.overrides, planned, root)
        for note in notes_beside(kept, other):
            say(f"note: {note}")
        folders = [*beside, *(run_folder(root, config) for config in planned), *kept]
        report = write_report(list(dict.fromkeys(folders)), root / name)
    if order.track:
        with watch.time("MLflow"):
            track_report(name, root / name)
    comparison = Comparison(report, watch.seconds, failures)
    if failures:
        raise StudyFailed(comparison)
    return comparison


def told(done: Comparison) -> State[Comparison]:
    """How a study's flow ends: where its report is, and what that says first."""
    message = " ".join([f"{done.report.paths['report']}:", *done.report.headlines])
    return Completed(data=done, message=message)


def dated_folder(runs: str) -> str:
    """RUNS/YYYY-MM-DD of the day, in UTC, for which this flow run was scheduled."""
    day = flow_run.scheduled_start_time.astimezone(UTC).date()
    return str(Path(runs) / day.isoformat())


def run_all(order: Order, planned: list[RunConfig], jobs: int) -> tuple[str, ...]:
    """Train runs where the order says; one message per run that failed."""
    if order.on == "workers":
        return run_on_workers(order, planned, jobs)
    pool: ThreadPoolTaskRunner[float] = ThreadPoolTaskRunner(max_workers=jobs)
    with pool, PROCESSES.ended():
        futures = [
            pool.submit(run_process, {"order": order, "config": config}) for config in planned
        ]
        results = [future.result(raise_on_failure=False) for future in futures]
    return tuple(str(result) for result in results if isinstance(result, BaseException))


def main() -> None:
    """Command line of `python -m flows.compare`."""
    parser = study_parser("compare", "Run arms x seeds and report on them.")
    run_command(compare, parser.parse_args())


def run_command(
    study_flow: Callable[..., Comparison],
    args: argparse.Namespace,
    check: Callable[[list[RunConfig]], None] = lambda _: None,
    **more: str | None,
) -> None:
    """Run a study's flow as a command: under a server, its result shown, its exit status set.

    Args:
        study_flow: Takes what `compare` takes, and `more`.
        args: As `study_parser` reads them.
        check: Told the planned runs before anything is removed or started; raises to refuse them.
    """
    watch, console = Stopwatch(), Console()
    with told_as_a_sentence(), watch.time("all"):
        overrides = with_data(args.set, args.data)
        planned, _ = expand(args.config, overrides, args.arms, args.seeds)
        folder = Path(args.runs) / planned[0].name
        check(planned)
        if args.on == "workers":
            refuse_as_workers(args)
        else:
            for config in planned:
                preflight(config)
        old = [run_folder(Path(args.runs), config) for config in planned if args.fresh]
        with replaced(old, say), server(folder, watch, console), tags(planned[0].name):
            try:
                done = study_flow(
                    args.config, args.arms, args.seeds, args.jobs, tuple(args.set), args.runs,
                    args.data, not args.no_track, args.on, args.deployment, **more,
                )  # fmt: skip
            except StudyFailed as failure:
                done = failure.comparison
    show(done, watch.seconds, folder, console)
    sys.exit(1 if done.failures else 0)


def refuse_as_workers(args: argparse.Namespace) -> None:
    """Raise where a study's runs cannot be given to workers.

    Raises:
        ConfigError: with --fresh, which can replace the folders of this machine alone.
        ServerError: without a server whose deployments workers serve.
    """
    if args.fresh:
        raise ConfigError(
            "--fresh replaces runs of this machine, not those of workers: leave it out, and give "
            "new runs another name (--set name=...) or folder (--runs)"
        )
    refuse_without_server("workers take runs from one", "leave out --on workers")


def study_parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that every flow over a study has."""
    parser = argparse.ArgumentParser(prog=f"python -m flows.{name}", description=description)
    parser.add_argument("config", help="TOML file")
    help_text = "else the config's own; separated by spaces or commas"
    parser.add_argument("--arms", nargs="+", action=Listed, default=[], help=help_text)
    parser.add_argument("--seeds", nargs="+", action=Listed, kind=int, default=[], help=help_text)
    parser.add_argument("--jobs", type=at_least(1), help="runs at once; else the config's own")
    help_text = "processes of this machine, or flow runs of --deployment for any worker of its pool"
    parser.add_argument("--on", choices=["here", "workers"], default="here", help=help_text)
    parser.add_argument("--deployment", default="train/train", metavar="FLOW/DEPLOYMENT")
    parser.add_argument("--fresh", action="store_true", help="replace earlier runs by new ones")
    add_shared_options(parser)
    return parser


@contextmanager
def server(folder: Path, watch: Stopwatch, console: Console) -> Iterator[None]:
    """A Prefect server for the study, its start timed and its address told."""
    with ExitStack() as stack:
        with watch.time("Prefect server"):
            url = stack.enter_context(prefect_server(folder / "prefect"))
        shown = without_password(url.removesuffix("/api"), "")
        console.print(f"Prefect UI, while this runs: {shown}", soft_wrap=True)
        yield


def show(done: Comparison, seconds: dict[str, float], folder: Path, console: Console) -> None:
    """What came out, where it is, how long it took, and how to look at it again."""
    from fst_core.report import summary_table  # noqa: PLC0415  (pandas, matplotlib)

    console.print(summary_table(done.report.summary))
    parts = {**seconds, **done.seconds}
    took = ", ".join(f"{part} {parts[part]:.0f}" for part in sorted(parts, key=parts.__getitem__))
    lines = [f"seconds: {took}"]
    lines += [f"{name}: {done.report.paths[name]}" for name in ("report", "summary")]
    lines += [f"MLflow UI: {mlflow_command()}", f"Prefect UI: {prefect_command(folder)}"]
    lines += [f"error: {failure}" for failure in done.failures]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def mlflow_command() -> str:
    """The command that shows what was tracked, bound to the loopback interface."""
    address = os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    if address.startswith("http"):
        return without_password(address, "")
    program = Path(sys.executable).with_name("mlflow")
    words = [str(program), "ui", "--host", "127.0.0.1", "--backend-store-uri"]
    if address.startswith("sqlite:"):
        return shlex.join([*words, address])
    return f'{shlex.join(words)} "$MLFLOW_TRACKING_URI"'  # which may hold a password


def prefect_command(folder: Path) -> str:
    """The command that shows the study's flow runs again, bound to the loopback interface."""
    configured = get_current_settings().api.url
    if configured:
        return without_password(configured.removesuffix("/api"), "")
    program = str(Path(sys.executable).with_name("prefect"))
    variables = {"PREFECT_HOME": str((folder / "prefect").absolute()), **PREFECT_UI}
    words = ["env", *(f"{name}={value}" for name, value in variables.items())]
    words += [program, "server", "start", "--host", "127.0.0.1", "--analytics-off"]
    return shlex.join(words)


if __name__ == "__main__":
    main()
