"""Probes of trained weights: runs that begin with the final weights of another study's runs.

    python -m flows.plasticity configs/tiny/plasticity.toml --first configs/tiny/demo.toml

Training afresh on a second task shows what plasticity is left; a search for contexts alone
(configs/tiny/posthoc.toml) shows what evolved contexts still add. The study named by --first is
run to its end before, unless it has ended; --fresh removes earlier probes only. One report covers
both studies.
"""

from functools import partial
from pathlib import Path

from prefect import flow

from flows.compare import (
    Comparison,
    compare,
    run_and_report,
    run_command,
    study_parser,
    told,
)
from flows.parameters import (
    Arms,
    ConfigPath,
    Data,
    Deployment,
    First,
    Jobs,
    Overrides,
    Runs,
    Seeds,
    Track,
    Where,
    described,
    inside_project,
    starts_inside_project,
)
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.preflight import preflight
from fst_core.run_folder import RunMismatch, final_weights, holds_finished, refuse_other_config
from fst_core.study import expand, find_runs, run_folder
from tasks.runs import Order, with_data
from tasks.tries import told_as_failed


@flow(name="plasticity", flow_run_name="plasticity {config_path}")
@described
def plasticity(
    config_path: ConfigPath,
    arms: Arms = (),
    seeds: Seeds = (),
    jobs: Jobs = None,
    overrides: Overrides = (),
    runs: Runs = "runs",
    data: Data = None,
    track: Track = True,
    on: Where = "here",
    deployment: Deployment = "train/train",
    first: First = None,
) -> Comparison:
    """Probe the weights that other runs ended with, and report on probes and those runs.

    `overrides` change the probes alone.

    Raises:
        ConfigError: before anything starts, if a probe cannot be run or has nothing to start from.
        Refused: if a deployment's run is to leave the project.
        StudyFailed: after its report, if runs of either study failed.
    """
    with told_as_failed() as ending:
        overrides, root = with_data(overrides, data), Path(inside_project(runs))
        planned, study = expand(config_path, overrides, arms, seeds)
        starts_inside_project(planned, runs)
        refuse_lost_starts(planned, root, first, data)
        if first is not None and unfinished(first, root, data):
            compare(
                first,
                jobs=jobs,
                runs=runs,
                data=data,
                track=track,
                on=on,
                deployment=deployment,
            )
        studies = dict.fromkeys(start.parent for start in starts(planned, root))
        order = Order(config_path, overrides, runs, track, on, deployment)
        ending.state = told(run_and_report(order, planned, jobs or study.jobs, find_runs(studies)))
    return ending.state


def starts(planned: list[RunConfig], root: Path) -> list[Path]:
    """Folders of the runs whose final weights are begun with, each once.

    Raises:
        ConfigError: if every run begins with the base model.
    """
    found = [root / config.start_from for config in planned if config.start_from is not None]
    if not found:
        raise ConfigError(
            f"{planned[0].name}: no arm sets start_from, so there are no trained weights to probe"
        )
    return list(dict.fromkeys(found))


def unfinished(first: str, root: Path, data: str | None) -> list[RunConfig]:
    """Runs of a study that have not ended."""
    planned, _ = expand(first, with_data((), data))
    return [config for config in planned if not holds_finished(run_folder(root, config), config)]


def refuse_lost_starts(
    planned: list[RunConfig], root: Path, first: str | None, data: str | None
) -> None:
    """Raise unless the weights that runs begin with are there, or the first study makes them.

    Raises:
        ConfigError: naming the run that is missing, has not ended, holds no checkpoint, or is of
            another config than the first study's.
    """
    coming = unfinished(first, root, data) if first is not None else []
    for config in coming:
        preflight(config)
        try:
            refuse_other_config(run_folder(root, config), config)
        except RunMismatch as error:
            raise ConfigError(f"{error} (python -m flows.compare {first} --fresh)") from error
    made = [run_folder(root, config) for config in coming]
    for start in starts(planned, root):
        if start in made:
            continue
        try:
            final_weights(start)
        except ConfigError as error:
            advice = f"(--first {first} does not make it)" if first else "(or name it with --first)"
            raise ConfigError(f"{error} {advice}") from error


def main() -> None:
    """Command line of `python -m flows.plasticity`."""
    parser = study_parser("plasticity", "Run probes of trained weights and report on both.")
    parser.add_argument("--first", metavar="CONFIG", help="study the probes start from")
    args = parser.parse_args()
    check = partial(refuse_lost_starts, root=Path(args.runs), first=args.first, data=args.data)
    run_command(plasticity, args, check, first=args.first)


if __name__ == "__main__":
    main()
