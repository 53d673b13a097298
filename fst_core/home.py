"""Where the project is on this machine, which a deployment's run enters first, and what is where
in it."""

import os
from pathlib import Path, PurePosixPath

HOME = "FST_HOME"
"""Variable with the folder of the project's clone, read by the process that runs a flow."""

RUNS = "runs"
"""Where runs are, unless told otherwise."""


def place_of(folder: Path) -> str:
    """What a run folder is called wherever it is kept: its path below the working folder's runs/.

    Elsewhere its last two names, STUDY/RUN.
    """
    whole = Path(os.path.abspath(folder))  # which has no .. any more
    parts = whole.parts[1:][-2:]
    for path in (whole, folder.resolve()):  # a working folder is told with its links resolved
        below = _below(Path.cwd() / RUNS, path) or _below(Path.cwd(), path)
        if len(below) > 1:
            return "/".join(below)
    return "/".join(parts)


def study_place_of(study: Path) -> str:
    """The same of the folder of a study's runs."""
    return str(PurePosixPath(place_of(study / "run")).parent)


def _below(root: Path, path: Path) -> tuple[str, ...]:
    return path.relative_to(root).parts if path.is_relative_to(root) else ()


def clone(named: str) -> Path | None:
    """The clone of the project that a value of FST_HOME names, or None if it names none."""
    try:
        folder = Path(named).expanduser()
        return folder if named and (folder / "flows").is_dir() else None
    except (OSError, RuntimeError):  # too long or not ours to read; of a user who is not there
        return None


def enter_home() -> dict[str, str]:
    """Make the project's folder the working directory.

    Returns:
        It, under the key "directory".
    Raises:
        RuntimeError: if FST_HOME does not name a clone of the project.
    """
    named = os.environ.get(HOME, "")
    folder = clone(named)
    if folder is None:
        said = f"{HOME} = {named!r} is no clone of the project" if named else f"{HOME} is not set"
        raise RuntimeError(
            f"{said}; start this worker again with {HOME} set to the folder that holds flows/"
        )
    os.chdir(folder)
    return {"directory": str(folder.resolve())}
