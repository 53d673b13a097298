"""`fst`: run, compare and look at runs from the command line. No Prefect inside.

Heavy parts load inside the commands, so that help and mistakes answer at once. Exit codes: 0 done,
1 the run or the input failed, 2 wrong usage, 130 interrupted.
"""

import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fst_core.cli_data import data_app
from fst_core.cli_methods import methods, show_settings
from fst_core.cli_options import (
    Command,
    ConfigFile,
    Group,
    Interrupted,
    Overrides,
    RunsRoot,
    assignments,
    out,
    say,
    split,
)
from fst_core.cli_run import run
from fst_core.cli_store import archive_runs, restore_run
from fst_core.cli_study import compare, contexts, report, sync
from fst_core.config import load_config
from fst_core.config.model import ConfigError
from fst_core.failures import sentence_for
from fst_core.interrupts import end_on
from fst_core.launch import launch, speaks, wait_to_be_ended
from fst_core.processes import end_with_parent
from fst_core.quiet import settle_environment, settle_for

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A lab for Fast-Slow Training: prompt evolution and RL on weights, interleaved.",
)
app.add_typer(data_app, name="data")
for command in (run, compare, report, contexts, sync, methods):
    app.command(cls=Command)(command)
app.command("settings", cls=Command)(show_settings)
app.command("archive", cls=Command)(archive_runs)
app.command("restore", cls=Command)(restore_run)


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
            "--only",
            metavar="PART,...",
            help="Comma-separated: generation, sync, step, fast, parts.",
        ),
    ] = "generation,sync,step,fast,parts",
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=2, help="Timed repeats of each.")
    ] = 5,
    arm: Annotated[
        str | None,
        typer.Option("--arm", metavar="ARM", help="Arm of the study; else the config's own."),
    ] = None,
    changes: Overrides = None,
    target: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for bench.json.")
    ] = Path("runs/bench"),
) -> None:
    """Time engines, sync, slow step, fast phase and a run's parts side by side."""
    from fst_core.bench.run import PARTS, open_results, write
    from fst_core.bench.run import bench as measure

    wanted = split([only])
    unknown = [name for name in wanted if name not in PARTS]
    if not wanted:
        raise ConfigError(f"--only names no bench; take of {', '.join(PARTS)}")
    if unknown:
        raise ConfigError(f"--only {unknown[0]}: no such bench; take of {', '.join(PARTS)}")
    resolved, _ = load_config(config, arm, assignments(changes, None))
    settle_for(resolved)
    results = open_results(target)
    write(measure(resolved, wanted, repeats, say), results)
    say(f"written: {results}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: known errors become one sentence and exit code 1."""
    settle_environment()
    end_on(signal.SIGINT, signal.SIGTERM)  # a stopped run closes its files
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
