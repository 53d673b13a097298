"""Prefect, MLflow and an S3 store (SeaweedFS) on the loopback interface of this machine.

    python -m infra.services up [--home .services] [--only prefect,mlflow,s3] [--ports s3=9000]
    eval "$(python -m infra.services up --env)"     # and what this shell starts uses them
    python -m infra.services down [--home .services] [--only ...]

What runs is in HOME/services.json; a second `up` starts what is missing, `down` ends what `up`
started and nothing else. Data and logs stay in HOME. The store's keys are made at random on the
first start and kept in HOME/s3/keys.json, readable by its owner alone.
"""

import argparse
import fcntl
import json
import shlex
import signal
import sys
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fst_core.quiet import settle_environment
from fst_core.storage import StorageError, make_bucket
from infra.processes import Started, alive, end, start
from infra.servers import (
    BUCKET,
    HEALTH,
    PORTS,
    TITLES,
    ServiceError,
    address,
    client_env,
    command,
    environment,
    keys_path,
    listener,
    listens,
)

START_SECONDS = 300.0
"""A first start makes databases; on a busy machine that takes its time."""
GRACE_SECONDS = 25.0
"""SeaweedFS waits 15 s for its own open streams when it is asked to end."""
TAIL_LINES = 15

STATE = "services.json"


class Entry(TypedDict):
    """A service that was started."""

    port: Annotated[int, Field(gt=0, lt=65536)]
    s3_port: int
    """Of the store, when it was started."""
    pid: Annotated[int, Field(gt=1)]
    boot: str
    began: int


State = dict[str, Entry]
RECORD = TypeAdapter(dict[Annotated[str, Field(pattern=f"^({'|'.join(PORTS)})$")], Entry])


def up(home: Path, wanted: Collection[str], ports: Mapping[str, int]) -> State:
    """Start what is wanted and not yet running, and wait until all of it answers.

    Returns:
        All that now runs.
    Raises:
        ServiceError: if a port is taken or a service does not start; those that this call has
            started are ended, and the message holds the end of the log.
    """
    home.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(home):
        state = running(home)
        missing = [name for name in _with_store(wanted) if name not in state]
        chosen = {name: ports.get(name, PORTS[name]) for name in missing}
        known = PORTS | dict(ports) | _ports(state)
        _refuse_moves(home, state, known | dict(ports))
        _refuse_taken(home, chosen)
        begun: list[str] = []
        try:
            for name in missing:
                begun.append(name)
                _start(home, state, name, known)
            for name in state:
                _wait(home, name, state[name])
            if "s3" in state:  # also where an earlier call died before it came to that
                _make_bucket(home, state)
        except BaseException:
            for name in set(begun) & state.keys():
                end(_process(state.pop(name)), grace_seconds=0)
            _write_state(home, state)
            raise
    return state


def down(home: Path, wanted: Collection[str], grace_seconds: float = GRACE_SECONDS) -> list[str]:
    """End what `up` started in this home; the names of those that were running."""
    if not (home / STATE).is_file():
        return []
    ended = []
    with _one_at_a_time(home):
        state = _recorded(home)
        for name in [name for name in reversed(PORTS) if name in wanted and name in state]:
            process = _process(state[name])
            ended += [name] if alive(process) else []
            end(process, grace_seconds)  # also what a dead leader has left behind
            del state[name]
            _write_state(home, state)
    return ended


def running(home: Path) -> State:
    """What runs in a home; a record of a process that is gone, or of another boot, is none."""
    return {name: entry for name, entry in _recorded(home).items() if alive(_process(entry))}


def exports(home: Path, state: State) -> str:
    """Shell lines that set the clients' variables; they hold the store's keys."""
    env = client_env(home, _ports(state))
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())


def _with_store(wanted: Collection[str]) -> list[str]:
    """MLflow keeps its artifacts in the store: that is started, too."""
    return [name for name in PORTS if name in wanted or (name == "s3" and "mlflow" in wanted)]


def _refuse_moves(home: Path, state: State, ports: Mapping[str, int]) -> None:
    """Raise if a running service would have to move, or the store from where MLflow seeks it."""
    for name, port in ports.items():
        if name in state and state[name]["port"] != port:
            raise ServiceError(
                f"{TITLES[name]} already runs on port {state[name]['port']}; to move it to "
                f"{port}, end it first: {_down_line(home, name)}"
            )
    sought = state["mlflow"]["s3_port"] if "mlflow" in state else ports["s3"]
    if sought != ports["s3"]:
        raise ServiceError(
            f"MLflow runs and seeks its store on port {sought}; start the store there (--ports "
            f"s3={sought}), or end MLflow first: {_down_line(home, 'mlflow')}"
        )


def _down_line(home: Path, name: str) -> str:
    return f"python -m infra.services down --home {shlex.quote(str(home))} --only {name}"


def _refuse_taken(home: Path, ports: Mapping[str, int]) -> None:
    taken = {name: port for name, port in ports.items() if listens(port)}
    if taken:
        users = ", ".join(
            f"port {port}, for {TITLES[name]}, is in use by {listener(port)}"
            for name, port in taken.items()
        )
        others = ",".join(f"{name}={port + 1}" for name, port in taken.items())
        raise ServiceError(
            f"{users}; end what uses them, or choose others: python -m infra.services up --home "
            f"{shlex.quote(str(home))} --ports {others}"
        )


def _start(home: Path, state: State, name: str, ports: Mapping[str, int]) -> None:
    folder = home / name
    folder.mkdir(exist_ok=True)
    words, env = command(name, home, ports), environment(name, home, ports["s3"])
    process = start(words, env, folder, _log(home, name))
    state[name] = Entry(
        port=ports[name],
        s3_port=ports["s3"],
        pid=process.pid,
        boot=process.boot,
        began=process.began,
    )
    _write_state(home, state)


def _wait(home: Path, name: str, entry: Entry) -> None:
    process, deadline = _process(entry), time.monotonic() + START_SECONDS
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while alive(process) and time.monotonic() < deadline:
        with suppress(OSError), direct.open(address(entry["port"]) + HEALTH[name], timeout=5):
            return
        time.sleep(0.2)
    what = f"does not answer after {START_SECONDS:.0f} s" if alive(process) else "ended at once"
    log = _log(home, name)
    tail = "\n".join(f"  {line}" for line in log.read_text().splitlines()[-TAIL_LINES:])
    raise ServiceError(f"{TITLES[name]} {what}; the end of its log, {log}:\n{tail}")


def _make_bucket(home: Path, state: State) -> None:
    try:
        make_bucket(BUCKET, client_env(home, _ports(state)))
    except StorageError as error:
        raise ServiceError(f"the store's bucket cannot be made: {error}") from error


def _log(home: Path, name: str) -> Path:
    return home / name / "server.log"


def _ports(state: State) -> dict[str, int]:
    return {name: entry["port"] for name, entry in state.items()}


def _process(entry: Entry) -> Started:
    return Started(entry["pid"], entry["boot"], entry["began"])


def _recorded(home: Path) -> State:
    path = home / STATE
    if not path.exists():
        return {}
    try:
        return RECORD.validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        raise ServiceError(
            f"{path} is damaged; end what it was about by hand ({home} is its folder), then remove "
            "the file"
        ) from error


def _write_state(home: Path, state: State) -> None:
    temporary = home / f"{STATE}.new"
    temporary.write_text(json.dumps(state, indent=1))
    temporary.replace(home / STATE)


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(PORTS):
        raise argparse.ArgumentTypeError(f"{text!r}: take of {', '.join(PORTS)}")
    return names


def _port_choices(text: str) -> dict[str, int]:
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        ports = {_names(name)[0]: int(port) for name, port in pairs}
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=PORT,NAME=PORT") from error
    if not all(0 < port < 65536 for port in ports.values()):
        raise argparse.ArgumentTypeError(f"{text!r}: a port is 1 to 65535")
    if len(set(ports.values())) < len(ports):
        raise argparse.ArgumentTypeError(f"{text!r}: each needs a port of its own")
    return ports


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _up(home: Path, args: argparse.Namespace) -> None:
    before = running(home)
    state = up(home, args.only, args.ports)
    for name, entry in state.items():
        how = "was running" if name in before else "started"
        _tell(f"{name:<8} {address(entry['port'])}  {how}")
    if args.env or sys.stdout.isatty():
        print(exports(home, state))  # noqa: T201
    elif "s3" in state:
        _tell(f"the store's keys are in {keys_path(home)}; `up --env` prints all export lines")


def _down(home: Path, args: argparse.Namespace) -> None:
    ended = down(home, args.only, args.grace)
    _tell(f"ended: {', '.join(ended)}" if ended else f"nothing of {home} was running")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of `python -m infra.services`."""
    settle_environment()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was begun is ended, too
    parser = argparse.ArgumentParser(prog="python -m infra.services", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(required=True)
    for name, perform in {"up": _up, "down": _down}.items():
        action = actions.add_parser(name, help=f"{'start' if name == 'up' else 'end'} the services")
        action.set_defaults(perform=perform)
        action.add_argument("--home", type=Path, default=Path(".services"), help="data and logs")
        action.add_argument("--only", type=_names, default=list(PORTS), help=",".join(PORTS))
        ports = "NAME=PORT,..." if name == "up" else "not needed, so that both take one line"
        action.add_argument("--ports", type=_port_choices, default={}, help=ports)
        if name == "up":
            action.add_argument("--env", action="store_true", help="print export lines")
        else:
            text = "seconds until what does not end is killed"
            action.add_argument("--grace", type=float, default=GRACE_SECONDS, help=text)
    args = parser.parse_args(arguments)
    try:
        args.perform(args.home.absolute(), args)
    except (ServiceError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        _tell("interrupted; what this call had begun is ended")
        sys.exit(130)


if __name__ == "__main__":
    main()
