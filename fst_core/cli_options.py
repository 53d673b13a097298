"""What all commands of `fst` share: their consoles, their options, and how a result is shown."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.quiet import settle_for

out = Console()
err = Console(stderr=True)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of a run or study.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a setting; TOML, JSON or text."),
]

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run or study folders.")]
RunsRoot = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are written.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Read problems from pools in DIR.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show plan and cost; stop.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace an earlier run by a new one.")]
NoTrack = Annotated[bool, typer.Option("--no-track", help="Keep out of MLflow.")]


class Command(TyperCommand):
    """A command whose help shows no type behind an option that takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command, --help among them."""
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """As `Command`, for commands that have commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the group, --help among them."""
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def say(text: str) -> None:
    """A line on stderr, as it is."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def show_line(line: str) -> None:
    """A line of a command's result, as it is."""
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def show_rows(title: str, rows: Sequence[tuple[str, str]], before: str = "") -> None:
    """A table on a terminal, else plain lines, with something in front of each."""
    if out.is_terminal:
        table = Table("what", "how much", title=title)
        for row in rows:
            table.add_row(*row)
        out.print(table)
        return
    for line in (title, *(f"  {what}: {much}" for what, much in rows)):
        show_line(f"{before}{line}")


def assignments(changes: Sequence[str] | None, data: Path | None) -> list[str]:
    """The --set options, and --data as one of them."""
    from fst_core.study import data_override

    return [*(changes or []), *([] if data is None else [data_override(data)])]


def split(values: Sequence[str] | None) -> list[str]:
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def named(option: str, values: Sequence[str] | None) -> list[str]:
    """The parts of an option that may be left out, but not empty, as by a variable without a value.

    Raises:
        ConfigError: for an option that names nothing.
    """
    found = split(values)
    if values and not found:
        raise ConfigError(f"{option} names nothing; leave it out to take the config's own")
    return found


class Interrupted(Exception):
    """Ctrl-C, or a polite kill, at a point from which the same command goes on."""


@contextmanager
def resumable(what: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(what) from error


def check_plan(planned: Sequence[RunConfig], runs: Path) -> None:
    """Tell the notes of planned runs, each once, and refuse one that could not begin.

    Raises:
        ConfigError: if the policy, engine, device or the run to begin with is not to be had.
        DataError: if the problems are broken or too few.
    """
    from fst_core.preflight import preflight
    from fst_core.study import run_folder

    notes = dict.fromkeys(note for one in planned for note in preflight(one, plan_only=True))
    for note in notes:
        say(f"note: {note}")
    settle_for(planned[0])
    from fst_core.starts import refuse_bad_start

    for one in planned:
        refuse_bad_start(one, run_folder(runs, one))


def tell_dropped(config: Path, planned: Sequence[RunConfig]) -> None:
    """Notes on settings that arms or overrides reset."""
    from fst_core.dropped import dropped_notes

    for note in dropped_notes(config, planned):
        say(f"note: {note}")
