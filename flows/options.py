"""What the command lines of the flows share."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flows.server import ServerGone
from fst_core.cli import say
from fst_core.interrupts import end_on
from tasks.alive import Lost
from tasks.tries import sentence_of


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Options that mean the same for one run and for a study."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="change a setting"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="where runs are written")
    parser.add_argument("--data", metavar="DIR", help="read problems from pools in DIR")
    parser.add_argument("--no-track", action="store_true", help="keep out of MLflow")


class Listed(argparse.Action):
    """Words apart by spaces or commas, each turned into a `kind`."""

    def __init__(self, *args: Any, kind: Callable[[str], Any] = str, **more: Any):
        super().__init__(*args, **more)
        self.kind = kind

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        words = [word.strip() for value in values for word in value.split(",")]
        try:
            kept = [self.kind(word) for word in words]
        except ValueError:
            kept = []
        if not kept or not all(words):
            wanted = "whole numbers" if self.kind is int else "names"
            parser.error(f"argument {option_string}: no list of {wanted}: {' '.join(values)!r}")
        setattr(namespace, self.dest, kept)


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number of a lowest value."""

    def parsed(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    parsed.__name__ = "whole number"  # argparse: invalid whole number value: 'two'
    return parsed


@contextmanager
def told_as_a_sentence() -> Iterator[None]:
    """Turn errors a user can act on into one sentence and exit status 1; Ctrl-C into 130."""
    end_on(signal.SIGINT)
    try:
        yield
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        say(f"error: {sentence}")
        if isinstance(error, ServerGone):
            os._exit(1)
        sys.exit(1)
    except Lost as lost:
        say(str(lost))
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; the same command, without --fresh, goes on at the last checkpoint")
        sys.exit(130)
