"""`fst data`: pools of problems as versions."""

from pathlib import Path
from typing import Annotated

import typer

from fst_core.cli_options import Command, ConfigFile, Group, Overrides, say
from fst_core.config import load_config
from fst_core.counting import counted
from fst_core.records import Split

data_app = typer.Typer(cls=Group, no_args_is_help=True, help="Versioned pools of problems.")


@data_app.command("build", cls=Command)
def data_build(
    config: ConfigFile,
    target: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of all pools.")],
    train: Annotated[
        int | None, typer.Option("--train", metavar="N", min=0, help="Else what the run reads.")
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option("--validation", metavar="N", min=0, help="Else what the run reads."),
    ] = None,
    test: Annotated[
        int | None, typer.Option("--test", metavar="N", min=0, help="Else as many as validation.")
    ] = None,
    changes: Overrides = None,
) -> None:
    """Write the problems a config reads as a pool, in DIR/NAME."""
    from fst_core.environments.pools import build_pools
    from fst_core.environments.tasks import problems_read

    resolved, _ = load_config(config, None, changes or [])
    asked: dict[Split, int | None] = {"train": train, "validation": validation, "test": test}
    for environment, read in problems_read(resolved):
        wanted = {split: read[split] if count is None else count for split, count in asked.items()}
        folder = target / environment.name
        manifest = build_pools(environment, folder, wanted)
        counts = ", ".join(f"{count} {split}" for split, count in manifest["counts"].items())
        say(f"{folder}: {counts} problems")


@data_app.command("check", cls=Command)
def data_check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of all pools.")],
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest", metavar="FILE", help="Compare with this one (of `fst data manifest`)."
        ),
    ] = None,
) -> None:
    """Compare every pool file with a manifest: DIR.manifest.json beside DIR, or the pools' own."""
    from fst_core.environments.pools import check_own, check_pools

    if manifest is None:
        manifests = check_own(folder)
    else:
        check_pools(folder, manifest)
        manifests = [manifest]
    say(f"{folder}: every file is as {', '.join(map(str, manifests))} says")


@data_app.command("manifest", cls=Command)
def data_manifest(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of all pools.")],
    target: Annotated[Path, typer.Option("--out", metavar="FILE", help="Manifest to write.")],
) -> None:
    """Write the hashes of all pool files."""
    from fst_core.environments.files import refuse_no_folder
    from fst_core.environments.pools import write_manifest

    refuse_no_folder(folder)
    say(f"{target}: {counted(len(write_manifest(folder, target)), 'file')}")
