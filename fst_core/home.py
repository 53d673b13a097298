"""Where the project is on this machine: what a deployment's run does first on any worker."""

import os
from pathlib import Path

HOME = "FST_HOME"
"""Variable with the folder of the project's clone, read by the process that runs a flow."""


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
