"""`fst`: run, compare and look at runs from the command line. No Prefect inside.

Heavy parts load inside the commands, so that help and mistakes answer at once. Exit codes: 0 done,
1 the run or the input failed, 2 wrong usage, 130 interrupted.
"""

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fst_core.cli_data import data_app
from fst_core.cli_methods import methods, show_settings
from fst_core.cli_options import Command, ConfigFile, Group, Overrides, out, say
from fst_core.cli_store import archive_runs, restore_run
from fst_core.config import RunConfig, load_config
from fst_core.config.model import ConfigError
from fst_core.counting import counted
from fst_core.failures import sentence_for
from fst_core.launch import launch, refuse_processes, speaks, wait_to_be_ended
from fst_core.processes import end_with_parent
from fst_core.quiet import settle_environment, settle_for

if TYPE_CHECKING:
    from fst_core.offline import Tracker
    from fst_core.ranks import Ranks
    from fst_core.report.runs import RunLog

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A lab for Fast-Slow Training: prompt evolution and RL on weights, interleaved.",
)
app.add_typer(data_app, name="data")
app.command(cls=Command)(methods)
app.command("settings", cls=Command)(show_settings)
app.command("archive", cls=Command)(archive_runs)
app.command("restore", cls=Command)(restore_run)

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run or study folders.")]
RunsRoot = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are written.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Read problems from pools in DIR.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace an earlier run by a new one.")]
NoTrack = Annotated[bool, typer.Option("--no-track", help="Keep out of MLflow.")]


@app.callback()
def settings(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of any error.")
    ] = False,
) -> None:
    """What holds for every command; `main` reads --debug itself."""
    command = context.invoked_subcommand
    if command != "run" and launch().size > 1:
        raise ConfigError(
            f"fst {command} is for one process (WORLD_SIZE = {launch().size}); start it without "
            "torchrun or accelerate launch"
        )


@app.command(cls=Command)
def run(
    config: ConfigFile,
    arm: Annotated[
        str | None, typer.Option(metavar="ARM", help="Arm of the study; else the config's own.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="SEED", help="Run seed; else the config's own.")
    ] = None,
    changes: Overrides = None,
    runs: RunsRoot = Path("runs"),
    data: DataFolder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show plan and cost; stop.")] = False,
    fresh: Fresh = False,
    no_track: NoTrack = False,
) -> None:
    """Run one arm with one seed, or go on where it stopped."""
    from fst_core.preflight import preflight

    seeds = [] if seed is None else [f"seed={seed}"]
    resolved, _ = load_config(config, arm, [*_assignments(changes, data), *seeds])
    launched = launch()
    if launched.rank == 0:
        _tell_dropped(config, [resolved])
    if dry_run:
        if launched.rank == 0:
            _show_plan(resolved, runs, launched.size)
        return
    if launched.size > 1:
        _run_on_ranks(resolved, runs, fresh, not no_track)
        return
    for note in preflight(resolved):
        say(f"note: {note}")
    settle_for(resolved)
    _run(resolved, runs, fresh, not no_track)


def _tell_dropped(config: Path, planned: Sequence[RunConfig]) -> None:
    """Notes on settings that arms or overrides reset."""
    from fst_core.dropped import dropped_notes

    for note in dropped_notes(config, planned):
        say(f"note: {note}")


def _run_on_ranks(resolved: RunConfig, runs: Path, fresh: bool, track: bool) -> None:
    """Drive the run on rank 0, serve it on the others."""
    settle_for(resolved)
    from fst_core.preflight import preflight
    from fst_core.ranks import joined, serve

    with joined(resolved) as ranks:
        if ranks.rank:
            serve(ranks)
            return
        for note in preflight(resolved):
            say(f"note: {note}")
        _run(resolved, runs, fresh, track, ranks)


def _run(
    resolved: RunConfig, runs: Path, fresh: bool, track: bool, ranks: "Ranks | None" = None
) -> None:
    from fst_core.offline import execute, holds_finished, replaced
    from fst_core.study import run_folder

    folder = run_folder(runs, resolved)
    with _resumable(f"{folder} is"), replaced([folder] if fresh else [], say):
        if holds_finished(folder, resolved):
            say(f"{folder} is finished; --fresh would run it again")
            _show_summary(folder)
            return
        tracker = execute(resolved, folder, out, say, track, ranks)
    _show_summary(folder)
    _tell_if_behind(tracker, folder)


@app.command(cls=Command)
def compare(
    config: ConfigFile,
    arms: Annotated[
        list[str] | None, typer.Option(metavar="ARM,...", help="Arms; else the config's own.")
    ] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(metavar="SEED,...", help="Seeds; else the config's own.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at once; else the config's own.")
    ] = None,
    changes: Overrides = None,
    runs: RunsRoot = Path("runs"),
    data: DataFolder = None,
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
        report_folder,
        reported_beside,
        run_folder,
        run_study,
        track_report,
    )

    chosen = _assignments(changes, data)
    names, numbers = _split(arms), _whole_numbers(_split(seeds))
    planned, study = expand(config, chosen, names, numbers)
    for one in planned:
        preflight(one)
    _tell_dropped(config, planned)
    old = [run_folder(runs, one) for one in planned] if fresh else []
    with _resumable("The runs are"), replaced(old, say):
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


@app.command(cls=Command)
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
    from fst_core.study import find_runs

    folders = find_runs(runs, say)
    logs = _read(folders)
    if not any(log.events for log in logs):
        raise ConfigError("none of these runs can be read, so no report was made; run them first")
    _report(logs, target or _report_folder(folders))


@app.command(cls=Command)
def contexts(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    cycle: Annotated[
        int | None, typer.Option(metavar="CYCLE", help="Cycle to look at; else the last.")
    ] = None,
) -> None:
    """How the contexts of a run evolved: lineage, texts, anchor scores, diffs."""
    from fst_core.context_view import lineage_tree, read_lineage, slot_panels
    from fst_core.run_folder import put_back

    put_back(folder)
    lineage = read_lineage(folder, cycle)
    out.print(lineage_tree(lineage))
    for panel in slot_panels(lineage):
        out.print(panel)


@app.command(cls=Command)
def sync(runs: RunFolders) -> None:
    """Send what MLflow does not have yet of each run's journal."""
    import importlib.util

    from fst_core.study import find_runs

    folders = find_runs(runs, say)
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError("MLflow is not installed: pip install 'fst-lab[lab]'")
    from fst_core.tracking import sync as send

    for folder in folders:
        sent = send(folder)
        metrics = counted(sent.metrics, "metric row")
        say(f"{folder}: {metrics} and {counted(sent.artifacts, 'file')} sent")


@app.command(cls=Command)
def doctor(runs: RunsRoot = Path("runs")) -> None:
    """Check this machine; exit 1 if something stops a run, or keeps it out of MLflow or a store."""
    from fst_core.doctor import examine

    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    broken = False
    for finding in examine(runs):
        broken |= finding.level == "problem"
        out.print(f"{finding.level:<8}", style=styles[finding.level], end="")
        out.print(
            f"{finding.subject}: {finding.text}", markup=False, highlight=False, soft_wrap=True
        )
    if broken:
        raise typer.Exit(1)


@app.command(cls=Command)
def bench(
    config: ConfigFile,
    only: Annotated[
        str,
        typer.Option(
            metavar="PART,...", help="Comma-separated: generation, sync, step, fast, parts."
        ),
    ] = "generation,sync,step,fast,parts",
    repeats: Annotated[int, typer.Option(metavar="N", min=2, help="Timed repeats of each.")] = 5,
    arm: Annotated[
        str | None, typer.Option(metavar="ARM", help="Arm of the study; else the config's own.")
    ] = None,
    changes: Overrides = None,
    target: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for bench.json.")
    ] = Path("runs/bench"),
) -> None:
    """Time engines, sync, slow step, fast phase and a run's parts side by side."""
    from fst_core.bench.run import PARTS, open_results, write
    from fst_core.bench.run import bench as measure

    wanted = _split([only])
    unknown = [name for name in wanted if name not in PARTS]
    if not wanted:
        raise ConfigError(f"--only names no bench; take of {', '.join(PARTS)}")
    if unknown:
        raise ConfigError(f"--only {unknown[0]}: no such bench; take of {', '.join(PARTS)}")
    resolved, _ = load_config(config, arm, _assignments(changes, None))
    settle_for(resolved)
    results = open_results(target)
    write(measure(resolved, wanted, repeats, say), results)
    say(f"written: {results}")


def _assignments(changes: Sequence[str] | None, data: Path | None) -> list[str]:
    """The --set options, and --data as one of them."""
    from fst_core.study import data_override

    return [*(changes or []), *([] if data is None else [data_override(data)])]


def _split(values: Sequence[str] | None) -> list[str]:
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def _whole_numbers(values: Sequence[str]) -> list[int]:
    try:
        return [int(value) for value in values]
    except ValueError as error:
        raise typer.BadParameter(f"--seeds: {error}") from error


def _relay(run_id: str, line: str) -> None:
    _print(f"{run_id:<10} {line}")


class Interrupted(Exception):
    """Ctrl-C, or a polite kill, at a point from which the same command goes on."""


@contextmanager
def _resumable(what: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(what) from error


def _show_plan(config: RunConfig, runs: Path, processes: int) -> None:
    """What a run would do, or why it could not."""
    from fst_core.cost import cost_rows, estimate
    from fst_core.interleave import plan
    from fst_core.preflight import preflight
    from fst_core.progress import plan_line
    from fst_core.study import run_folder

    for note in preflight(config, plan_only=True):
        say(f"note: {note}")
    settle_for(config)
    from fst_core.starts import refuse_bad_start

    refuse_bad_start(config, run_folder(runs, config))
    if processes > 1:
        refuse_processes(config, processes)
    _print(config.model_dump_json(indent=2))
    cost = estimate(config)
    _print(plan_line(plan(config)))
    _show_rows(f"cost of {config.name}/{config.id}", cost_rows(cost, config))
    if cost.idle_fast_phases:
        _print(
            f"warning: in {counted(cost.idle_fast_phases, 'fast phase')}, fast.metric_calls does "
            "not pay for one search step; raise it, or lower fast.anchors, fast.minibatch or "
            "fast.proposals"
        )


def _print(line: str) -> None:
    """A line of a command's result, as it is."""
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def _show_summary(folder: Path) -> None:
    from fst_core.summary import summary_rows

    _show_rows(str(folder), summary_rows(folder))


def _show_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A table on a terminal, else plain lines."""
    if out.is_terminal:
        table = Table("what", "how much", title=title)
        for row in rows:
            table.add_row(*row)
        out.print(table)
        return
    for line in (title, *(f"  {what}: {much}" for what, much in rows)):
        _print(line)


def _tell_if_behind(tracker: "Tracker | None", folder: Path) -> None:
    if tracker is not None and tracker.behind:
        say(f"MLflow does not have all of this run; when it is back: fst sync {folder}")


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
    for name in ("report", "summary"):
        _print(f"{name}: {made.paths[name]}")
    _print(f"tables and figures: {target}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: known errors become one sentence and exit code 1."""
    settle_environment()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stopped run closes its files
    end_with_parent()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        app(words, prog_name="fst")
    except Interrupted as stop:
        command = shlex.join(["fst", *(word for word in words if word != "--fresh")])
        say(f"interrupted; {stop} resumable: {command}")
        sys.exit(130)
    except Exception as error:
        sentence = sentence_for(error)
        if debug or sentence is None:
            traceback.print_exc()
        elif speaks():
            say(f"error: {sentence}")
        else:
            wait_to_be_ended()
        sys.exit(1)


if __name__ == "__main__":
    main()
