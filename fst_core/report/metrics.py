"""What DVC compares between versions: a study's numbers by arm, and its reward curves.

    python -m fst_core.report.metrics outputs/report/summary.json --out docs/results/repro

Both are made from a report's summary.json and hold nothing that depends on the clock, so that the
same journals, and the same numbers in other journals, give the same files.
"""

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fst_core.report.statistics import Json
from fst_core.report.studies import folder_name
from fst_core.report.summary import by_experiment, write_summary

MEANS = ("final_reward", "best_reward", "final_seed_reward", "final_kl")
"""Statistics of an arm of which the mean over seeds is kept."""
ROLLOUTS = ("slow_rollouts", "fast_rollouts", "reflection_rollouts")
"""Entries of an arm's ledger that are kept: means over seeds."""


def metrics_of(study: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """The numbers of a study by arm: means over its seeds, None where nothing was measured."""
    return {
        arm: {
            **{name: found[name]["mean"] for name in MEANS},
            **{name: found["used"].get(name) for name in ROLLOUTS},
            "seeds": len(found["counted"]),
        }
        for arm, found in study["arms"].items()
    }


def curves_of(study: Mapping[str, Any]) -> list[dict[str, float]]:
    """One row a step: the mean reward over seeds of each arm that was evaluated there."""
    rows: dict[int, dict[str, float]] = {}
    for arm, found in study["arms"].items():
        for item in found["evaluations"]:
            mean = item["reward"]["mean"]
            if mean is not None:
                rows.setdefault(item["step"], {})[arm] = mean
    return [{"step": step, **rows[step]} for step in sorted(rows)]


def write(summary: Json, out: Path) -> None:
    """Write metrics.json and curves/STUDY.csv of every study of a summary."""
    studies = by_experiment(summary)
    numbers = {name: metrics_of(study) for name, study in studies.items()}
    write_summary(numbers, out / "metrics.json")
    (out / "curves").mkdir(parents=True, exist_ok=True)
    for name, study in studies.items():
        columns = ["step", *study["arms"]]
        with (out / "curves" / f"{folder_name(name)}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(curves_of(study))


def main() -> None:
    """Command line of `python -m fst_core.report.metrics`."""
    parser = argparse.ArgumentParser(
        prog="python -m fst_core.report.metrics", description="Numbers and curves for DVC."
    )
    parser.add_argument("summary", type=Path, help="summary.json of a report")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    args = parser.parse_args()
    write(json.loads(args.summary.read_text(encoding="utf-8")), args.out)


if __name__ == "__main__":
    main()
