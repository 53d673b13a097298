"""Arms x seeds over tasks that follow each other in one run: what is learned, kept and forgotten.

python -m flows.continual configs/tiny/continual.toml
"""

from prefect import flow

from flows.compare import Comparison, run_and_report, run_command, study_parser, told
from flows.parameters import (
    Arms,
    ConfigPath,
    Data,
    Deployment,
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
from fst_core.config import RunConfig, SequenceConfig
from fst_core.config.model import ConfigError
from fst_core.study import expand
from tasks.runs import Order, with_data
from tasks.tries import told_as_failed


@flow(name="continual", flow_run_name="continual {config_path}")
@described
def continual(
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
) -> Comparison:
    """Train every arm with every seed through the tasks of a sequence, and report.

    Raises:
        ConfigError: before anything starts, if a run has one task only or cannot be run.
        Refused: if a deployment's run is to leave the project.
        StudyFailed: after the report, if runs failed.
    """
    with told_as_failed() as ending:
        overrides, runs = with_data(overrides, data), inside_project(runs)
        planned, study = expand(config_path, overrides, arms, seeds)
        starts_inside_project(planned, runs)
        refuse_single_tasks(planned)
        order = Order(config_path, overrides, runs, track, on, deployment)
        ending.state = told(run_and_report(order, planned, jobs or study.jobs))
    return ending.state


def refuse_single_tasks(planned: list[RunConfig]) -> None:
    """Raise unless every run goes through several tasks.

    Raises:
        ConfigError: naming the first run that does not.
    """
    for config in planned:
        if not isinstance(config.environment, SequenceConfig):
            raise ConfigError(
                f"{config.name}/{config.id}: environment.type is {config.environment.type!r}; a "
                'continual study needs "sequence" (compare runs studies of one task)'
            )


def main() -> None:
    """Command line of `python -m flows.continual`."""
    parser = study_parser("continual", "Run arms x seeds over a sequence of tasks.")
    run_command(continual, parser.parse_args(), refuse_single_tasks)


if __name__ == "__main__":
    main()
