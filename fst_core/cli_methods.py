"""`fst methods` and `fst settings`: what a config can say."""

from typing import Annotated

import typer
from rich.table import Table

from fst_core.cli_options import out
from fst_core.config.model import ConfigError


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One method in full.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="All in full, as docs/methods.md.")
    ] = False,
) -> None:
    """List every fast, slow, curriculum and retention method: its paper, cost and defaults."""
    from fst_core.catalogue import KINDS, catalogue
    from fst_core.catalogue import markdown as page

    if markdown:
        typer.echo(page(), nl=False)
        return
    entries = [entry for entry in catalogue() if name in (None, entry.name)]
    if not entries:
        known = ", ".join(sorted({entry.name for entry in catalogue()}))
        raise ConfigError(f"no method {name!r}; known methods: {known}")
    if name is None:
        for kind, (_, about) in KINDS.items():
            table = Table("type", "what it is", "what it costs", title=about, title_justify="left")
            for entry in entries:
                if entry.kind == kind:
                    table.add_row(entry.name, entry.title, entry.cost)
            out.print(table)
        return
    for entry in entries:
        name_and_title = f"{entry.kind}: {entry.name}\n{entry.title}"
        parts = (name_and_title, *map(reflowed, entry.about.split("\n\n")), f"Cost: {entry.cost}")
        out.print("\n\n".join(parts), markup=False, highlight=False)
        table = Table("setting", "default", "what it does")
        for setting in entry.settings:
            table.add_row(setting.name, setting.default, setting.about)
        out.print(table)


def reflowed(paragraph: str) -> str:
    """A paragraph as one line, which the terminal breaks; lists and indented lines as they are."""
    lines = paragraph.split("\n")
    if any(line[:1] in "-* " for line in lines):
        return paragraph
    return " ".join(lines)


def show_settings() -> None:
    """Every setting of a config but the methods' own, with its default, as docs/settings.md."""
    from fst_core.catalogue import settings_page

    typer.echo(settings_page(), nl=False)
