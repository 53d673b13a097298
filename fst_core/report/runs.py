"""Run folders as a report reads them: config, effective events, and what is missing, in words."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fst_core.counting import shortened
from fst_core.journal import Event, JournalError, effective, read_events
from fst_core.provenance import config_hash, shared_settings
from fst_core.run_folder import JOURNAL, differences, no_run

START_AGAIN = "Run it again: it starts from the beginning."


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run folder: its resolved config, the events that count, and a note on what is missing."""

    folder: str
    """Folder name, for example "fst-s0"."""
    experiment: str
    """Config name."""
    arm: str
    seed: int
    config: dict[str, Any]
    events: tuple[Event, ...]
    """Effective events: nothing that a rewind covers."""
    note: str
    """One sentence on what is missing; empty for a run that ended and was evaluated."""

    @property
    def id(self) -> str:
        return f"{self.arm}-s{self.seed}"

    @property
    def finished(self) -> bool:
        """Whether the run reached its end event."""
        return any(event["kind"] == "end" for event in self.events)

    @property
    def evolves(self) -> bool:
        """Whether the run has a fast part: its headline context is then the best of its slots."""
        return bool(self.config.get("fast", {}).get("type", "none") != "none")

    @property
    def trains(self) -> bool:
        """Whether the run has a slow part: its weights may differ from those it began with."""
        return bool(self.config.get("slow", {}).get("type", "none") != "none")

    @property
    def learns(self) -> bool:
        """Whether the run has a part that learns, or no config says; one without only measures."""
        told = {"fast", "slow"} & self.config.keys()
        return not told or self.evolves or self.trains

    @property
    def last_step(self) -> int:
        """The last slow step any event speaks of."""
        return max((event["step"] for event in self.events if "step" in event), default=0)

    def of(self, kind: str) -> Iterator[Event]:
        """The events of one kind, in order."""
        return (event for event in self.events if event["kind"] == kind)


def read_run(folder: Path) -> RunLog:
    """Read one run folder; whatever is absent or damaged becomes the note, never an exception."""
    events, trouble = _read_journal(folder)
    config = _read_config(folder / "config.json") or _started_with(events)
    arm, _, seed = folder.name.rpartition("-s")
    run = RunLog(
        folder=folder.name,
        experiment=str(config.get("name", folder.absolute().parent.name)),
        arm=str(config.get("arm", arm or folder.name)),
        seed=int(config.get("seed", seed if seed.isdecimal() else 0)),
        config=config,
        events=tuple(events),
        note="",
    )
    return replace(run, note=trouble or _what_is_missing(run))


def read_runs(folders: Sequence[Path]) -> list[RunLog]:
    """Read run folders, in order, each with the experiment it belongs to.

    Of several folders of the same experiment, arm and seed, a finished run counts before an
    unfinished one, and that before one without events; of equals, the first. The others only
    leave a note. A folder whose experiment is written nowhere belongs to that of the folders
    beside it, or to the only one.
    """
    read = [(Path(folder).absolute().parent, read_run(Path(folder))) for folder in folders]
    named = {parent: run.experiment for parent, run in read if "name" in run.config}
    only = set(named.values()) if len(set(named.values())) == 1 else set()
    runs = [
        run
        if "name" in run.config
        else replace(run, experiment=named.get(parent, next(iter(only), run.experiment)))
        for parent, run in read
    ]
    best: dict[tuple[str, str], int] = {}
    for index, run in enumerate(runs):
        chosen = best.setdefault((run.experiment, run.id), index)
        if _usable(run) > _usable(runs[chosen]):
            best[run.experiment, run.id] = index
    return [
        run if chosen == index else _left_out(run, runs[chosen], read[chosen][0].name)
        for index, run in enumerate(runs)
        for chosen in [best[run.experiment, run.id]]
    ]


def warnings(folders: Sequence[Path], runs: Sequence[RunLog]) -> list[str]:
    """One line per run with a note, in order, then one per arm of several configs.

    Args:
        folders: as in `read_runs`.
    """
    notes = [
        f"warning: {folder}: {run.note[0].lower()}{run.note[1:]}"
        for folder, run in zip(folders, runs, strict=True)
        if run.note
    ]
    arms: dict[tuple[str, str], list[RunLog]] = {}
    for run in runs:
        if run.config:
            arms.setdefault((run.experiment, run.arm), []).append(run)
    return [*notes, *(line for same in arms.values() for line in _of_several_configs(same))]


def _of_several_configs(runs: Sequence[RunLog]) -> Iterator[str]:
    """That the seeds of an arm were run with different settings, where they were."""
    first = runs[0]
    for run in runs[1:]:
        if config_hash(shared_settings(run.config)) != config_hash(shared_settings(first.config)):
            apart = differences(shared_settings(first.config), shared_settings(run.config))
            yield (
                f"warning: {run.experiment}: {first.id} and {run.id} were run with different "
                f"settings ({shortened(', '.join(apart), 200)}), and a mean over both is of no arm"
            )


def _usable(run: RunLog) -> int:
    """2 for a finished run, 1 for one with events, 0 for one without."""
    return 2 if run.finished else int(bool(run.events))


def _left_out(run: RunLog, chosen: RunLog, parent: str) -> RunLog:
    note = f"Left out: the same arm and seed as {parent}/{chosen.folder}, which is counted."
    return replace(run, config={}, events=(), note=f"{note} {run.note}".rstrip())


def _read_journal(folder: Path) -> tuple[list[Event], str]:
    try:
        events = effective(read_events(folder / JOURNAL))
        return events, "" if events else _nothing_in(folder)
    except (JournalError, KeyError, TypeError) as error:
        reason = str(error).replace(f"{folder}/", "")
        return [], f"The journal is damaged and none of it was used: {reason}."


def _nothing_in(folder: Path) -> str:
    """Why a run folder has no event, one sentence, and what to do."""
    journal = folder / JOURNAL
    if read_events(journal):
        return f"Every event of the journal was taken back by a rewind. {START_AGAIN}"
    if journal.exists() and journal.stat().st_size:
        return (
            "The journal has no whole event: its first line is torn, as by a death while it was "
            f"written. {START_AGAIN}"
        )
    if journal.exists() or journal.with_name(f"{JOURNAL}.gz").exists():
        return f"The journal is empty: the run died before its first event. {START_AGAIN}"
    if not folder.is_dir():
        return "There is no such folder."
    return f"No journal was found: {no_run(folder)}."


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _started_with(events: Sequence[Event]) -> dict[str, Any]:
    return next((event["config"] for event in events if event["kind"] == "run"), {})


def _what_is_missing(run: RunLog) -> str:
    planned = run.config.get("loop", {}).get("steps")
    of_planned = f" of {planned}" if planned is not None else ""
    parts = []
    if not run.finished:
        last = run.events[-1]["kind"] if run.events else "none"
        parts.append(
            f"The run has not ended: it stands at slow step {run.last_step}{of_planned} "
            f"(last event: {last})."
        )
    if not any(run.of("evaluation")):
        parts.append("It has no evaluations, so no figure or mean includes it.")
    return " ".join(parts)
