"""A report's summary for a terminal of 80 columns."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from fst_core.report.comparison import KL_COLUMNS
from fst_core.report.headline import rl_learned, to_peak_text
from fst_core.report.intervals import with_interval
from fst_core.report.markup import number_text

Json = Mapping[str, Any]

# Lines of a caption are as long as a terminal of 80 columns shows whole, margins left out.
JUDGED = (
    "final reward: under the context an arm is judged by, the best that it\n"
    "evolved, or the seed context (the config's own)"
)
NO_PEAK = "no peak: rl never rose above its first evaluation, so none can be reached"
UNFINISHED = "* unfinished: no run of the arm has ended; values of its last evaluations"


def summary_table(summary: Json) -> Group:
    """One table an experiment, one row an arm; an interval stands below its value.

    An arm is marked while none of its runs has ended: its values are then those so far.
    "rollouts to peak" is to the peak of rl's mean curve; KL is in nats per token.
    """
    studies = summary.get("studies", {"": summary})
    return Group(*(_table(study) for study in studies.values()))


def _table(summary: Json) -> Table:
    table = Table(
        title=summary["experiment"] or None,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    kl = summary["kl_column"] or "kl"
    table.add_column("arm", overflow="fold")  # a name is broken before a number is cut
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("judged\nby", no_wrap=True)
    drift = f"KL,\n{KL_COLUMNS[kl]}"
    used = ("rollouts\nto peak", "rollouts", "train\ns")
    for header in ("final\nreward", "in seed\ncontext", drift, *used):
        table.add_column(header, justify="right", no_wrap=True)
    for name, arm in summary["arms"].items():
        table.add_row(name, *_cells(arm, kl))
    table.caption = "\n".join(_captions(summary)) or None
    table.caption_justify = "left"
    return table


def _captions(summary: Json) -> Iterator[str]:
    """What the table's words mean, where they stand in it."""
    arms = summary["arms"].values()
    if any(arm["counted"] for arm in arms):
        yield JUDGED
    if summary["rl_peak"] is not None and not rl_learned(summary):
        yield NO_PEAK
    if any(map(_unfinished, arms)):
        yield UNFINISHED


def _unfinished(arm: Json) -> bool:
    return bool(arm["partial"] and arm["counted"])


def _cells(arm: Json, kl: str) -> list[str]:
    used = arm["used"]
    training = used.get("slow_rollouts", 0) + used.get("fast_rollouts", 0)
    return [
        f"{len(arm['counted'])}/{arm['runs']}{'*' if _unfinished(arm) else ''}",
        arm["context"] if arm["counted"] else "–",
        with_interval(arm["final_reward"], 2).replace(" ", "\n", 1),
        number_text(arm["final_seed_reward"]["mean"], 2),
        number_text(arm[f"final_{kl}"]["mean"]),
        to_peak_text(arm, "rollouts").replace("not ", "not\n"),
        number_text(training, 0),
        number_text(arm["seconds"]["training"]["mean"], 1),
    ]
