"""Ablations: one setting of an arm changed at a time, with every seed, and what each is worth.

python -m flows.ablation configs/tiny/ablation.toml
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
from fst_core.config import RunConfig, StudyConfig
from fst_core.config.model import ConfigError
from fst_core.study import expand
from tasks.runs import Order, with_data
from tasks.tries import told_as_failed


@flow(name="ablation", flow_run_name="ablation {config_path}")
@described
def ablation(
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
    """Train every arm and every value of the sweeps with every seed, and report.

    Raises:
        ConfigError: before anything starts, if there are no sweeps or a run cannot be run.
        Refused: if a deployment's run is to leave the project.
        StudyFailed: after the report, if runs failed.
    """
    with told_as_failed() as ending:
        overrides, runs = with_data(overrides, data), inside_project(runs)
        planned, study = expand(config_path, overrides, arms, seeds)
        starts_inside_project(planned, runs)
        refuse_without_sweeps(study, config_path)
        order = Order(config_path, overrides, runs, track, on, deployment)
        ending.state = told(run_and_report(order, planned, jobs or study.jobs))
    return ending.state


def refuse_without_sweeps(study: StudyConfig, config_path: str) -> None:
    """Raise unless the study changes a setting.

    Raises:
        ConfigError: naming the file.
    """
    if not study.sweeps:
        raise ConfigError(
            f"{config_path}: the study has no [[study.sweeps]], so nothing is ablated; add one "
            "with name, key and values (flows.compare runs studies of arms alone)"
        )


def main() -> None:
    """Command line of `python -m flows.ablation`."""
    parser = study_parser("ablation", "Run arms and sweeps x seeds and report on them.")
    args = parser.parse_args()

    def check(_: list[RunConfig]) -> None:
        _, study = expand(args.config, with_data(args.set, args.data))
        refuse_without_sweeps(study, args.config)

    run_command(ablation, args, check)


if __name__ == "__main__":
    main()
