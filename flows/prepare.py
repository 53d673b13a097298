"""The problems of all studies made anew where the code or configs behind them have changed.

    python -m flows.prepare

Run it from its deployment, never inside a DVC stage. Where data/ has changed, the event
`fst.data.changed` tells so, and an automation starts a comparison.
"""

import argparse

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.settings import get_current_settings
from rich.console import Console

from flows.options import told_as_a_sentence
from flows.server import ServerError
from tasks.data import (
    announce,
    data_hash,
    refuse_inside_a_stage,
    reproduce_data,
    unaccepted_change,
)


@flow(name="prepare")
def prepare() -> dict[str, str | None]:
    """Bring data/ to what the code says, and tell the server where that has changed it.

    Returns:
        The hash of data/ before ("old") and after ("new"), and what to do where the manifest that
        git tracks is of other data ("advice").
    Raises:
        Refused: inside a DVC stage, beside another DVC command, or where DVC fails.
    """
    refuse_inside_a_stage()
    old = data_hash()
    reproduce_data()
    new, advice = data_hash(), unaccepted_change()
    if new != old:
        announce(old, new)
    if advice is not None:
        get_run_logger().warning("%s", advice)
    create_markdown_artifact(told(old, new, advice), key="data")
    return {"old": old, "new": new, "advice": advice}


def told(old: str, new: str, advice: str | None) -> str:
    """What became of data/, for a reader."""
    became = f"unchanged: `{new}`" if new == old else f"changed: `{old}` before, now `{new}`"
    return f"# data\n\ndata/ is {became}.\n" + (f"\n{advice}.\n" if advice else "")


def refuse_without_server() -> None:
    """Raise unless a Prefect server is configured.

    Raises:
        ServerError: a server that ended with this command could not act on changed data.
    """
    if not get_current_settings().api.url:
        raise ServerError(
            "no Prefect server is configured, and one must hear of changed data: set "
            "PREFECT_API_URL, or run `dvc repro data.dvc` alone"
        )


def main() -> None:
    """Command line of `python -m flows.prepare`."""
    parser = argparse.ArgumentParser(prog="python -m flows.prepare", description="Prepare data/.")
    parser.parse_args()
    with told_as_a_sentence():
        refuse_without_server()
        result = prepare()
    Console().print_json(data=result)


if __name__ == "__main__":
    main()
