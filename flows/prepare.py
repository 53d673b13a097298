"""The problems of all studies made anew where the code or configs behind them have changed.

    python -m flows.prepare

Run it from its deployment, never inside a DVC stage. Where data/ has changed, and the manifest that
git tracks lists what it is now, the event `fst.data.changed` tells so, and an automation starts a
comparison.
"""

import argparse

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from rich.console import Console

from flows.options import told_as_a_sentence
from flows.server import refuse_without_server
from tasks.data import (
    announce,
    data_hash,
    last_announced,
    refuse_inside_a_stage,
    reproduce_data,
    unaccepted_change,
)
from tasks.tries import Refused, told_as_failed


@flow(name="prepare")
def prepare() -> dict[str, str]:
    """Bring data/ to what the code says, and tell the server where that is other data than before.

    Returns:
        The hash of the data that the server was last told of ("old"), and of data/ now ("new").
    Raises:
        Refused: inside a DVC stage, beside another DVC command, where DVC fails, or where the
            manifest that git tracks lists other data than was made.
    """
    with told_as_failed() as ending:
        refuse_inside_a_stage()
        old = last_announced(data_hash())
        reproduce_data()
        new, advice = data_hash(), unaccepted_change()
        create_markdown_artifact(told(old, new, advice), key="data")
        if advice is not None:
            raise Refused(advice)
        if new != old:
            announce(old, new)
        return {"old": old, "new": new}
    return ending.state


def told(old: str, new: str, advice: str | None) -> str:
    """What became of data/, for a reader."""
    became = f"unchanged: `{new}`" if new == old else f"changed: `{old}` before, now `{new}`"
    return f"# data\n\ndata/ is {became}.\n" + (f"\n{advice}.\n" if advice else "")


def main() -> None:
    """Command line of `python -m flows.prepare`."""
    parser = argparse.ArgumentParser(prog="python -m flows.prepare", description="Prepare data/.")
    parser.parse_args()
    with told_as_a_sentence():
        refuse_without_server("one must hear of changed data", "run `dvc repro data.dvc` alone")
        result = prepare()
    Console().print_json(data=result)


if __name__ == "__main__":
    main()
