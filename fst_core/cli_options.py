"""What all commands of `fst` share: their consoles and options."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of a run or study.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a setting.")
]


def say(text: str) -> None:
    """A line on stderr, as it is."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)
