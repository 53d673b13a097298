"""The numbers of a study: per arm, and every arm against rl; plain floats, null where missing.

Which runs count: the finished runs of an arm; while none has finished, those with evaluations
(`partial` is then true). A mean curve is taken over the steps that every counted run evaluated.

The target of "rollouts to rl's peak" is the highest value the mean curve of the rl arm reaches (its
running maximum at the end of the run). A run, or the mean curve of an arm, is there at its first
evaluation whose reward is at least that target; null if it never is.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fst_core.estimators.bootstrap import t_interval
from fst_core.journal import Event
from fst_core.report.runs import RunLog

BASELINE = "rl"
CONFIDENCE = 0.95
FEWEST_SEEDS = 3
"""Fewest seeds whose interval is shown: over two it is 12.7 standard errors to each side."""
Json = dict[str, Any]

POINT = ("step", "reward", "rollouts", "kl", "seconds")
"""What is told of an evaluation at which a target was reached."""

COMPARED: dict[str, int] = {
    "rollouts_to_peak": -1,
    "final_kl": -1,
    "final_reward": 1,
    "final_seed_reward": 1,
    "training_seconds": -1,
}
"""What arms are compared on, and which sign of the difference is better."""


def number(value: Any) -> float | None:
    """A finite float, or None."""
    if value is None or pd.isna(value) or not math.isfinite(value):
        return None
    return float(value)


def interval(values: Sequence[float]) -> list[float] | None:
    """Two-sided 95% t-interval of the mean over independent values; None for fewer than two."""
    found = t_interval(values, CONFIDENCE)
    return None if found is None else [found.low, found.high]


def statistic(by_seed: Mapping[int, Any]) -> Json:
    """Mean over the seeds that have a value, its interval, and the values by seed."""
    known = {str(seed): number(value) for seed, value in by_seed.items()}
    values = [value for value in known.values() if value is not None]
    mean = sum(values) / len(values) if values else None
    return {"mean": mean, "interval": interval(values), "n": len(values), "seeds": known}


def summarize(runs: Sequence[RunLog], curves: pd.DataFrame) -> Json:
    """The summary of a study as plain JSON types; see the module's docstring for the rules."""
    arms = {arm: _arm(arm, runs, curves) for arm in dict.fromkeys(run.arm for run in runs)}
    peak = _peak(arms[BASELINE]) if BASELINE in arms else None
    for arm, summary in arms.items():
        summary["to_rl_peak"] = _to_peak(summary, _counted(runs, arm), curves, peak)
    return {
        "experiment": ", ".join(dict.fromkeys(run.experiment for run in runs)),
        "why": next((run.config["why"] for run in runs if run.config.get("why")), None),
        "runs": [_run(run) for run in runs],
        "arms": arms,
        "rl_peak": peak,
        "comparisons": _comparisons(arms, {run.arm for run in runs if run.learns}),
    }


def _run(run: RunLog) -> Json:
    started = next(run.of("run"), {})
    return {
        "run": run.id,
        "arm": run.arm,
        "seed": run.seed,
        "finished": run.finished,
        "step": run.last_step,
        "note": run.note or None,
        "git": started.get("git"),
    }


def _counted(runs: Sequence[RunLog], arm: str) -> list[RunLog]:
    mine = [run for run in runs if run.arm == arm and any(run.of("evaluation"))]
    return [run for run in mine if run.finished] or mine


def _arm(arm: str, runs: Sequence[RunLog], curves: pd.DataFrame) -> Json:
    counted = _counted(runs, arm)
    mine = curves[curves["run"].isin([run.id for run in counted])]
    headline, seed = mine[mine["headline"].astype(bool)], mine[mine["context"] == "seed"]
    return {
        "runs": sum(run.arm == arm for run in runs),
        "counted": [run.id for run in counted],
        "partial": not any(run.finished for run in counted),
        "context": "best" if any(run.evolves for run in counted) else "seed",
        "evaluations": _evaluations(headline),
        "seed_evaluations": _evaluations(seed),
        "final_reward": statistic(_last(headline, "reward")),
        "best_reward": statistic(dict(headline.groupby("seed")["reward"].max())),
        "final_seed_reward": statistic(_last(seed, "reward")),
        "final_kl": statistic(_last(headline, "kl")),
        "final_seed_kl": statistic(_last(seed, "kl")),
        "steps": statistic({run.seed: run.last_step for run in counted}),
        "used": _used(counted),
        "seconds": _seconds(counted),
    }


def _last(rows: pd.DataFrame, column: str) -> dict[int, float]:
    """Value of each seed's last evaluation."""
    last = rows.sort_values("step").drop_duplicates("seed", keep="last")
    return dict(zip(last["seed"], last[column], strict=True))


def mean_curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds at the steps every seed evaluated; one row per step, ascending."""
    seeds = rows["seed"].nunique()
    columns = [name for name in POINT if name != "step"]
    grouped = rows.groupby("step")
    means = grouped[columns].mean()
    return means[grouped["seed"].nunique() == seeds].reset_index()


def _evaluations(rows: pd.DataFrame) -> list[Json]:
    """Per step: rewards by seed with mean and interval, and mean KL (nats a token)."""
    return [
        {
            "step": int(str(step)),
            "reward": statistic(dict(zip(group["seed"], group["reward"], strict=True))),
            "kl": number(group["kl"].mean()),
            "rollouts": number(group["rollouts"].mean()),
        }
        for step, group in rows.groupby("step")
    ]


def _peak(rl: Json) -> Json | None:
    """Step and value of the maximum of the rl arm's mean curve over fully measured steps."""
    most = max((item["reward"]["n"] for item in rl["evaluations"]), default=0)
    full = [item for item in rl["evaluations"] if item["reward"]["n"] == most]
    if most == 0:
        return None
    top = max(full, key=lambda item: item["reward"]["mean"])  # the first of equals
    return {"reward": top["reward"]["mean"], "step": top["step"], "start": full[0]["step"]}


def _first_reaching(rows: pd.DataFrame, target: float) -> Json | None:
    reached = rows[rows["reward"] >= target - 1e-9].sort_values("step")
    if reached.empty:
        return None
    point = {name: number(reached.iloc[0][name]) for name in POINT}
    return {**point, "step": int(reached.iloc[0]["step"])}


def _to_peak(
    summary: Json, counted: Sequence[RunLog], curves: pd.DataFrame, peak: Json | None
) -> Json | None:
    """First evaluation at or above rl's peak: by seed, and on the arm's mean curve.

    Undefined (`defined` false, no point anywhere) where rl never rose above its first evaluation.
    """
    if peak is None:
        return None
    if peak["step"] == peak["start"]:
        nowhere = {str(run.seed): None for run in counted}
        return {"defined": False, "mean_curve": None, "seeds": nowhere, "reached": 0}
    rows = curves[curves["run"].isin(summary["counted"]) & curves["headline"]]
    seeds = {
        str(run.seed): _first_reaching(rows[rows["run"] == run.id], peak["reward"])
        for run in counted
    }
    return {
        "defined": True,
        "mean_curve": _first_reaching(mean_curve(rows), peak["reward"]),
        "seeds": seeds,
        "reached": sum(point is not None for point in seeds.values()),
    }


def _used(counted: Sequence[RunLog]) -> dict[str, float | None]:
    """The last ledger of a run and its `reflections`, averaged over the runs that count."""
    ledgers: list[dict[str, float]] = [
        {
            **next((event["ledger"] for event in reversed(run.events) if event.get("ledger")), {}),
            "reflections": sum(map(_reflections, run.of("fast"))),
        }
        for run in counted
    ]
    names = sorted({name for ledger in ledgers for name in ledger})
    return {name: sum(ledger.get(name, 0) for ledger in ledgers) / len(ledgers) for name in names}


def _reflections(event: Event) -> float:
    """Texts a fast phase had written; one a proposal, where the method does not count its own."""
    evolution = event["evolution"]
    own: float | None = evolution.get("metrics", {}).get("fast/reflections")
    return evolution.get("proposals", 0) if own is None else own


def run_seconds(run: RunLog) -> dict[str, float]:
    """Wall seconds of the work that counts, by part.

    `slow_generate` is the part of `slow` spent generating; `other` is what the end event's total
    has beyond the parts (start-up, checkpoints, and the waiting between).
    """
    parts = {
        kind: sum(float(event.get("seconds", 0.0)) for event in run.of(kind))
        for kind in ("fast", "slow", "evaluation")
    }
    generate = sum(event["metrics"].get("slow/seconds_generate", 0.0) for event in run.of("slow"))
    ends = [event["seconds"].get("total", 0.0) for event in run.of("end") if "seconds" in event]
    known = sum(parts.values())
    total = max([known, *ends])
    return {**parts, "slow_generate": generate, "other": total - known, "total": total}


def _seconds(counted: Sequence[RunLog]) -> dict[str, Any]:
    per_run = {run.seed: run_seconds(run) for run in counted}
    parts = ("fast", "slow", "slow_generate", "evaluation", "other", "total")
    means = {part: statistic({s: v[part] for s, v in per_run.items()})["mean"] for part in parts}
    training = {seed: value["fast"] + value["slow"] for seed, value in per_run.items()}
    return {**means, "training": statistic(training)}


def _measured(arm: Json, metric: str) -> tuple[float | None, dict[str, float | None]]:
    """One compared number of an arm: its mean, and the values by seed."""
    if metric == "rollouts_to_peak":
        to_peak = arm["to_rl_peak"]
        points = to_peak["seeds"]
        by_seed = {seed: point and point["rollouts"] for seed, point in points.items()}
        return (to_peak["mean_curve"] or {}).get("rollouts"), by_seed
    found = arm["seconds"]["training"] if metric == "training_seconds" else arm[metric]
    return found["mean"], found["seeds"]


def _comparisons(arms: Mapping[str, Json], learning: set[str]) -> dict[str, dict[str, Json]]:
    """Every arm that learns against rl on each compared number: an untrained one costs nothing."""
    rl = arms.get(BASELINE)
    if rl is None or rl["to_rl_peak"] is None:
        return {}
    return {
        name: {metric: _compare(arm, rl, metric) for metric in COMPARED}
        for name, arm in arms.items()
        if name != BASELINE and name in learning and arm["counted"]
    }


def _compare(arm: Json, rl: Json, metric: str) -> Json:
    """Difference arm - rl, its interval over seeds paired by number, and who is better.

    `better` is true, false, or null where a value is missing or both are equal (an arm that never
    reaches the peak is worse); `certain` says whether the interval leaves out zero and stands on
    `FEWEST_SEEDS` pairs at least. `seeds` has the difference of each seed, null where undefined.
    """
    (mine, my_seeds), (theirs, rl_seeds) = _measured(arm, metric), _measured(rl, metric)
    pairs = {seed: (mine, rl_seeds.get(seed)) for seed, mine in my_seeds.items()}
    by_seed = {
        seed: None if a is None or b is None else number(a - b) for seed, (a, b) in pairs.items()
    }
    differences = [value for value in by_seed.values() if value is not None]
    bounds = interval(differences) if len(differences) == len(pairs) else None
    difference = None if mine is None or theirs is None else mine - theirs
    better = None
    if difference is not None and abs(difference) > 1e-9:
        better = difference * COMPARED[metric] > 0
    if metric == "rollouts_to_peak" and mine is None and theirs is not None:
        better = False
    return {
        "arm": mine,
        "rl": theirs,
        "difference": difference,
        "interval": bounds,
        "pairs": len(differences),
        "seeds": by_seed,
        "better": better,
        "certain": bounds is not None
        and len(differences) >= FEWEST_SEEDS
        and (bounds[0] > 0 or bounds[1] < 0),
    }


def write_summary(summary: Mapping[str, Any], path: Path) -> Path:
    """Write the summary as JSON: plain floats, null where missing or not finite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(summary), indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def _finite(value: Any) -> Any:
    """The same JSON value with null for every number that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
