"""The report of a study again, from the journals that are there.

python -m flows.report runs/demo
"""

import argparse
from pathlib import Path

from prefect import flow
from rich.console import Console

from flows.options import told_as_a_sentence
from flows.parameters import Study, Track, described, inside_project
from flows.server import prefect_server
from fst_core.study import find_runs
from tasks.report import write_report
from tasks.show import tag_with_place
from tasks.track import track_report
from tasks.tries import told_as_failed


@flow(name="report", flow_run_name="report {study}")
@described
def report(study: Study, track: Track = True) -> dict[str, str]:
    """Write a study folder's report files; their paths by name.

    Raises:
        ConfigError: if the folder holds no run.
        Refused: if a deployment's run is to write outside the project.
    """
    with told_as_failed() as ending:
        folder = Path(inside_project(study))
        tag_with_place(folder)
        made = write_report(find_runs([folder]), folder)
        if track:
            track_report(folder.absolute().name, folder)
        return {name: str(path) for name, path in made.paths.items()}
    return ending.state


def main() -> None:
    """Command line of `python -m flows.report`."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.report", description="Report on a study."
    )
    parser.add_argument("study", help="folder of a study's runs, runs/NAME")
    parser.add_argument("--no-track", action="store_true", help="keep out of MLflow")
    args = parser.parse_args()
    with told_as_a_sentence(), prefect_server(Path(args.study) / "prefect"):
        paths = report(args.study, not args.no_track)
    Console().print_json(data=paths)


if __name__ == "__main__":
    main()
