"""A run over several processes that another process drives, phase by phase: its own side.

    accelerate launch ... -m fst_core.driven SOCKET CONFIG --arm ARM --seed N --runs DIR [--set ...]

Rank 0 connects to a Unix socket, opens the session, and does what is said there; the other side is
`fst_core.remote`. One JSON object a line. To rank 0: `do`, a method of the session, `given`, its
arguments, and `next_phase`. From rank 0: `state`, and whether what was asked for is `done`; else
engine calls go on. An error is told as a sentence and the names of its kinds, and ends all ranks.
"""

import argparse
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fst_core.channel import Channel
from fst_core.config import RunConfig, load_config
from fst_core.failures import sentence_for
from fst_core.interrupts import end_on
from fst_core.launch import launch, speaks, wait_to_be_ended
from fst_core.processes import SENTENCE, end_with_parent
from fst_core.quiet import settle_environment, settle_for
from fst_core.records import to_json
from fst_core.study import run_folder

if TYPE_CHECKING:
    from fst_core.ranks import Ranks
    from fst_core.session import Session

ORDERS = frozenset({"evolve", "step", "evaluate", "save", "finish"})
"""What a driver may ask of a session: the methods of `fst_core.interleave.Runner`."""


def obey(config: RunConfig, folder: Path, ranks: "Ranks", channel: Channel) -> None:
    """Rank 0: open the session, and do what the driver says until it hangs up."""
    from fst_core.session import Session  # noqa: PLC0415  (torch, transformers)

    with Session(config, folder, ranks=ranks) as session:
        session.on_call = lambda: channel.send(state=counts(session), done=False)
        channel.send(state=whole_state(session), done=True)
        for order in _orders(channel):
            session.next_phase = order["next_phase"]
            getattr(session, order["do"])(*order["given"])
            channel.send(state=whole_state(session), done=True)


@contextmanager
def telling(channel: Channel) -> Iterator[None]:
    """Tell the driver of an error that ends the block."""
    try:
        yield
    except Exception as error:
        kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
        channel.send(error=sentence_for(error) or repr(error), kinds=kinds)
        raise


def _orders(channel: Channel) -> Iterator[dict[str, Any]]:
    for order in channel:
        if order["do"] not in ORDERS:
            raise ValueError(f"{order['do']!r} is nothing that a session is asked for")
        yield order


def counts(session: "Session") -> dict[str, Any]:
    """Where a session stands within a phase."""
    return {"step_done": session.step_done, "ledger": to_json(session.ledger)}


def whole_state(session: "Session") -> dict[str, Any]:
    """What its driver knows of a session between two orders."""
    population = to_json(session.population)
    return {**counts(session), "next_phase": session.next_phase, "population": population}


def main(arguments: Sequence[str] | None = None) -> None:
    """One process of the launch."""
    settle_environment()
    end_with_parent(signal.SIGKILL)  # a process that waits for the others hears nothing less
    end_on(signal.SIGTERM)  # a stopped run closes its files
    parser = argparse.ArgumentParser(prog="python -m fst_core.driven")
    parser.add_argument("socket")
    parser.add_argument("config")
    parser.add_argument("--arm", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args(arguments)
    if launch().rank:
        with _joined(args) as (_, ranks):
            from fst_core.ranks import serve  # noqa: PLC0415  (torch, transformers)

            serve(ranks)
        return
    line = socket.socket(socket.AF_UNIX)
    line.connect(args.socket)
    with Channel(line) as channel, telling(channel), _joined(args) as (config, ranks):
        obey(config, run_folder(args.runs, config), ranks, channel)


@contextmanager
def _joined(args: argparse.Namespace) -> Iterator[tuple[RunConfig, "Ranks"]]:
    """The run that the command line names, and the processes that hold it."""
    config, _ = load_config(args.config, args.arm, [*args.set, f"seed={args.seed}"])
    settle_for(config)
    from fst_core.ranks import joined  # noqa: PLC0415  (torch, transformers)

    with joined(config) as ranks:
        yield config, ranks


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sentence = sentence_for(error)
        if sentence is None:
            raise
        if not speaks():
            wait_to_be_ended()
        sys.exit(f"{SENTENCE}{sentence}")
