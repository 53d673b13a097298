"""`fst compare`, and what is done with the runs it leaves: `report`, `contexts`, `sync`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fst_core.cli_options import (
    ConfigFile,
    DataFolder,
    DryRun,
    Fresh,
    NoTrack,
    Overrides,
    RunFolders,
    RunsRoot,
    assignments,
    check_plan,
    named,
    out,
    resumable,
    say,
    show_line,
    show_rows,
    tell_dropped,
)
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.counting import counted

if TYPE_CHECKING:
    from fst_core.report.runs import RunLog


def compare(
    config: ConfigFile,
    arms: Annotated[
        list[str] | None,
        typer.Option("--arms", metavar="ARM,...", help="Arms; else the config's own."),
    ] = None,
    seeds: Annotated[
        list[str] | None,
        typer.Option("--seeds", metavar="SEED,...", help="Seeds; else the config's own."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Runs at once; else the config's own."),
    ] = None,
    changes: Overrides = None,
    runs: RunsRoot = Path("runs"),
    data: DataFolder = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    no_track: NoTrack = False,
) -> None:
    """Run every arm with every seed, each in its own process, and report on them."""
    from fst_core.offline import replaced
    from fst_core.preflight import preflight
    from fst_core.study import (
        expand,
        failures,
        in_study_order,
        notes_beside,
        refuse_named_apart,
        report_folder,
        reported_beside,
        run_folder,
        run_study,
        track_report,
    )

    chosen = assignments(changes, data)
    names, numbers = named("--arms", arms), _whole_numbers(named("--seeds", seeds))
    refuse_named_apart(chosen)
    planned, study = expand(config, chosen, names, numbers)
    tell_dropped(config, planned)
    if dry_run:
        _show_plan(planned, runs)
        return
    for one in planned:
        preflight(one)
    old = [run_folder(runs, one) for one in planned] if fresh else []
    with resumable("The runs are"), replaced(old, say):
        outcomes = run_study(config, chosen, names, numbers, jobs, runs, _relay, track=not no_track)
        folders = [outcome.folder for outcome in outcomes]
        begun = [folder for folder in folders if (folder / "journal.jsonl").exists()]
    failed = failures(outcomes)
    if begun:
        target = report_folder(runs, planned[0])
        beside, other = reported_beside(config, chosen, planned, runs)
        for note in notes_beside(beside, other):
            say(f"note: {note}")
        _report(_read(in_study_order([*begun, *beside], study.arms)), target)
        if not no_track:
            track_report(target, planned[0].name, say)
    for sentence in failed:
        say(f"error: {sentence}")
    if failed:
        raise typer.Exit(1)


def _show_plan(planned: Sequence[RunConfig], runs: Path) -> None:
    """What a study would cost, or why one of its runs could not be."""
    from fst_core.cost import estimate, study_rows, warnings_of

    check_plan(planned, runs)
    costs = [estimate(one) for one in planned]
    show_rows(f"cost of {planned[0].name}", study_rows(planned, costs))
    for line in dict.fromkeys(line for cost in costs for line in warnings_of(cost)):
        show_line(f"warning: {line}")


def report(
    runs: RunFolders,
    target: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Else the study's folder; of several, report/ beside them."
        ),
    ] = None,
) -> None:
    """Tables, figures and one HTML page about runs."""
    from fst_core.config.study import ARMS
    from fst_core.study import find_runs, in_study_order

    folders = in_study_order(find_runs(runs, say), list(ARMS))
    logs = _read(folders)
    if not any(log.events for log in logs):
        raise ConfigError("none of these runs can be read, so no report was made; run them first")
    _report(logs, target or _report_folder(folders))


def contexts(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a study's.")],
    cycle: Annotated[
        int | None,
        typer.Option("--cycle", metavar="CYCLE", help="Cycle to look at; else the last."),
    ] = None,
) -> None:
    """How the contexts of a run evolved: lineage, texts, anchor scores, diffs."""
    from fst_core.context_view import contexts_of
    from fst_core.study import find_runs

    for part in contexts_of(find_runs([folder], say), cycle):
        out.print(part)


def sync(runs: RunFolders) -> None:
    """Send what MLflow does not have yet of each run's journal."""
    import importlib.util

    from fst_core.study import find_runs

    folders = find_runs(runs, say)
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError("MLflow is not installed: pip install 'fst-lab[lab]'")
    from fst_core.run_folder import begun
    from fst_core.tracking import sync as send

    if not any(map(begun, folders)):
        raise ConfigError("no journal of these runs holds an event, so nothing was sent")
    for folder in folders:
        if not begun(folder):
            say(f"warning: {folder} is left out: its journal holds no event")
            continue
        sent = send(folder)
        metrics = counted(sent.metrics, "metric row")
        say(f"{folder}: {metrics} and {counted(sent.artifacts, 'file')} sent")


def _whole_numbers(values: Sequence[str]) -> list[int]:
    wrong = [value for value in values if not value.removeprefix("-").isdecimal()]
    if wrong:
        raise typer.BadParameter(f"--seeds: {wrong[0]!r} is no whole number")
    return [int(value) for value in values]


def _relay(run_id: str, line: str) -> None:
    show_line(f"{run_id:<10} {line}")


def _report_folder(folders: Sequence[Path]) -> Path:
    """The folder of the study that all runs belong to; of several studies, report/ beside them."""
    studies = {folder.absolute().parent: folder.parent for folder in folders}
    if len(studies) == 1:
        return next(iter(studies.values()))
    return Path(os.path.commonpath(studies)) / "report"


def _read(folders: Sequence[Path]) -> "list[RunLog]":
    """The runs of a report; what is missing of them is said."""
    from fst_core.report.runs import read_runs, warnings

    logs = read_runs(folders)
    for line in warnings(folders, logs):
        say(line)
    return logs


def _report(logs: "Sequence[RunLog]", target: Path) -> None:
    from fst_core.report import report_on, summary_table

    try:
        made = report_on(logs, target)
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {target} ({error.strerror or error}); name another "
            "folder: fst report RUN... --out DIR"
        ) from error
    out.print(summary_table(made.summary))
    for line in made.headlines:
        show_line(line)
    for name in ("report", "summary"):
        show_line(f"{name}: {made.paths[name]}")
    show_line(f"tables and figures: {target}")
