"""`fst run`: one run, or what it would do."""

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
    RunsRoot,
    assignments,
    check_plan,
    out,
    resumable,
    say,
    show_line,
    show_rows,
    tell_dropped,
)
from fst_core.config import RunConfig, load_config
from fst_core.launch import launch, refuse_processes
from fst_core.quiet import settle_for

if TYPE_CHECKING:
    from fst_core.offline import Tracker
    from fst_core.ranks import Ranks


def run(
    config: ConfigFile,
    arm: Annotated[
        str | None,
        typer.Option("--arm", metavar="ARM", help="Arm of the study; else the config's own."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="SEED", help="Run seed; else the config's own.")
    ] = None,
    changes: Overrides = None,
    runs: RunsRoot = Path("runs"),
    data: DataFolder = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    no_track: NoTrack = False,
    brief: Annotated[
        bool, typer.Option("--brief", help="End with one line, as `fst compare` has its runs do.")
    ] = False,
) -> None:
    """Run one arm with one seed, or go on where it stopped."""
    from fst_core.preflight import preflight

    seeds = [] if seed is None else [f"seed={seed}"]
    resolved, _ = load_config(config, arm, [*assignments(changes, data), *seeds])
    launched = launch()
    if launched.rank == 0:
        tell_dropped(config, [resolved])
    if dry_run:
        if launched.rank == 0:
            _show_plan(resolved, runs, launched.size)
        return
    if launched.size > 1:
        _run_on_ranks(resolved, runs, fresh, not no_track, brief)
        return
    for note in preflight(resolved):
        say(f"note: {note}")
    settle_for(resolved)
    _run(resolved, runs, fresh, not no_track, brief)


def _run_on_ranks(resolved: RunConfig, runs: Path, fresh: bool, track: bool, brief: bool) -> None:
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
        _run(resolved, runs, fresh, track, brief, ranks)


def _run(
    resolved: RunConfig,
    runs: Path,
    fresh: bool,
    track: bool,
    brief: bool,
    ranks: "Ranks | None" = None,
) -> None:
    from fst_core.offline import execute, replaced
    from fst_core.run_folder import holds_finished
    from fst_core.study import run_folder

    folder = run_folder(runs, resolved)
    with resumable(f"{folder} is"), replaced([folder] if fresh else [], say):
        if holds_finished(folder, resolved):
            say(f"{folder} is finished; --fresh would run it again")
            _show_summary(folder, brief)
            return
        tracker = execute(resolved, folder, out, say, track, ranks)
    _show_summary(folder, brief)
    _tell_if_behind(tracker, folder)


def _show_plan(config: RunConfig, runs: Path, processes: int) -> None:
    """What a run would do, or why it could not."""
    from fst_core.config.written import as_file, in_words
    from fst_core.cost import cost_rows, estimate, warnings_of
    from fst_core.interleave import plan
    from fst_core.progress import plan_line

    check_plan([config], runs)
    if processes > 1:
        refuse_processes(config, processes)
    show_line(f"# {in_words(config)}\n\n{as_file(config)}\n")
    cost = estimate(config)
    show_line(f"# {plan_line(plan(config))}")
    show_rows(f"cost of {config.name}/{config.id}", cost_rows(cost, config), "# ")
    for line in warnings_of(cost):
        show_line(f"# warning: {line}")


def _show_summary(folder: Path, brief: bool) -> None:
    from fst_core.summary import headline, summary_rows

    if brief:
        show_line(f"{folder}: {headline(folder)}")
        return
    show_rows(str(folder), summary_rows(folder))


def _tell_if_behind(tracker: "Tracker | None", folder: Path) -> None:
    if tracker is not None and tracker.behind:
        say(f"MLflow does not have all of this run; when it is back: fst sync {folder}")
