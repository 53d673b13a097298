"""What reaching rl's running peak costs: steps, rollouts and tokens, and how many times less."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from fst_core.estimators.efficiency import Ratio, efficiency_ratio, first_reaching
from fst_core.report.arms import (
    counted_runs,
    curve_of,
    in_reading_order,
    learning_runs,
    mean_curve_of,
)
from fst_core.report.changes import notes_of
from fst_core.report.comparison import BASELINE
from fst_core.report.headline import rl_learned
from fst_core.report.intervals import span_text
from fst_core.report.markup import Markup, join, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.statistics import FEWEST_SEEDS, Json, number

UNITS = {
    "step": "slow steps",
    "rollouts": "rollouts, both loops",
    "slow_rollouts": "slow rollouts",
    "fast_rollouts": "fast rollouts",
    "tokens": "tokens generated, both loops",
}
"""Columns of the table of curves in which cost is told."""
COMPARED = ("step", "rollouts", "slow_rollouts", "tokens")
"""Units in which rl is compared: it uses no fast rollouts."""

READING = (
    "Training cost (evaluation left out) at the first evaluation whose reward is at least the "
    "highest value of rl's mean curve, on each arm's mean curve over seeds. No interpolation "
    "between evaluations. Below a cost: rl's cost divided by it, so that above 1 the arm is "
    "cheaper."
)
PAIRED_READING = (
    "The same seed by seed: the target is the running peak of the rl run with the same seed. "
    "Geometric mean over paired seeds of rl's cost / the arm's cost, with a 95% t-interval of its "
    "logarithm over seeds. A seed in which the arm did not reach the target counts with the "
    "arm's whole budget, so the mean is then an upper bound (at most) and has no interval."
)


@dataclass(frozen=True, slots=True)
class Paired:
    """One arm against rl, each seed with the peak of its own rl run as target."""

    seeds: tuple[int, ...]
    """Paired seeds in which rl rose above its first evaluation."""
    left_out: tuple[int, ...]
    """Paired seeds in which it did not: there is nothing to reach."""
    costs: Mapping[str, Sequence[float | None]]
    """By unit: the arm's cost per seed, None where the target was not reached."""
    rl_costs: Mapping[str, Sequence[float | None]]
    ratios: Mapping[str, Ratio]


def section(study: Study) -> Section | None:
    """Cost to rl's peak; None where nothing was evaluated, a sentence where rl gives no target."""
    arms = learning_runs(study)
    if not arms:
        return None
    title = "Sample efficiency: what it costs to reach rl's peak"
    if reason := no_target(study):
        return Section("efficiency", title, notes_of([reason]), summary={"reason": reason})
    means = mean_curve_costs(study)
    pairs = {arm: paired(study, arm) for arm in arms if arm != BASELINE}
    notes = [sentence for arm, found in pairs.items() for sentence in _notes(arm, found)]
    frame = pd.DataFrame(_rows(means, pairs), columns=pd.Index(COLUMNS))
    return Section(
        name="efficiency",
        title=title,
        body=[
            tag("p", READING, f" Target: {_peak_text(study)}.", class_="soft"),
            table(("arm", *UNITS.values()), [_mean_row(means, arm) for arm in means]),
            *_paired_part(pairs),
            *notes_of(notes),
        ],
        tables={"efficiency": frame},
        summary={
            "target": study.summary["rl_peak"]["reward"],
            "mean_curve": means,
            "paired": {arm: _plain(found) for arm, found in pairs.items()},
            "notes": notes,
        },
    )


def no_target(study: Study) -> str:
    """Why rl gives no peak to reach, one sentence; empty if it does."""
    if study.summary["rl_peak"] is None:
        return "No rl run has a finite evaluation, so there is no peak to reach."
    if not rl_learned(study.summary):
        return "rl never rose above its first evaluation, so there is no peak to reach."
    return ""


def _peak_text(study: Study) -> str:
    peak = study.summary["rl_peak"]
    return f"{number_text(peak['reward'])}, at rl's step {peak['step']}"


def mean_curve_costs(study: Study) -> dict[str, dict[str, float | None]]:
    """By arm and unit: cost at which the mean curve reaches rl's peak; None: not reached."""
    target = study.summary["rl_peak"]["reward"]
    curves = {arm: mean_curve_of(study, runs) for arm, runs in learning_runs(study).items()}
    return {arm: _costs(curves[arm], target) for arm in in_reading_order(list(curves))}


def _costs(curve: pd.DataFrame, target: float) -> dict[str, float | None]:
    rewards = curve["reward"].astype(float).to_list()
    return {
        unit: first_reaching(curve[unit].astype(float).to_list(), rewards, target) for unit in UNITS
    }


def times_less(
    means: Mapping[str, Mapping[str, float | None]], arm: str, unit: str
) -> float | None:
    """rl's cost over the arm's, on the mean curves; None where the arm did not get there."""
    rl, mine = means[BASELINE][unit], means[arm][unit]
    return rl / mine if rl and mine else None


def paired(study: Study, arm: str) -> Paired:
    """The arm against rl over the seeds both have."""
    arms = counted_runs(study)
    rl = {run.seed: run for run in arms.get(BASELINE, [])}
    both = [(run, rl[run.seed]) for run in arms[arm] if run.seed in rl]
    peaks = {run.seed: _own_peak(study, theirs) for run, theirs in both}
    targets = {seed: peak for seed, peak in peaks.items() if peak is not None}
    kept = [(run, theirs) for run, theirs in both if run.seed in targets]
    mine = [_costs(curve_of(study, run), targets[run.seed]) for run, _ in kept]
    rls = [_costs(curve_of(study, theirs), targets[run.seed]) for run, theirs in kept]
    costs = {unit: [found[unit] for found in mine] for unit in UNITS}
    rl_costs = {unit: [found[unit] for found in rls] for unit in UNITS}
    ratios = {
        unit: efficiency_ratio(rl_costs[unit], costs[unit], _budgets(study, kept, unit))
        for unit in COMPARED
    }
    left_out = tuple(seed for seed in peaks if seed not in targets)
    return Paired(tuple(targets), left_out, costs, rl_costs, ratios)


def _own_peak(study: Study, rl: RunLog) -> float | None:
    """The highest reward of one rl run; None where that is its first evaluation."""
    rewards = curve_of(study, rl)["reward"].astype(float)
    top = number(rewards.max())
    return None if top is None or top <= rewards.iloc[0] else top


def _budgets(study: Study, pairs: Sequence[tuple[RunLog, RunLog]], unit: str) -> list[float]:
    return [float(curve_of(study, run)[unit].max()) for run, _ in pairs]


def _mean_row(means: Mapping[str, Mapping[str, float | None]], arm: str) -> list[Any]:
    return [arm, *(_cost_cell(means, arm, unit) for unit in UNITS)]


def _cost_cell(means: Mapping[str, Mapping[str, float | None]], arm: str, unit: str) -> Any:
    cost = means[arm][unit]
    if cost is None:
        return "not reached"
    ratio = times_less(means, arm, unit) if arm != BASELINE and unit in COMPARED else None
    below = tag("div", f"ratio {number_text(ratio, 2)}", class_="soft span")
    return join(number_text(cost, 0), below if ratio is not None else "")


def _paired_part(pairs: Mapping[str, Paired]) -> Iterator[Markup]:
    if not pairs:
        yield tag("p", "rl is the only arm, so nothing is compared with it.")
        return
    yield tag("h3", "Against rl, seed by seed")
    yield tag("p", PAIRED_READING, class_="soft")
    headers = ("arm", "paired seeds that reached", *(UNITS[unit] for unit in COMPARED))
    yield table(headers, [_paired_row(arm, found) for arm, found in pairs.items()])


def _paired_row(arm: str, found: Paired) -> list[Any]:
    first = found.ratios[COMPARED[0]]
    cells = [_ratio_cell(found.ratios[unit]) for unit in COMPARED]
    return [arm, f"{first.reached} of {first.of}", *cells]


def _ratio_cell(ratio: Ratio) -> Any:
    shown = f"{ratio.bound} {number_text(ratio.value, 2)}".strip()
    if ratio.of and not ratio.reached:
        bound = "" if ratio.value is None else tag("div", shown, class_="soft span")
        return join("not reached", bound)
    if ratio.value is None:
        return "undefined"
    if ratio.interval is None or ratio.of < FEWEST_SEEDS:
        return shown
    told = span_text((ratio.interval.low, ratio.interval.high), 2)
    return join(shown, tag("div", told, class_="soft span"))


def _notes(arm: str, found: Paired) -> Iterator[str]:
    if not found.seeds and not found.left_out:
        yield f"{arm} shares no seed with rl, so nothing is paired."
    for seed in found.left_out:
        yield f"Seed {seed}: rl never rose above its start, so {arm} has no target there."
    reasons: dict[str, str] = {}
    for unit, ratio in found.ratios.items():
        reasons.setdefault(ratio.reason, unit)
    for reason, unit in reasons.items():
        if reason and found.seeds:
            yield f"{arm}, {UNITS[unit]}: {reason}"
    if 0 < len(found.seeds) < FEWEST_SEEDS:
        seeds = "one seed" if len(found.seeds) == 1 else "two seeds"
        yield f"{arm} is paired with rl in {seeds} only, so its ratios have no interval."


COLUMNS = ("arm", "target", "seed", "unit", "cost", "rl_cost")


def _rows(
    means: Mapping[str, Mapping[str, float | None]], pairs: Mapping[str, Paired]
) -> Iterator[tuple[Any, ...]]:
    """Cost and rl's cost by arm, target ("mean curve" or "own seed") and unit."""
    for arm, costs in means.items():
        for unit, cost in costs.items():
            yield (arm, "mean curve", None, unit, cost, means[BASELINE][unit])
    for arm, found in pairs.items():
        for unit in UNITS:
            triples = zip(found.seeds, found.costs[unit], found.rl_costs[unit], strict=True)
            yield from ((arm, "own seed", seed, unit, mine, rl) for seed, mine, rl in triples)


def _plain(found: Paired) -> Json:
    return {
        "seeds": list(found.seeds),
        "left_out": list(found.left_out),
        "costs": {unit: list(costs) for unit, costs in found.costs.items()},
        "rl_costs": {unit: list(costs) for unit, costs in found.rl_costs.items()},
        "ratios": {unit: asdict(ratio) for unit, ratio in found.ratios.items()},
    }
