"""The versioned problems under data/: made anew by DVC, compared with what git vouches for."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.variables import Variable

from fst_core.environments.errors import DataError
from tasks.tries import Refused

POINTER = Path("data.dvc")
FOLDER, MANIFEST = Path("data"), Path("data.manifest.json")
CHANGED = "fst.data.changed"
"""Event of changed data; its payload has the hashes "old" and "new"."""
RESOURCE = "fst.data"
ANNOUNCED = "fst_data"
"""Variable of the Prefect server: the hash of the data that it was last told of."""
STAGE_VARIABLES = ("DVC_STAGE", "DVC_ROOT")
"""Set by DVC for the commands of its stages."""
BUSY = ("Unable to acquire lock", "is busy, it is being blocked by")
TAIL_LINES = 8


def refuse_inside_a_stage(environment: Mapping[str, str] = os.environ) -> None:
    """Raise where this process was started by a stage of DVC.

    Raises:
        Refused: always in a stage; DVC holds its lock there, so nothing could be made anew.
    """
    name = next((name for name in STAGE_VARIABLES if environment.get(name)), None)
    if name is not None:
        raise Refused(
            f"this runs inside the DVC stage {environment.get('DVC_STAGE', 'of ' + name)!r}, where "
            "data cannot be prepared; run the deployment prepare/prepare, or `dvc repro data.dvc`"
        )


def data_hash() -> str:
    """The hash that data.dvc records of data/.

    Raises:
        Refused: if the project here has no data.dvc with one output.
    """
    try:
        (out,) = yaml.safe_load(POINTER.read_text())["outs"]
        return str(out["md5"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise Refused(
            f"{POINTER.absolute()} cannot be read ({error!r}); FST_HOME must name a clone of the "
            "project, and git restores the file"
        ) from error


@task(name="reproduce data", task_run_name="dvc repro data.dvc", cache_policy=NO_CACHE)
def reproduce_data() -> None:
    """Bring data/ to what the code and configs say, by `dvc repro data.dvc`.

    Raises:
        Refused: if another DVC command holds the lock, or DVC fails; with the end of its output.
    """
    programs = Path(sys.executable).parent
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro", str(POINTER)],
        env={**os.environ, "PATH": path},  # the stage's command is `fst`
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        get_run_logger().info("%s", line)
    if any(mark in done.stdout for mark in BUSY):
        raise Refused(
            f"another DVC command is at work in {Path.cwd()}, so data/ was not made anew; wait for "
            "it, then run this again"
        )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
        raise Refused(f"`dvc repro {POINTER}` ended with status {done.returncode}:\n{tail}")


@task(name="check data", cache_policy=NO_CACHE)
def unaccepted_change() -> str | None:
    """Why data/ is not what the manifest that git tracks says, and what to do; None where it is."""
    from fst_core.environments.pools import check_pools

    try:
        check_pools(FOLDER, MANIFEST)
    except DataError as error:
        return (
            f"{error}. The change is not announced, and DVC's training stages refuse it, until it "
            f"is accepted: if it is meant, `fst data manifest {FOLDER} --out {MANIFEST}`, commit "
            f"{MANIFEST} and {POINTER}, and run prepare again"
        )
    return None


def last_announced(present: str) -> str:
    """The hash of the data that the Prefect server was last told of; at first, that of now."""
    known = Variable.get(ANNOUNCED)
    if known is not None:
        return str(known)
    Variable.set(ANNOUNCED, present)
    return present


def announce(old: str, new: str) -> None:
    """Tell the Prefect server that data/ has changed; an automation starts what depends on it."""
    resource = {"prefect.resource.id": RESOURCE, "prefect.resource.name": str(FOLDER)}
    emit_event(CHANGED, resource, payload={"old": old, "new": new})
    Variable.set(ANNOUNCED, new, overwrite=True)
