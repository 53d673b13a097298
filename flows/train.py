"""One run as a flow: fast and slow phases take turns, each a task run.

    python -m flows.train configs/tiny/demo.toml --arm fst --seed 0

A run that died goes on at its last checkpoint; a finished one is left as it is.
"""

import argparse
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, tags
from rich.console import Console

from flows.options import add_shared_options, told_as_a_sentence
from flows.server import prefect_server
from fst_core.config import RunConfig, load_config
from fst_core.interleave import FastPhase, remaining
from fst_core.offline import holds_finished
from fst_core.run_folder import forget_earlier
from fst_core.study import end_with_parent, run_folder
from tasks.phases import perform
from tasks.runs import with_data
from tasks.sessions import live_session
from tasks.show import show_contexts, show_summary
from tasks.track import track as send


@flow(name="train", flow_run_name="{arm}-s{seed}", retries=1)
def train(
    config_path: str,
    arm: str = "fst",
    seed: int = 0,
    overrides: tuple[str, ...] = (),
    runs: str = "runs",
    data: str | None = None,
    track: bool = True,
) -> dict[str, Any]:
    """Train one arm with one seed from wherever its folder stands.

    Retry the flow, never a phase: each try reopens the run at its last checkpoint.

    Returns:
        The run folder, the last evaluation's numbers, and how often MLflow could not be used.
    """
    config, _ = load_config(config_path, arm, [*with_data(overrides, data), f"seed={seed}"])
    folder = run_folder(Path(runs), config)
    untracked = 0
    if not holds_finished(folder, config):
        untracked += cycles(config, folder, track)
    if track:
        untracked += not send(folder, final=True)
    metrics = show_summary(folder, untracked)
    return {"folder": str(folder), "metrics": metrics, "untracked": untracked}


def cycles(config: RunConfig, folder: Path, track: bool) -> int:
    """Run every phase that is left; how often MLflow could not be used."""
    untracked = 0
    with live_session(config, folder) as session:
        forget_earlier(folder)
        get_run_logger().info("%s: on from phase %d", folder, session.next_phase)
        for phase in remaining(session):
            record = perform(config.id, phase)
            if isinstance(phase, FastPhase):
                show_contexts(config.id, phase.cycle)
            if track and record.saved:
                untracked += not send(folder)
        session.finish()
    return untracked


def main() -> None:
    """Command line of `python -m flows.train`."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="python -m flows.train", description="Train one run.")
    parser.add_argument("config", help="TOML file")
    parser.add_argument("--arm", help="arm of the file, or a built-in one; else the file's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--retries", type=int, default=1, help="further tries after a failure")
    add_shared_options(parser)
    args = parser.parse_args()
    overrides = with_data(args.set, args.data)
    with told_as_a_sentence():
        config, _ = load_config(args.config, args.arm, [*overrides, f"seed={args.seed}"])
        home = Path(args.runs) / config.name / "prefect"
        with prefect_server(home), tags(config.name, config.arm):
            result = train.with_options(retries=args.retries)(
                args.config, config.arm, args.seed, overrides, args.runs, None, not args.no_track
            )
    Console().print_json(data=result)


if __name__ == "__main__":
    main()
