"""One run as a flow: fast and slow phases take turns, each a task run.

    python -m flows.train configs/tiny/demo.toml --arm fst --seed 0

A run that died goes on at its last checkpoint; a finished one is left as it is.
"""

import argparse
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, tags
from prefect.states import Completed

from flows.options import add_shared_options, at_least, told_as_a_sentence
from flows.parameters import (
    Arm,
    ConfigPath,
    Data,
    Overrides,
    Processes,
    Runs,
    Seed,
    Sharded,
    Track,
    described,
    inside_project,
    starts_inside_project,
)
from flows.server import prefect_server
from fst_core.cli_options import say, show_rows
from fst_core.config import RunConfig, load_config
from fst_core.dropped import dropped_notes
from fst_core.interleave import FastPhase, remaining
from fst_core.launch import refuse_processes
from fst_core.processes import end_with_parent
from fst_core.run_folder import forget_earlier, holds_finished
from fst_core.study import run_folder
from fst_core.summary import headline, summary_rows
from tasks.alive import Attempt, current_attempt, outlive_reader
from tasks.archive import fetch, keep
from tasks.cards import cards_for
from tasks.phases import perform
from tasks.runs import Order, with_data
from tasks.sessions import Spread, live_session
from tasks.show import show_contexts, show_summary, tag_with_place, what_was_away
from tasks.track import track as send
from tasks.tries import Refused, told_as_failed

BEFORE = "{} is finished: nothing is left to train; another seed or name is another run"


@flow(name="train", flow_run_name="{arm}-s{seed}", retries=1)
@described
def train(
    config_path: ConfigPath,
    arm: Arm = "fst",
    seed: Seed = 0,
    overrides: Overrides = (),
    runs: Runs = "runs",
    data: Data = None,
    track: Track = True,
    processes: Processes = 1,
    sharded: Sharded = False,
) -> dict[str, Any]:
    """Train one arm with one seed from wherever its folder stands.

    Retry the flow, never a phase: each try reopens the run at its last checkpoint. An error that
    another try would meet again is not tried again. Where the flow run is given to another process,
    this one stops after the phase that it is in.

    Returns:
        The run folder, the last evaluation's numbers, how often MLflow could not be used, and how
        often the store of run folders (FST_STORE) could not.
    """
    outlive_reader()
    with told_as_failed() as ending:
        root, missed = Path(inside_project(runs)), Missed()
        changes = with_data(overrides, data)
        config, _ = load_config(config_path, arm, [*changes, f"seed={seed}"])
        spread = spread_over(processes, sharded, config, Order(config_path, changes, runs, track))
        starts_inside_project([config], runs)
        for note in dropped_notes(config_path, [config]):
            get_run_logger().warning("note: %s", note)
        folder = run_folder(root, config)
        tag_with_place(folder.parent)
        attempt = current_attempt()
        attempt.wait_for(folder)
        bring(config, root, missed)
        told = BEFORE.format(folder) if holds_finished(folder, config) else ""
        if told:
            get_run_logger().info("%s", told)
        else:
            with cards_for(config, processes):
                cycles(config, folder, spread, track, missed, attempt)
        if track:
            missed.untracked += not send(folder, final=True)
        missed.unstored += not keep(folder, final=True)
        metrics = show_summary(folder, missed.untracked, missed.unstored)
        result = {"folder": str(folder), "metrics": metrics, **asdict(missed)}
        ending.state = Completed(data=result, message=told or f"{folder}: {headline(folder)}")
    return ending.state


@dataclass
class Missed:
    """How often something that stops no run could not be used."""

    untracked: int = 0
    """MLflow."""
    unstored: int = 0
    """The store of run folders."""


def bring(config: RunConfig, runs: Path, missed: Missed) -> None:
    """Fetch the run, and those it begins from, where the store has more of them than the disk."""
    begun_from = [start for start in (config.start_from, config.contexts.start_from) if start]
    for folder in dict.fromkeys([run_folder(runs, config), *(runs / name for name in begun_from)]):
        missed.unstored += not fetch(folder)


def spread_over(processes: int, sharded: bool, config: RunConfig, order: Order) -> Spread:
    """The processes of a run (see `refuse_spread`)."""
    refuse_spread(processes, sharded, config)
    if processes == 1:
        return Spread()
    return Spread(processes, sharded, order.words(config.arm, config.seed))


def refuse_spread(processes: int, sharded: bool, config: RunConfig) -> None:
    """Refuse processes that a run cannot be spread over.

    Raises:
        ConfigError: if the run cannot be split over so many.
        Refused: if one process is to share out the weights.
    """
    if processes > 1:
        refuse_processes(config, processes)
    elif sharded:
        raise Refused("one process has nobody to share the weights with: raise processes")


def cycles(
    config: RunConfig,
    folder: Path,
    spread: Spread,
    track: bool,
    missed: Missed,
    attempt: Attempt,
) -> None:
    """Run every phase that is left, as long as the flow run is this attempt's."""
    with live_session(config, folder, spread) as session:
        forget_earlier(folder)
        where = f"goes on at phase {session.next_phase}" if session.next_phase else "begins"
        get_run_logger().info("%s %s", folder, where)
        for phase in remaining(session):
            record = perform(config.id, phase)
            attempt.stop_if_lost(session, record.saved)
            if isinstance(phase, FastPhase):
                show_contexts(config.id, phase.cycle)
            if record.saved:
                missed.untracked += track and not send(folder)
                missed.unstored += not keep(folder)
        session.finish()


def main() -> None:
    """Command line of `python -m flows.train`."""
    end_with_parent(signal.SIGKILL)  # its server may be gone as well, and Prefect asks for minutes
    parser = argparse.ArgumentParser(prog="python -m flows.train", description="Train one run.")
    parser.add_argument("config", help="TOML file")
    parser.add_argument("--arm", help="arm of the file, or a built-in one; else the file's own")
    parser.add_argument("--seed", type=int, help="seed of the run; else the file's own")
    parser.add_argument(
        "--retries", type=at_least(0), default=1, help="further tries after a failure"
    )
    parser.add_argument(
        "--processes", type=at_least(1), default=1, help="each on a card of its own"
    )
    parser.add_argument("--sharded", action="store_true", help="FSDP over the processes, not DDP")
    add_shared_options(parser)
    args = parser.parse_args()
    with told_as_a_sentence():
        overrides = with_data(args.set, args.data)
        seed = [] if args.seed is None else [f"seed={args.seed}"]
        config, _ = load_config(args.config, args.arm, [*overrides, *seed])
        refuse_spread(args.processes, args.sharded, config)
        home = Path(args.runs) / config.name / "prefect"
        with prefect_server(home), tags(config.name, config.arm):
            result = train.with_options(retries=args.retries)(
                args.config, config.arm, config.seed, overrides, args.runs, None, not args.no_track,
                args.processes, args.sharded,
            )  # fmt: skip
    folder = Path(result["folder"])
    show_rows(str(folder), summary_rows(folder))
    for away, remedy in what_was_away(folder, result["untracked"], result["unstored"]):
        say(f"{away}: {remedy}")


if __name__ == "__main__":
    main()
