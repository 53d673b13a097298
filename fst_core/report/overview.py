"""What a study says at a glance: findings, what is missing, and its numbers per arm."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fst_core.counting import counted
from fst_core.report.headline import LABELS, UNITS, challenger, findings
from fst_core.report.intervals import estimate_cell, with_interval
from fst_core.report.markup import Markup, details, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.summary import FEWEST_SEEDS

Json = Mapping[str, Any]


def overview(runs: Sequence[RunLog], summary: Json) -> list[Markup]:
    """Sentences on the challenger against rl, notes on runs, and the numbers of every arm."""
    return [_findings(summary), *_notes(runs), *_summary_tables(summary)]


def _findings(summary: Json) -> Markup:
    arm = challenger(summary)
    if arm is None:
        return Markup()
    return tag("ul", *(tag("li", sentence) for sentence in findings(summary, arm)))


def _notes(runs: Sequence[RunLog]) -> Iterator[Markup]:
    for run in runs:
        if run.note:
            yield tag("p", tag("strong", run.id), f": {run.note}", class_="note")


def _summary_tables(summary: Json) -> Iterator[Markup]:
    note = (
        "Means over the runs counted; below them, from three seeds on, the 95% t-interval over "
        "seeds in square brackets; of two seeds their own values, for two give no usable interval."
    )
    yield tag("p", note, class_="soft")
    yield table(
        (
            "arm", "runs counted", "context", "final reward", "best reward",
            "final reward, seed context", "KL at the end (nats/token)", "KL, seed context",
        ),
        [_reward_row(name, arm) for name, arm in summary["arms"].items()],
    )  # fmt: skip
    yield table(
        (
            "arm", "steps", "steps to rl's peak", "rollouts to rl's peak", "slow rollouts",
            "fast rollouts", "reflections", "evaluation rollouts", "slow tokens", "fast tokens",
            "fast s",
            "slow s", "evaluation s", "other s", "total s",
        ),
        [_cost_row(name, arm) for name, arm in summary["arms"].items()],
    )  # fmt: skip
    if summary["comparisons"]:
        yield tag("h3", "Every arm against rl")
        yield _comparison_table(summary["comparisons"])


def _reward_row(name: str, arm: Json) -> list[Any]:
    count = f"{len(arm['counted'])} of {arm['runs']}{' (unfinished)' * arm['partial']}"
    names = ("final_reward", "best_reward", "final_seed_reward", "final_kl", "final_seed_kl")
    return [name, count, arm["context"], *(estimate_cell(arm[key]) for key in names)]


def _cost_row(name: str, arm: Json) -> list[Any]:
    to_peak = arm["to_rl_peak"] or {"mean_curve": None, "defined": False}
    point = to_peak["mean_curve"]
    missing = "not reached" if to_peak["defined"] else "–"
    reached = [number_text(point[k], 0) if point else missing for k in ("step", "rollouts")]
    loops = ("slow_rollouts", "fast_rollouts", "reflections", "evaluation_rollouts")
    used = (*loops, "slow_tokens", "fast_tokens")
    parts = ("fast", "slow", "evaluation", "other", "total")
    return [
        name,
        number_text(arm["steps"]["mean"], 0),
        *reached,
        *(number_text(arm["used"].get(key), 0) for key in used),
        *(number_text(arm["seconds"][key], 1) for key in parts),
    ]


def _comparison_table(comparisons: Json) -> Markup:
    rows = []
    for arm, metrics in comparisons.items():
        for metric, found in metrics.items():
            unit, digits = UNITS[metric]
            verdict = {True: "better", False: "worse", None: "equal or unknown"}[found["better"]]
            values = [number_text(found[key], digits) for key in ("arm", "rl", "difference")]
            told = [found["pairs"], _spread(found, digits), verdict, _sure(found)]
            rows.append([arm, f"{LABELS[metric]} ({unit})", *values, *told])
    headers = (
        "arm", "measure", "arm", "rl", "difference", "pairs of seeds", "95% interval", "",
        "beyond seed noise",
    )  # fmt: skip
    return table(headers, rows)


def _spread(found: Json, digits: int) -> Markup:
    """The interval of a difference, or by seed the differences that are too few for one."""
    if found["pairs"] < FEWEST_SEEDS:
        known = [value for value in found["seeds"].values() if value is not None]
        seeds = ", ".join(number_text(value, digits) for value in known)
        return tag("span", f"none; by seed {seeds}" if known else "–")
    if found["interval"] is None:
        return tag("span", "–")
    low, high = (number_text(bound, digits) for bound in found["interval"])
    return tag("span", f"{low} to {high}")


def _sure(found: Json) -> str:
    if found["difference"] is None:
        return "–"
    if found["pairs"] < FEWEST_SEEDS:
        return "too few seeds"
    return "yes" if found["certain"] else "no"


def rewards_by_seed(summary: Json) -> Iterator[Markup]:
    """Every evaluation of every arm, opened by the reader."""
    for name, arm in summary["arms"].items():
        rows = [
            [label, item["step"], number_text(item["rollouts"], 0), with_interval(item["reward"]),
             ", ".join(f"s{s}: {number_text(v)}" for s, v in item["reward"]["seeds"].items()),
             number_text(item["kl"])]
            for label, key in ((arm["context"], "evaluations"), ("seed", "seed_evaluations"))
            for item in arm[key]
            if key == "evaluations" or arm["context"] != "seed"
        ]  # fmt: skip
        headers = ("context", "step", "training rollouts", "reward", "by seed", "KL (nats/token)")
        if rows:
            yield details(f"{name}: {counted(len(rows), 'evaluation')}", table(headers, rows))
