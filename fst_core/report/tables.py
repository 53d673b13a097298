"""Tables of a study from its journals: one pandas frame per question, also written as Parquet."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fst_core.config.flat import flatten
from fst_core.journal import Event
from fst_core.lineage import mean_score
from fst_core.records import content_id
from fst_core.report.runs import RunLog

Row = dict[str, Any]

EVALUATION_METRICS = (
    *("reward", "best_at_k", "kl", "kl_k3", "kl_exact", "entropy"),
    *("length_tokens", "truncated_frac"),
)
LOOPS = ("slow", "fast")
SEARCH_COUNTS = ("metric_calls", "generate_calls", "reflection_calls", "proposals", "accepted")
CURVE_COLUMNS = (
    *("run", "arm", "seed", "finished", "step", "context", "context_id", "headline"),
    *EVALUATION_METRICS,
    *("rollouts", "slow_rollouts", "fast_rollouts", "tokens", "seconds"),
)
POPULATION_COLUMNS = (
    *("run", "arm", "seed", "cycle", "step", "slot", "context_id", "text", "operator"),
    *("parents", "born", "anchors", "anchor_mean"),
)
CYCLE_COLUMNS = (
    *("run", "arm", "seed", "cycle", "step"),
    *SEARCH_COUNTS,
    *("rejected", "reflection_usage", "seconds"),
)
IDENTITY_KEYS = frozenset({"arm", "seed"})
"""Settings that differ between runs by construction, and so are never marked."""


def _frame(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _identity(run: RunLog) -> Row:
    return {"run": run.id, "arm": run.arm, "seed": run.seed}


def training_use(ledger: Mapping[str, float]) -> dict[str, int]:
    """Rollouts and tokens that training used: slow plus fast, evaluation left out.

    Tokens of reflections that the policy itself writes are among them.
    """
    parts = {"rollouts": ("slow", "fast"), "tokens": ("slow", "fast", "reflection")}
    return {
        unit: int(sum(ledger.get(f"{loop}_{unit}", 0) for loop in loops))
        for unit, loops in parts.items()
    }


def curves(runs: Sequence[RunLog]) -> pd.DataFrame:
    """One row per evaluation.

    `reward` is mean@k in [0, 1]; `kl` (k1), `kl_k3`, `kl_exact` and `entropy` are nats a token;
    `rollouts` and `tokens` are those training used so far; `seconds` is the wall time of the fast
    and slow work so far, evaluation left out. Journals written before a metric existed have no
    value for it.
    `headline` marks the rows an arm is judged by: the best context where a fast part evolves them,
    else the seed context. A later evaluation of the same step and context replaces an earlier one.
    """
    rows = [row for run in runs for row in _curve_rows(run)]
    # a metric that no run measured has to be missing numbers, not objects without a mean
    return _frame(rows, CURVE_COLUMNS).astype(dict.fromkeys(EVALUATION_METRICS, float))


def _curve_rows(run: RunLog) -> list[Row]:
    rows: dict[tuple[int, str], Row] = {}
    seconds, evolved = 0.0, False
    for event in run.events:
        if event["kind"] in ("fast", "slow"):
            seconds += event.get("seconds", 0.0)
            evolved = evolved or event["kind"] == "fast"
        elif event["kind"] == "evaluation":
            row = _curve_row(run, event, seconds)
            row["headline"] = row["context"] == ("best" if run.evolves else "seed")
            row["before_evolution"] = run.evolves and not evolved
            rows[row["step"], row["context"]] = row
    for (step, context), row in rows.items():
        # Before the first fast phase the best context is the seed, which may be all that is logged.
        if row.pop("before_evolution") and context == "seed" and (step, "best") not in rows:
            row["headline"] = True
    return list(rows.values())


def _curve_row(run: RunLog, event: Event, seconds: float) -> Row:
    metrics = event["metrics"]
    return {
        **_identity(run),
        "finished": run.finished,
        "step": event["step"],
        "context": event["context"],
        "context_id": event.get("context_id"),
        **{name: metrics.get(f"evaluation/{name}") for name in EVALUATION_METRICS},
        **training_use(event.get("ledger", {})),
        **{
            f"{loop}_rollouts": event.get("ledger", {}).get(f"{loop}_rollouts", 0) for loop in LOOPS
        },
        "seconds": seconds,
    }


def training(runs: Sequence[RunLog]) -> pd.DataFrame:
    """One row per slow step: its metrics under their own names, `seconds`, and training use."""
    rows = [
        {
            **_identity(run),
            "step": event["step"],
            **event["metrics"],
            "seconds": event.get("seconds"),
            **training_use(event.get("ledger", {})),
        }
        for run in runs
        for event in run.of("slow")
    ]
    names = sorted({name for row in rows for name in row if name.startswith("slow/")})
    return _frame(rows, ["run", "arm", "seed", "step", *names, "seconds", "rollouts", "tokens"])


def populations(runs: Sequence[RunLog]) -> pd.DataFrame:
    """One row per slot of every fast phase, best slot first; `anchor_mean` in [0, 1].

    Every cycle draws its own anchors, so anchor means of different cycles are not on the same
    problems.
    """
    rows = [row for run in runs for event in run.of("fast") for row in _slot_rows(run, event)]
    return _frame(rows, POPULATION_COLUMNS)


def _slot_rows(run: RunLog, event: Event) -> list[Row]:
    population = event["evolution"]["population"]
    scores = population["scores"] or [[]] * len(population["contexts"])
    return [
        {
            **_identity(run),
            "cycle": event["cycle"],
            "step": event["step"],
            "slot": slot,
            "context_id": content_id(context["text"]),
            "text": context["text"],
            "operator": context["operator"],
            "parents": " ".join(context["parents"]),
            "born": context["cycle"],
            "anchors": len(row),
            "anchor_mean": mean_score(row),
        }
        for slot, (context, row) in enumerate(zip(population["contexts"], scores, strict=True))
    ]


def cycles(runs: Sequence[RunLog]) -> pd.DataFrame:
    """One row per fast phase: what the search did and what it cost; dictionaries as JSON text."""
    return _frame(
        [_cycle_row(run, event) for run in runs for event in run.of("fast")], CYCLE_COLUMNS
    )


def _cycle_row(run: RunLog, event: Event) -> Row:
    evolution = event["evolution"]
    return {
        **_identity(run),
        "cycle": event["cycle"],
        "step": event["step"],
        **{name: evolution.get(name, 0) for name in SEARCH_COUNTS},
        "rejected": json.dumps(evolution.get("rejected", {}), sort_keys=True),
        "reflection_usage": json.dumps(evolution.get("reflection_usage", {}), sort_keys=True),
        "seconds": event.get("seconds"),
    }


def settings(runs: Sequence[RunLog]) -> pd.DataFrame:
    """Every resolved setting side by side: `key`, one column per run id, and `differs`.

    A setting differs when two runs hold different values or only some have it; `arm` and `seed`
    differ by construction and are not marked.
    """
    flat = {run.id: flatten(run.config) for run in runs if run.config}
    keys = list(dict.fromkeys(key for config in flat.values() for key in config))
    groups = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    rows: list[Row] = []
    for key in sorted(keys, key=lambda key: groups.index(key.partition(".")[0])):
        values = {run: config.get(key) for run, config in flat.items()}
        differs = key not in IDENTITY_KEYS and len(set(values.values())) > 1
        rows.append({"key": key, "differs": differs, **values})
    return _frame(rows, ["key", "differs", *flat])


def settings_by_arm(frame: pd.DataFrame, runs: Sequence[RunLog]) -> pd.DataFrame:
    """The settings with one column per arm; values that seeds of an arm do not share: "a | b"."""
    arms: dict[str, list[str]] = {}
    for run in runs:
        if run.id in frame.columns:
            arms.setdefault(run.arm, []).append(run.id)
    by_arm = frame[["key", "differs"]].copy()
    for arm, ids in arms.items():
        by_arm[arm] = [_joined(values) for values in frame[ids].to_numpy().tolist()]
    return by_arm


def _joined(values: Sequence[Any]) -> str:
    distinct = dict.fromkeys("–" if pd.isna(value) else str(value) for value in values)
    return " | ".join(distinct)


def all_tables(runs: Sequence[RunLog]) -> dict[str, pd.DataFrame]:
    """Every table of a study by name."""
    return {
        "curves": curves(runs),
        "training": training(runs),
        "populations": populations(runs),
        "cycles": cycles(runs),
        "settings": settings(runs),
    }


def write_parquet(tables: Mapping[str, pd.DataFrame], folder: Path) -> dict[str, Path]:
    """Write each table to `folder`/NAME.parquet and return the paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.parquet" for name in tables}
    for name, table in tables.items():
        table.to_parquet(paths[name], index=False)
    return paths
