"""Interleaved repeats, medians, and the table that comes of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch


def seconds_of(call: Callable[[], object]) -> float:
    """Wall time of a call (seconds), the device's queue drained before and after."""
    drain()
    began = time.perf_counter()
    call()
    drain()
    return time.perf_counter() - began


def drain() -> None:
    """Wait until the device has done everything asked of it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def interleaved(
    calls: Mapping[str, Callable[[], object]], repeats: int, warmups: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call in turn, `repeats` times over, so that drift meets all alike."""
    for call in calls.values():
        for _ in range(warmups):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(seconds_of(call))
    return found


@dataclass
class Table:
    """Rows of a bench: what, its median seconds, a rate, and its ratio to the row it is held to."""

    title: str
    unit: str
    """Of the rate."""
    rows: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    """(what, median seconds, spread, rate, ratio)."""

    def fill(
        self, found: Mapping[str, Sequence[float]], work: float, reference: str
    ) -> dict[str, float]:
        """One row a call; the ratio is the reference's median time over its own."""
        medians = {name: statistics.median(times) for name, times in found.items()}
        for name, times in found.items():
            spread = (max(times) - min(times)) / medians[name]
            ratio = medians[reference] / medians[name]
            self.rows.append((name, medians[name], spread, work / medians[name], ratio))
        return medians

    def markdown(self) -> str:
        """The table, with the spread (largest minus smallest over the median) in percent."""
        lines = [
            f"### {self.title}",
            "",
            f"| | median s | spread % | {self.unit} | times the first row |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        lines += [
            f"| {name} | {seconds:.4f} | {100 * spread:.0f} | {rate:,.0f} | {ratio:.2f} |"
            for name, seconds, spread, rate, ratio in self.rows
        ]
        return "\n".join([*lines, ""])
