"""What a study says at a glance: findings, what is missing, and its numbers per arm."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fst_core.counting import counted
from fst_core.report.comparison import COMPARED, KL_COLUMNS, told_kl
from fst_core.report.headline import LABELS, UNITS, challenger, findings, to_peak_text
from fst_core.report.intervals import estimate_cell, with_interval
from fst_core.report.markup import Markup, details, join, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.statistics import FEWEST_SEEDS, without_spread
from fst_core.report.subtraction import Subtraction, subtraction

Json = Mapping[str, Any]

REWARD_NOTE = (
    "Means over the runs counted, one a seed. Below a mean, from three seeds on, the 95% "
    "t-interval over seeds in square brackets, cut where no value can lie (rewards lie in "
    "[0, 1]); of two seeds their own values, for two give no usable interval. Reward is mean@k on "
    "validation problems: the mean over a problem's k samples. The highest reward is the largest "
    "of a run's evaluations, so it also rises with their number and their noise."
)
COST_NOTE = (
    "What training used, means over the runs counted. Where rl's peak is reached: on the mean "
    "curve over seeds; no peak: rl never rose above its first evaluation. Seconds are wall time "
    "on the machine of the run, whatever else ran there; other: start-up, checkpoints and waiting."
)
COMPARISON_NOTE = (
    "Differences arm - rl seed by seed, over the seeds both were run with. Beyond seed noise: the "
    "95% t-interval over these pairs, from three on, has a width and leaves out zero. It takes the "
    "problems as they are, and no account of how many numbers are compared. Of rollouts to rl's "
    "peak the values are those of the mean curves; their difference is seed by seed where every "
    "pair got there, else that of the mean curves."
)


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
    kl = summary["kl_column"] or "kl"
    yield tag("p", REWARD_NOTE, told_kl(summary["kl_column"]), class_="soft")
    yield table(
        (
            "arm", "runs counted", "judged context", "final reward", "highest reward of a run",
            "final reward, seed context", f"KL at the end, {KL_COLUMNS[kl]} (nats/token)",
            f"KL, {KL_COLUMNS[kl]}, seed context",
        ),
        [_reward_row(name, arm, kl) for name, arm in summary["arms"].items()],
    )  # fmt: skip
    yield tag("p", COST_NOTE, class_="soft")
    yield table(
        (
            "arm", "slow steps", "steps to rl's peak", "rollouts to rl's peak", "slow rollouts",
            "fast rollouts", "reflections", "evaluation rollouts", "slow tokens", "fast tokens",
            "fast (s)", "slow (s)", "evaluation (s)", "other (s)", "total (s)",
        ),
        [_cost_row(name, arm) for name, arm in summary["arms"].items()],
    )  # fmt: skip
    if summary["comparisons"]:
        yield tag("h3", "Every arm against rl")
        yield tag("p", COMPARISON_NOTE, class_="soft")
        yield _comparison_table(summary["comparisons"])


def _reward_row(name: str, arm: Json, kl: str) -> list[Any]:
    count = f"{len(arm['counted'])} of {arm['runs']}{' (unfinished)' * arm['partial']}"
    kls = (f"final_{kl}", f"final_seed_{kl}")
    names = ("final_reward", "best_reward", "final_seed_reward", *kls)
    return [name, count, arm["context"], *(estimate_cell(arm[key]) for key in names)]


def _cost_row(name: str, arm: Json) -> list[Any]:
    loops = ("slow_rollouts", "fast_rollouts", "reflections", "evaluation_rollouts")
    used = (*loops, "slow_tokens", "fast_tokens")
    parts = ("fast", "slow", "evaluation", "other", "total")
    return [
        name,
        number_text(arm["steps"]["mean"], 0),
        *(to_peak_text(arm, column) for column in ("step", "rollouts")),
        *(number_text(arm["used"].get(key), 0) for key in used),
        *(number_text(arm["seconds"][key], 1) for key in parts),
    ]


def _comparison_table(comparisons: Json) -> Markup:
    rows = []
    for arm, metrics in comparisons.items():
        for metric, found in metrics.items():
            unit, digits = UNITS[metric]
            equal = "–" if found["difference"] is None else "equal"
            verdict = {True: "better", False: "worse", None: equal}[found["better"]]
            told = subtraction(found["arm"], found["rl"], found["difference"], digits)
            aim = "higher" if COMPARED[metric] > 0 else "lower"
            rows.append(
                [arm, f"{LABELS[metric]} ({unit}; {aim} is better)", told.minuend, told.subtrahend,
                 _difference(found, told), found["pairs"], _spread(found, told.digits), verdict,
                 _sure(found)]
            )  # fmt: skip
    headers = (
        "arm", "measure", "of the arm", "of rl", "difference", "pairs of seeds", "95% interval",
        "the arm is", "beyond seed noise",
    )  # fmt: skip
    return table(headers, rows)


def _difference(found: Json, told: Subtraction) -> Markup:
    """The difference, and that it was taken seed by seed where it is not that of the values."""
    if told.exact or found["difference"] is None:
        return join(told.difference)
    return join(told.difference, tag("div", "seed by seed", class_="soft"))


def _spread(found: Json, digits: int) -> Markup:
    """The interval of a difference, or by seed the differences that are too few for one."""
    if found["pairs"] < FEWEST_SEEDS:
        known = [value for value in found["seeds"].values() if value is not None]
        seeds = ", ".join(number_text(value, digits) for value in known)
        return tag("span", f"none; by seed {seeds}" if known else "–")
    if found["interval"] is None:
        return tag("span", "–")
    if without_spread(found["interval"]):
        return tag("span", "no spread")
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
    kl = summary["kl_column"] or "kl"
    for name, arm in summary["arms"].items():
        rows = [
            [label, item["step"], number_text(item["rollouts"], 0), with_interval(item["reward"]),
             ", ".join(f"s{s}: {number_text(v)}" for s, v in item["reward"]["seeds"].items()),
             number_text(item[kl])]
            for label, key in ((arm["context"], "evaluations"), ("seed", "seed_evaluations"))
            for item in arm[key]
            if key == "evaluations" or arm["context"] != "seed"
        ]  # fmt: skip
        headers = (
            "context",
            "step",
            "training rollouts",
            "reward",
            "by seed",
            f"KL, {KL_COLUMNS[kl]} (nats/token)",
        )
        if rows:
            yield details(f"{name}: {counted(len(rows), 'evaluation')}", table(headers, rows))
