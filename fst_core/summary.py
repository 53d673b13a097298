"""What one run came to, from its journal: for the end of `fst run`."""

from collections.abc import Mapping
from pathlib import Path

from fst_core.counting import counted
from fst_core.journal import Event, effective, read_events
from fst_core.progress import clock, task_rewards, told_kl, under
from fst_core.tracked import is_headline


def summary_rows(folder: Path) -> list[tuple[str, str]]:
    """(what, how much) lines: rewards by context at the start and the end, use, time.

    Raises:
        JournalError: if the journal is damaged.
    """
    events = effective(read_events(folder / "journal.jsonl"))
    looks = [event for event in events if event["kind"] == "evaluation"]
    rows = [row for label in ("seed", "best", "none") for row in _rewards(looks, label)]
    last = next((event for event in reversed(events) if "ledger" in event), None)
    if last is not None:
        rows += _use(last["ledger"])
    end = next((event for event in events if event["kind"] == "end"), None)
    if end is not None:
        rows.append(("time of the last process", clock(end["seconds"]["total"])))
    return rows


def headline(folder: Path) -> str:
    """What a run came to, in one line: the reward under the context that its arm is judged by.

    Raises:
        JournalError: if the journal is damaged.
    """
    events = effective(read_events(folder / "journal.jsonl"))
    last = next((event for event in reversed(events) if is_headline(event, events)), None)
    if last is None:
        return "nothing was evaluated"
    reward = f"reward {_measured(last)} {under(last['context'])}"
    return f"{reward} at step {last['step']}"


def _rewards(looks: list[Event], label: str) -> list[tuple[str, str]]:
    mine = [event for event in looks if event["context"] == label]
    if not mine:
        return []
    first, last = (_measured(event) for event in (mine[0], mine[-1]))
    name = f"reward {under(label)}"
    if len(mine) == 1:
        return [(name, last)]
    return [(name, f"{last} at step {mine[-1]['step']}; {first} at step {mine[0]['step']}")]


def _measured(event: Event) -> str:
    drift = told_kl(event["metrics"])
    kl = drift and f" ({drift})"
    return f"{event['metrics']['evaluation/reward']:.3f}{task_rewards(event)}{kl}"


def _use(ledger: Mapping[str, int]) -> list[tuple[str, str]]:
    return [
        (
            f"{loop} rollouts",
            f"{ledger[f'{loop}_rollouts']:,} ({counted(ledger[f'{loop}_tokens'], 'token')})",
        )
        for loop in ("slow", "fast", "evaluation")
    ]
