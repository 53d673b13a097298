"""What holds for every option of the command line."""

from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from fst_core.cli import app


def commands(group: typer.Typer, path: str = "fst") -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.name or command.callback.__name__}", command.callback
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from commands(below.typer_instance, f"{path} {below.name}")


@pytest.mark.parametrize(("name", "call"), commands(app))
def test_every_option_says_its_own_name(name: str, call: Callable[..., Any]) -> None:
    """typer 0.27 calls an option with a metavar and no name of its own by its metavar: --ARM."""
    for parameter, hint in get_type_hints(call, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                first = option.default  # where Annotated has what stands first
                names = [str(n) for n in (first, *(option.param_decls or ()))]
                assert any(n.startswith("--") and n.islower() for n in names), (name, parameter)
