"""A report's summary for a terminal of 80 columns."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from fst_core.report.comparison import KL_COLUMNS
from fst_core.report.intervals import with_interval
from fst_core.report.markup import number_text

Json = Mapping[str, Any]

UNFINISHED = "* unfinished: no run of the arm has ended; values of its last evaluations so far"


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
    table.add_column("arm", overflow="fold")
    table.add_column("runs", justify="right")
    table.add_column("final\nreward", justify="right", no_wrap=True)
    kl = summary["kl_column"] or "kl"
    drift = f"KL,\n{KL_COLUMNS[kl]}"
    for header in ("seed\ncontext", drift, "rollouts\nto peak", "rollouts", "training\ns"):
        table.add_column(header, justify="right", min_width=max(map(len, header.split("\n"))))
    for name, arm in summary["arms"].items():
        table.add_row(name, *_cells(arm, kl))
    if any(_unfinished(arm) for arm in summary["arms"].values()):
        table.caption = UNFINISHED
        table.caption_justify = "left"
    return table


def _unfinished(arm: Json) -> bool:
    return bool(arm["partial"] and arm["counted"])


def _cells(arm: Json, kl: str) -> list[str]:
    to_peak, used = arm["to_rl_peak"] or {"mean_curve": None, "defined": False}, arm["used"]
    point = to_peak["mean_curve"]
    missing = "not reached" if to_peak["defined"] else "–"
    training = used.get("slow_rollouts", 0) + used.get("fast_rollouts", 0)
    return [
        f"{len(arm['counted'])}/{arm['runs']}{'*' if _unfinished(arm) else ''}",
        with_interval(arm["final_reward"], 2).replace(" ", "\n", 1),
        number_text(arm["final_seed_reward"]["mean"], 2),
        number_text(arm[f"final_{kl}"]["mean"]),
        number_text(point["rollouts"], 0) if point else missing,
        number_text(training, 0),
        number_text(arm["seconds"]["training"]["mean"], 1),
    ]
