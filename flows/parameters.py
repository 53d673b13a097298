"""The parameters that flows share, as the form of the UI shows them and the API checks them.

Types and patterns are checked before a run is made; whether a file or an arm is there, and whether
a folder is inside the project, by the run.
"""

import inspect
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from prefect.runtime import deployment
from pydantic import Field
from pydantic.fields import FieldInfo

from fst_core.config import RunConfig
from fst_core.config.model import RunSeed
from tasks.tries import Refused

F = TypeVar("F", bound=Callable[..., Any])

ConfigPath = Annotated[
    str,
    Field(
        pattern=r"\.toml$",
        description="TOML file of a run or study: absolute, or from the project root.",
        examples=["configs/tiny/demo.toml"],
    ),
]
Arm = Annotated[
    str,
    Field(min_length=1, description="Arm of the file, or a built-in one: fst, rl, gepa, base."),
]
Arms = Annotated[tuple[Arm, ...], Field(description="Arms to run; none: the config's own.")]
Seed = Annotated[RunSeed, Field(description="Seed of the run, 0 or more.")]
Seeds = Annotated[tuple[Seed, ...], Field(description="Seeds to run; none: the config's own.")]
Jobs = Annotated[
    Annotated[int, Field(ge=1)] | None,
    Field(description="Runs at once, 1 or more; none: the config's own."),
]
Override = Annotated[str, Field(pattern=r"^[\w-]+(\.[\w-]+)*=")]
Overrides = Annotated[
    tuple[Override, ...],
    Field(
        description="Settings to change, each as KEY.PATH=VALUE.",
        examples=[["loop.steps=40", "slow.learning_rate=1e-4"]],
    ),
]
Runs = Annotated[
    str,
    Field(min_length=1, description="Folder of all studies, inside the project, from its root."),
]
Data = Annotated[
    str | None, Field(description="Folder of pools to read problems from, such as data.")
]
Track = Annotated[bool, Field(description="Whether runs are sent to MLflow.")]
Processes = Annotated[
    int,
    Field(
        ge=1,
        description="Processes of the run on the host that takes it, each on a card of its own.",
    ),
]
Sharded = Annotated[
    bool,
    Field(
        description="Whether several processes share out weights and optimizer (FSDP) or each hold "
        "all of them (DDP)."
    ),
]
Where = Annotated[
    Literal["here", "workers"],
    Field(
        description="Where the runs of a study take place: processes of this machine, or flow runs "
        "of a deployment that any worker of its pool takes."
    ),
]
Deployment = Annotated[
    str,
    Field(
        pattern=r"^[^/]+/[^/]+$",
        description="FLOW/DEPLOYMENT whose workers take the runs, where they are not run here.",
        examples=["train/train", "train/train-gpu"],
    ),
]
First = Annotated[
    Annotated[str, Field(pattern=r"\.toml$")] | None,
    Field(
        description="Config of the study that probes start from; run before, if it has not ended."
    ),
]
Dated = Annotated[
    bool,
    Field(
        description="Write below RUNS/YYYY-MM-DD, the day (UTC) for which the flow run was "
        "scheduled: a study that is run every night then trains anew."
    ),
]
Study = Annotated[
    str,
    Field(
        min_length=1,
        description="Folder of a study's runs, inside the project, from its root.",
        examples=["runs/demo"],
    ),
]


def inside_project(folder: str) -> str:
    """A folder as it was given, unless a deployment's run would leave the project by it.

    The project is the working directory (FST_HOME on a worker). A command line may name any folder.

    Raises:
        Refused: in a deployment's run, for a folder elsewhere, links followed, a name with control
            characters, or a file.
    """
    if deployment.id is None:
        return folder
    place = None if folder.startswith("~") else _place_inside(folder)
    if place is None:
        raise Refused(
            f"{folder!r} is no folder inside the project, {_home()} (links are followed); a "
            "deployment's run writes nowhere else: name one from there, such as 'runs/mine'"
        )
    if any(unicodedata.category(character) == "Cc" for character in folder):
        raise Refused(f"{folder!r} holds control characters; name a folder such as 'runs/mine'")
    file = next((part for part in (place, *place.parents) if part.is_file()), None)
    if file is not None:
        raise Refused(f"{folder!r}: {file} is a file; name a folder, such as 'runs/mine'")
    return folder


def starts_inside_project(planned: Iterable[RunConfig], runs: str) -> None:
    """Raise where a deployment's run would begin with a run from outside the project.

    Args:
        planned: The runs, each of which may begin with another's weights or contexts.
        runs: Folder of all studies, from where those are named.
    Raises:
        Refused: in a deployment's run, for a run elsewhere, links followed.
    """
    if deployment.id is None:
        return
    for config in planned:
        starts = {
            "start_from": config.start_from,
            "contexts.start_from": config.contexts.start_from,
        }
        for key, start in starts.items():
            if start is not None and _place_inside(Path(runs) / start) is None:
                raise Refused(
                    f"{key} = {start!r} is no run inside the project, {_home()} (links are "
                    "followed); a deployment's run begins with no other: name one as "
                    f"NAME/ARM-sSEED, below {runs}"
                )


def _home() -> Path:
    return Path.cwd().resolve()


def _place_inside(path: str | Path) -> Path | None:
    """Where a path leads to, links followed; None where that is outside the project."""
    try:
        place = Path(path).resolve()
    except (RuntimeError, ValueError):  # links in a ring, a null character
        return None
    return place if place.is_relative_to(_home()) else None


def described(function: F) -> F:
    """Add what its parameters' types say to a function's docstring, where Prefect looks for it."""
    lines = [
        f"    {name}: {note.description}"
        for name, hint in get_type_hints(function, include_extras=True).items()
        for note in getattr(hint, "__metadata__", ())
        if isinstance(note, FieldInfo) and note.description
    ]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *lines])
    return function
