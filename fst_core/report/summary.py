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

from fst_core.journal import Event
from fst_core.report.comparison import BASELINE, KL_COLUMNS, comparisons
from fst_core.report.runs import RunLog
from fst_core.report.statistics import NOT_NEGATIVE, REWARD, UNBOUNDED, Json, number, statistic

POINT = ("step", "reward", "rollouts", *KL_COLUMNS, "seconds")
"""What is told of an evaluation at which a target was reached."""
KL_RANGES = {"kl": UNBOUNDED, "kl_exact": NOT_NEGATIVE}
"""k1 is a mean of signed terms, so it may come out below 0 where a divergence cannot."""


def summarize(runs: Sequence[RunLog], curves: pd.DataFrame) -> Json:
    """The summary of a study as plain JSON types; see the module's docstring for the rules."""
    kl = kl_column(curves)
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
        "kl_column": kl,
        "comparisons": comparisons(arms, {run.arm for run in runs if run.learns}, kl),
    }


def kl_column(curves: pd.DataFrame) -> str | None:
    """The column KL is told in: exact where every evaluation with a KL has it, else k1.

    One column for a study, so that no arm's estimate is compared with another's exact value; None
    where no KL was measured.
    """
    known = curves.dropna(subset=["kl"])
    if known.empty:
        return None
    return "kl_exact" if known["kl_exact"].notna().all() else "kl"


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
        "final_reward": statistic(_last(headline, "reward"), REWARD),
        "best_reward": statistic(dict(headline.groupby("seed")["reward"].max()), REWARD),
        "final_seed_reward": statistic(_last(seed, "reward"), REWARD),
        **{
            f"final_{judged}{column}": statistic(_last(rows, column), KL_RANGES[column])
            for column in KL_COLUMNS
            for judged, rows in (("", headline), ("seed_", seed))
        },
        "steps": statistic({run.seed: run.last_step for run in counted}, NOT_NEGATIVE),
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
            "reward": statistic(dict(zip(group["seed"], group["reward"], strict=True)), REWARD),
            **{column: number(group[column].mean()) for column in KL_COLUMNS},
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
    return {**means, "training": statistic(training, NOT_NEGATIVE)}


def by_experiment(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary of every experiment that a report is on, one or several."""
    return summary.get("studies") or {summary["experiment"]: summary}


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
