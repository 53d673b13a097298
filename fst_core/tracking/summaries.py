"""A study's report in MLflow: its files on the study's run, its numbers on the runs of the arms.

An arm's run gets the mean curves over its seeds under the keys that the seeds' runs have, and the
numbers of the report's summary under "final/"; the study's run has those of all arms, under
"study/". A run is made anew when its numbers change, since MLflow keeps every row it was given.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from fst_core.home import study_place_of
from fst_core.provenance import arm_settings
from fst_core.records import content_id
from fst_core.tracking.metrics import metric_key
from fst_core.tracking.replay import MAX_METRICS, SyncReport
from fst_core.tracking.runs import (
    ARM_KEY_TAG,
    PLACE_TAG,
    STEP,
    RunIdentity,
    arm_tags,
    find_or_create,
    log_params,
    place_text,
    put_under,
    tell_place,
)

SUMMARY_TAG = "fst.summary"
"""On an arm's run: a hash of the numbers it holds."""
PEAK_TAG = "fst.rollouts_to_rl_peak"
LEFT_OUT_TAG = "fst.arms_left_out"
"""On the study's run: arms of the report whose runs are not in MLflow as the report has them."""
FILES = ("report.html", "summary.json")
FOLDERS = ("tables", "figures")
SAME = 1e-9
Json = Mapping[str, Any]
Rows = Sequence[tuple[str, float, int]]
"""(key, value, step)."""


def log_study(
    client: MlflowClient, experiment_id: str, experiment: str, out_dir: Path
) -> SyncReport:
    """Upload a report and write its numbers; the same report again changes nothing.

    Args:
        client: Connected to the store.
        experiment_id: The experiment that holds the study's runs.
        experiment: Name of the study, which is one of several in a report over several.
        out_dir: The report's folder.
    """
    arms = _read_arms(out_dir / "summary.json", experiment)
    rows = [
        (f"study/{name}.{arm}", value, 0)
        for arm, numbers in arms.items()
        for name, value in _final(numbers).items()
    ]
    key = content_id(experiment, "study")
    seeds = _seed_runs(client, experiment_id)
    reported = {arm: _seeds_of(arm, numbers, seeds) for arm, numbers in arms.items()}
    begun = [seed.info.start_time for mine in reported.values() for seed in mine]
    start_ms = min(begun, default=None)
    identity = RunIdentity(experiment_id, key, "study", start_ms, {"fst.level": "study"})
    study, holds = _run_holding(client, identity, rows)
    tell_place(client, study, place_text(study_place_of(out_dir)))
    artifacts = _upload(client, study.info.run_id, out_dir)
    metrics = 0 if holds else _log_rows(client, study, rows)
    for arm, mine in reported.items():
        metrics += _log_arm(client, arm, arms[arm], mine) if mine else 0
    left_out = [arm for arm, mine in reported.items() if not mine]
    client.set_tag(study.info.run_id, LEFT_OUT_TAG, ", ".join(left_out) or "none")
    _finish(client, study.info.run_id, [seed for mine in reported.values() for seed in mine])
    return SyncReport(metrics=metrics, artifacts=artifacts)


def _run_holding(client: MlflowClient, identity: RunIdentity, rows: Rows) -> tuple[Run, bool]:
    """The run of an identity and whether it holds the rows; anew if it holds any other."""
    run = find_or_create(client, identity)
    if run.data.tags.get(SUMMARY_TAG) == _digest(rows):
        return run, True
    if run.data.metrics:
        client.delete_run(run.info.run_id)
        run = find_or_create(client, identity)
    return run, False


def _log_rows(client: MlflowClient, run: Run, rows: Rows) -> int:
    """Write rows, at times that follow from the run's start and the step; how many."""
    started = run.info.start_time
    metrics = [Metric(metric_key(key), value, started + step, step) for key, value, step in rows]
    for start in range(0, len(metrics), MAX_METRICS):
        client.log_batch(run.info.run_id, metrics[start : start + MAX_METRICS])
    client.set_tag(run.info.run_id, SUMMARY_TAG, _digest(rows))
    return len(metrics)


def _digest(rows: Rows) -> str:
    return content_id(json.dumps(rows))


def _upload(client: MlflowClient, run_id: str, out_dir: Path) -> int:
    files = [out_dir / name for name in FILES if (out_dir / name).is_file()]
    for path in files:
        client.log_artifact(run_id, str(path))
    for name in FOLDERS:
        inside = [path for path in (out_dir / name).rglob("*") if path.is_file()]
        if inside:
            client.log_artifacts(run_id, str(out_dir / name), name)
            files += inside
    return len(files)


def _read_arms(path: Path, experiment: str) -> Json:
    """The arms in the study's part of summary.json; none where it cannot be read."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(summary, dict):
        return {}
    part = summary["studies"].get(experiment, {}) if "studies" in summary else summary
    return part.get("arms") or {}


def _seed_runs(client: MlflowClient, experiment_id: str) -> list[Run]:
    """The runs of all seeds of all arms, newest first."""
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment_id],
            "tags.`fst.level` = 'seed'",
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        found += page
        token = page.token
        if not token:
            return found


def _seeds_of(arm: str, numbers: Json, runs: Sequence[Run]) -> list[Run]:
    """The runs of one arm that the report is about; none where MLflow lacks one of them.

    An experiment may hold an arm several times, with other settings: the newest whose seeds have
    the report's final rewards is meant.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.data.tags.get("fst.arm") == arm and ARM_KEY_TAG in run.data.tags:
            groups.setdefault(run.data.tags[ARM_KEY_TAG], []).append(run)
    rewards = {s: v for s, v in numbers["final_reward"]["seeds"].items() if v is not None}
    for group in groups.values():
        measured = {
            run.data.tags["fst.seed"]: run.data.metrics.get("evaluation/reward")
            for run in reversed(group)
        }
        if rewards and all(_same(measured.get(seed), value) for seed, value in rewards.items()):
            return group
    return []


def _same(a: float | None, b: float) -> bool:
    return a is not None and abs(a - b) <= SAME


def _log_arm(client: MlflowClient, arm: str, numbers: Json, seeds: Sequence[Run]) -> int:
    """Write an arm's numbers to its run, which its seeds go under; how many rows were new."""
    key, info = seeds[0].data.tags[ARM_KEY_TAG], seeds[0].info
    start_ms = min(seed.info.start_time for seed in seeds)
    identity = RunIdentity(info.experiment_id, key, arm, start_ms, arm_tags(arm))
    rows = arm_metrics(numbers)
    run, holds = _run_holding(client, identity, rows)
    run_id = run.info.run_id
    if PLACE_TAG in seeds[0].data.tags:
        tell_place(client, run, seeds[0].data.tags[PLACE_TAG].rpartition(STEP)[0])
    for seed in seeds:
        put_under(client, seed, run_id, key)
    if holds:
        return 0
    log_params(client, run_id, arm_settings(seeds[0].data.params))
    client.set_tag(run_id, PEAK_TAG, _peak_text(numbers))
    _finish(client, run_id, seeds)
    return _log_rows(client, run, rows)


def _finish(client: MlflowClient, run_id: str, seeds: Sequence[Run]) -> None:
    """End a run when the last of the runs did that it is about."""
    ends = [seed.info.end_time for seed in seeds if seed.info.end_time]
    client.set_terminated(run_id, "FINISHED", max(ends, default=None))


def arm_metrics(numbers: Json) -> Rows:
    """(key, value, step) rows of one arm of a summary: mean curves, then the final numbers.

    A curve has the steps at which every seed that counts was measured; its twin under "samples/"
    stands at the mean number of training rollouts. The final numbers have step 0: MLflow then
    draws them as bars.
    """
    return [
        *_curve(numbers.get("evaluations", ()), ""),
        *_curve(numbers.get("seed_evaluations", ()), ".seed"),
        *((f"final/{name}", value, 0) for name, value in _final(numbers).items()),
    ]


def _curve(evaluations: Sequence[Json], suffix: str) -> Iterable[tuple[str, float, int]]:
    seeds = max((item["reward"]["n"] for item in evaluations), default=0)
    for item in evaluations:
        if item["reward"]["n"] < max(seeds, 1):
            continue
        for name, value in (("reward", item["reward"]["mean"]), ("kl", item.get("kl"))):
            if value is None:
                continue
            yield f"evaluation/{name}{suffix}", value, item["step"]
            if item.get("rollouts") is not None:
                rollouts = round(item["rollouts"])
                yield f"samples/evaluation/{name}{suffix}", value, rollouts


def _final(numbers: Json) -> dict[str, float]:
    """The numbers of an arm that arms are compared on; those that are undefined left out."""
    reward = numbers["final_reward"]
    low, high = reward["interval"] or (None, None)
    point = (numbers.get("to_rl_peak") or {}).get("mean_curve") or {}
    named = {
        "reward": reward["mean"],
        "reward_low": low,
        "reward_high": high,
        "n_seeds": reward["n"],
        "reward_seed_context": (numbers.get("final_seed_reward") or {}).get("mean"),
        "kl": (numbers.get("final_kl") or {}).get("mean"),
        "rollouts_to_rl_peak": point.get("rollouts"),
        "steps_to_rl_peak": point.get("step"),
        "training_seconds": ((numbers.get("seconds") or {}).get("training") or {}).get("mean"),
    }
    return {name: float(value) for name, value in named.items() if value is not None}


def _peak_text(numbers: Json) -> str:
    """Rollouts to the running peak of the rl arm, in a word where there is no number."""
    to_peak = numbers.get("to_rl_peak")
    if not to_peak:
        return "undefined: no rl arm"
    if not to_peak["defined"]:
        return "undefined: rl never rose"
    point = to_peak["mean_curve"]
    return f"{point['rollouts']:.0f}" if point else "not reached"
