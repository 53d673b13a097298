"""A study: arms x seeds expanded into runs, each in a process of its own.

A run's output goes to log.txt in its folder. A run that fails stops no other; one that is
interrupted goes on at its last checkpoint when the study is started again.
"""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fst_core.config import RunConfig, StudyConfig, load_config
from fst_core.config.model import ConfigError
from fst_core.interrupts import stop_if_asked
from fst_core.processes import LOG, end_processes, log_end, spawn, why_ended
from fst_core.provenance import config_hash
from fst_core.run_folder import EARLIER, REMOVED, RunBusy, no_run, put_back

JOURNAL = "journal.jsonl"
POLL_SECONDS = 0.2

OnLine = Callable[[str, str], None]
"""(run id, one line of that run's output)."""


NAMED_APART = ("arm", "seed")
"""Settings that are parameters of their own, in the plural for a study."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of a study ended."""

    run: str
    """Run id: arm and seed."""
    folder: Path
    code: int
    """Exit status of the process; negative is a signal."""
    seconds: float
    reason: str
    """The last line of a failed run's log; empty where the run reached its end."""

    @property
    def sentence(self) -> str:
        """What to tell about a failed run."""
        return f"{self.run} failed ({self.reason}); its log is {self.folder / LOG}"


def expand(
    path: str | Path,
    overrides: Iterable[str] = (),
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> tuple[list[RunConfig], StudyConfig]:
    """Every run of a study, resolved; arms and seeds left empty are the config's own.

    Raises:
        ConfigError: if any of the runs cannot be run, or two of them are the same.
    """
    chosen = list(overrides)
    _, study = load_config(path, None, chosen)
    runs = [
        load_config(path, arm, [*chosen, f"seed={seed}"])[0]
        for arm in arms or study.arms
        for seed in (seeds or study.seeds)
    ]
    ids = [run.id for run in runs]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ConfigError(f"{path}: {', '.join(twice)} would run twice; name each once")
    if not runs:
        raise ConfigError(f"{path}: the study has no arm or no seed")
    return runs, study


def refuse_named_apart(overrides: Iterable[str]) -> None:
    """Raise for an override of what the parameters of a study, or of a flow, say.

    Raises:
        ConfigError: naming it.
    """
    for pair in overrides:
        key = pair.partition("=")[0].strip()
        if key in NAMED_APART:
            raise ConfigError(
                f"{pair!r} among the overrides would not count: the parameter {key} of a run, and "
                f"{key}s of a study, says it (--{key}, --{key}s on a command line)"
            )


def run_folder(runs_root: Path, config: RunConfig) -> Path:
    """Where a run lives: ROOT/NAME/ARM-sSEED."""
    return runs_root / config.name / config.id


def report_folder(runs_root: Path, config: RunConfig) -> Path:
    """Where the report of a run's study lives."""
    return runs_root / config.name


def prepare_store(experiment: str, say: Callable[[str], None]) -> None:
    """Make MLflow's store once, before many runs write to it; say so, where that fails."""
    _tracked(lambda tracking: tracking.prepare(experiment), say)


def track_report(report: Path, experiment: str, say: Callable[[str], None]) -> None:
    """Put a study's report into MLflow; say so, where that fails."""
    _tracked(lambda tracking: tracking.log_report(experiment, report), say)


def _tracked(action: Callable[[Any], object], say: Callable[[str], None]) -> None:
    """Do something with fst_core.tracking; nothing happens without MLflow installed."""
    if importlib.util.find_spec("mlflow") is None:
        return
    from fst_core import tracking  # noqa: PLC0415  (seconds to import)

    try:
        action(tracking)
    except tracking.TrackingError as error:
        say(f"warning: {error}")


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds a run, begun or finished."""
    return any((folder / name).is_file() for name in (JOURNAL, f"{JOURNAL}.gz", "config.json"))


def find_runs(paths: Iterable[Path], say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Run folders among the paths, and those right below a path that is a study's folder.

    A run that a dead process was about to replace is put back.

    Args:
        say: told of every path that holds no run, where another does.
    Raises:
        ConfigError: if a path does not exist, or none holds a run.
    """
    found: list[Path] = []
    without: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no run here: no such folder")
        runs, waiting = _runs_at(path)
        found += runs
        without += waiting or ([] if runs else [path])
    reasons = {path: no_run(path) for path in without if (path / EARLIER).is_dir()}
    logged = [path for path in without if (path / LOG).is_file() and path not in reasons]
    reasons |= dict.fromkeys(logged, f"its run left only {LOG}, which says why")
    if not found:
        names = ", ".join(map(str, without))
        why = next(iter(reasons.values()), "a run's folder holds journal.jsonl")
        raise ConfigError(f"{names}: no run here ({why})")
    for path in without:
        say(f"warning: {path} is left out: {reasons.get(path, 'no run here')}")
    return list(dict.fromkeys(found))


def _runs_at(path: Path) -> tuple[list[Path], list[Path]]:
    """Run folders at a path, and folders of runs that are set aside or left only their log."""
    put_back(path)
    if is_run_folder(path) or (path / EARLIER).is_dir():
        looked = [path]
    else:
        inside = sorted(path.iterdir()) if path.is_dir() else []
        looked = [folder for folder in inside if folder.name not in (EARLIER, REMOVED)]
        for folder in looked:
            put_back(folder)
    runs = [folder for folder in looked if is_run_folder(folder)]
    others = [folder for folder in looked if folder not in runs]
    return runs, [p for p in others if (p / EARLIER).is_dir() or (p / LOG).is_file()]


def reported_beside(
    path: str | Path, overrides: Iterable[str], planned: Sequence[RunConfig], runs_root: Path
) -> tuple[list[Path], list[Path]]:
    """Runs of the planned ones' study that are on disk already, and not planned now.

    Returns:
        Those that a report on the planned runs covers as well; and those it must leave out, seeds
        of planned arms made with other settings: one mean over both would be of no arm at all.
    """
    folder = report_folder(runs_root, planned[0])
    mine = {run_folder(runs_root, run) for run in planned}
    found = [run for run in _runs_at(folder)[0] if run not in mine] if folder.is_dir() else []
    chosen, arms = list(overrides), {run.arm for run in planned}
    beside: list[Path] = []
    other: list[Path] = []
    for run in found:
        config = _config_of(run)
        if config.get("name") == planned[0].name and (run / JOURNAL).is_file():
            same = config["arm"] not in arms or _as_planned(path, chosen, config)
            (beside if same else other).append(run)
    return beside, other


def in_study_order(folders: Iterable[Path], arms: Sequence[str]) -> list[Path]:
    """Run folders, each once, by the place of their arm in the study; others after those."""
    places = {arm: place for place, arm in enumerate(arms)}
    return sorted(
        dict.fromkeys(folders),
        key=lambda run: places.get(run.name.rpartition("-s")[0], len(places)),
    )


def notes_beside(beside: Sequence[Path], other: Sequence[Path]) -> list[str]:
    """Sentences on what `reported_beside` found."""
    told = {
        "the report covers these runs of the study, too": beside,
        "made with other settings than now, and left out of the report": other,
    }
    return [f"{why}: {', '.join(run.name for run in runs)}" for why, runs in told.items() if runs]


def _config_of(run: Path) -> dict[str, Any]:
    """A run's config; empty where it is absent, damaged or of no arm and seed."""
    try:
        config = json.loads((run / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    kinds = {"name": str, "arm": str, "seed": int}
    whole = isinstance(config, dict) and all(
        isinstance(config.get(key), kind) for key, kind in kinds.items()
    )
    return config if whole else {}


def _as_planned(path: str | Path, overrides: Sequence[str], config: Mapping[str, Any]) -> bool:
    """Whether a run's config is what the study's file and overrides make of its arm and seed."""
    try:
        now, _ = load_config(path, config["arm"], [*overrides, f"seed={config['seed']}"])
    except ConfigError:
        return False
    return config_hash(dict(config)) == config_hash(now.model_dump(mode="json"))


def run_study(
    config_path: str | Path,
    overrides: Iterable[str],
    arms: Sequence[str],
    seeds: Sequence[int],
    jobs: int | None,
    runs_root: Path,
    on_line: OnLine,
    *,
    track: bool = True,
) -> list[Outcome]:
    """Run every arm with every seed, at most `jobs` at once, each in its own process.

    Args:
        jobs: None takes the config's own.
        on_line: told every line the runs print.
        track: false keeps the runs out of MLflow.
    Returns:
        One outcome per run, in the order of arms and seeds.
    Raises:
        ConfigError: before anything starts, if any of the runs cannot be run.
        KeyboardInterrupt: after every run has been stopped.
    """
    chosen = list(overrides)
    runs, study = expand(config_path, chosen, arms, seeds)
    if track:  # now, so that one process makes MLflow's database instead of all runs at once
        prepare_store(runs[0].name, lambda s: on_line("study", s))
    options = [part for assignment in chosen for part in ("--set", assignment)]
    options += ["--runs", str(runs_root), "--brief"] + ([] if track else ["--no-track"])
    commands = deque(
        Child(run, run_folder(runs_root, run), [str(config_path), "--arm", run.arm, *options])
        for run in runs
    )
    return _run_all(commands, jobs or study.jobs, on_line)


def _run_all(waiting: "deque[Child]", jobs: int, on_line: OnLine) -> list[Outcome]:
    everyone, running = list(waiting), list[Child]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(waiting.popleft())
                running[-1].start()
            time.sleep(POLL_SECONDS)
            stop_if_asked()
            over = [child for child in running if child.ended()]
            for child in running:
                child.relay(on_line)
            running = [child for child in running if child not in over]
    finally:
        stop_all(running)
    return [child.outcome() for child in everyone]


class Child:
    """One run in a process of its own, its output in the run's log."""

    def __init__(self, config: RunConfig, folder: Path, arguments: Sequence[str]):
        self.config = config
        self.folder = folder
        self.arguments = ["run", *arguments, "--seed", str(config.seed)]
        self.process: subprocess.Popen[bytes] | None = None
        self.began = self.seconds = 0.0
        self.offset = self.shown = 0
        self.rest = b""
        self.refused = ""
        """Why it could not be started; empty where it was."""

    def start(self) -> None:
        """Start the process; `stop_all` is its one end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / LOG
        self.offset = self.shown = log_end(log)
        threads = {"OMP_NUM_THREADS": str(self.config.threads)}
        environment = {**threads, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "fst_core.cli", *self.arguments]
        self.began = time.monotonic()
        with log.open("ab") as output:
            try:
                self.process = spawn(command, output, environment)
            except RunBusy as error:
                self.refused = str(error)

    def ended(self) -> bool:
        """Whether the process is over; remembers how long it took."""
        if self.process is not None and self.process.poll() is None:
            return False
        self.seconds = self.seconds or time.monotonic() - self.began
        return True

    def relay(self, on_line: OnLine) -> None:
        """Pass on the whole lines written since the last time."""
        if self.refused:
            return
        with (self.folder / LOG).open("rb") as log:
            log.seek(self.shown)
            data = log.read()
        self.shown += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            on_line(self.config.id, line.decode(errors="replace"))

    def outcome(self) -> Outcome:
        """How the run ended."""
        if self.refused:
            return Outcome(self.config.id, self.folder, 1, 0.0, self.refused)
        assert self.process is not None
        code = self.process.returncode
        reason = "" if code == 0 else self._reason(code)
        return Outcome(self.config.id, self.folder, code, self.seconds, reason)

    def _reason(self, code: int) -> str:
        last = why_ended(self.folder / LOG, self.offset) or "it printed nothing"
        if code >= 0:
            return last
        name = signal.Signals(-code).name
        hint = "; perhaps memory ran out" if name == "SIGKILL" else ""
        return f"ended by {name}{hint}; last line: {last}"


def stop_all(children: Iterable[Child]) -> None:
    """Interrupt runs and wait for them; kill those that do not end. All remain resumable."""
    end_processes([c.process for c in children if c.process and c.process.poll() is None])


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """One sentence per run that did not reach its end."""
    return [outcome.sentence for outcome in outcomes if outcome.code != 0]


def data_override(folder: Path) -> str:
    """The override that reads problems from a folder of pools."""
    return f"data={json.dumps(str(folder))}"
