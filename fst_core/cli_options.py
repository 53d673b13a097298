"""What all commands of `fst` share: their consoles and options."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

out = Console()
err = Console(stderr=True)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of a run or study.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a setting; TOML, JSON or text."),
]


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
