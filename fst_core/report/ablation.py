"""Ablations: arms that differ from a base arm in one setting, grouped by that setting.

The groups are found from the runs' configs alone. The base is the arm with the most others at a
distance of one setting; a table of another `type` counts as one setting.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fst_core.config import ARMS
from fst_core.config.sweeps import label_of
from fst_core.report.arms import counted_runs
from fst_core.report.changes import notes_of, shown_figure, single_seeds
from fst_core.report.comparison import told_kl
from fst_core.report.figures import INK, plain, to_svg
from fst_core.report.intervals import estimate_cell
from fst_core.report.markup import Markup, esc, join, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.section import Section, Study
from fst_core.report.statistics import DIFFERENCE, Json, statistic

UNCOMPARED = frozenset({"arm", "name", "seed", "why"})
"""Keys that say which run it is."""
STARTS = frozenset({"start_from", "contexts.start_from"})
"""Settings of probes of other runs, which have sections of their own."""
SERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "reward": ("judged context", {"color": INK, "marker": "o"}),
    "seed_reward": ("seed context", {"color": "#D55E00", "marker": "s", "mfc": "none"}),
}
HEADERS = (
    "value", "seeds", "reward at the end", "minus base", "seed context", "rollouts",
    "KL at the end (nats/token)", "training s",
)  # fmt: skip
READING = (
    "Reward at the end is mean@k at the last evaluation under the context an arm is judged by (the "
    "best of its population; the seed context where none evolves). Minus base: paired by seed. "
    "Below a mean: its 95% t-interval over seeds (with two seeds, their values). Rollouts of both "
    "loops and training seconds leave evaluation out; KL is to the base model. The marked "
    "line is the base arm. In the figures: filled, the judged context; hollow, the seed context; "
    "large, the mean with its interval (from three seeds on); small, single seeds; dotted, the "
    "base arm's mean."
)


@dataclass(frozen=True, slots=True)
class Ablation:
    """One setting and the arms in which it alone differs from the base arm's."""

    key: str
    """Dotted path of the setting."""
    values: Mapping[str, Any]
    """By arm: its value, in reading order; the base arm is among them."""

    @property
    def labels(self) -> dict[str, str]:
        """By arm: the value in a word; the arm's name too where two share the word."""
        words = {arm: label_of(value) for arm, value in self.values.items()}
        seen = list(words.values())
        return {
            arm: word if seen.count(word) == 1 else f"{word} ({arm})" for arm, word in words.items()
        }


def section(study: Study) -> Section | None:
    """One setting at a time; None where no arm differs from another in just one.

    Arms that only switch a loop off or begin with other weights do not open the section.
    """
    configs = _configs(study)
    base = _base(configs)
    if base is None:
        return None
    ablations = _ablations(configs, base)
    if not any(_tunes(ablation) for ablation in ablations):
        return None
    found = {ablation.key: _numbers(study, ablation, base) for ablation in ablations}
    notes = [*_notes(study, configs, base), *_seeds(study, found)]
    svgs = {
        f"ablation_{ablation.key.replace('.', '_')}": to_svg(
            f"ablation {ablation.key}", partial(_draw, ablation.key, found[ablation.key], base)
        )
        for ablation in ablations
    }
    parts = zip(found.items(), svgs.values(), strict=True)
    return Section(
        name="ablation",
        title=f"Ablations: {base} with one setting changed at a time",
        body=[
            tag("p", READING, told_kl(study.summary["kl_column"]), class_="soft"),
            *notes_of(notes),
            *(part for (key, rows), svg in parts for part in _part(key, rows, svg, base)),
        ],
        tables={"ablation": _frame(found)},
        figures=svgs,
        summary={"base": base, "settings": found, "notes": notes},
    )


def _configs(study: Study) -> dict[str, Mapping[str, Any]]:
    """The config of every arm whose counted runs agree on it."""
    arms = {arm: [run for run in runs if run.config] for arm, runs in counted_runs(study).items()}
    return {arm: runs[0].config for arm, runs in arms.items() if runs and not _disagree(runs)}


def _disagree(runs: Sequence[RunLog]) -> list[str]:
    """Settings in which the seeds of an arm differ, what they start from aside."""
    return sorted({key for run in runs for key in changes(runs[0].config, run.config)} - STARTS)


def changes(before: Any, now: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """By dotted key: both values, where they differ; a table of another `type` is one value."""
    tables = isinstance(before, Mapping) and isinstance(now, Mapping)
    if not tables or before.get("type") != now.get("type"):
        return {} if before == now else {path: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*before, *now]):
        if path or key not in UNCOMPARED:
            inside = f"{path}.{key}".lstrip(".")
            found |= changes(before.get(key), now.get(key), inside)
    return found


def _base(configs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The arm with most others one setting away; of equals a built-in one, then the first."""
    near = {
        arm: sum(len(ablation.values) - 1 for ablation in _ablations(configs, arm))
        for arm in configs
    }
    best = max(near.values(), default=0)
    ties = [arm for arm, count in near.items() if count == best]
    return min(ties, key=lambda arm: arm not in ARMS) if best else None


def _ablations(configs: Mapping[str, Mapping[str, Any]], base: str) -> list[Ablation]:
    """What one changed setting makes of the base, by setting, in the order of the arms."""
    groups: dict[str, dict[str, Any]] = {}
    for arm, config in configs.items():
        found = changes(configs[base], config)
        if len(found) == 1 and not found.keys() & STARTS:
            ((key, (own, value)),) = found.items()
            groups.setdefault(key, {base: own})[arm] = value
    return [Ablation(key, _in_order(values)) for key, values in groups.items()]


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers ascending; anything else as it comes, the base first."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values.values())
    return dict(sorted(values.items(), key=lambda item: item[1])) if numbers else dict(values)


def _tunes(ablation: Ablation) -> bool:
    """Whether it does more than switch a loop on or off."""
    types = {v.get("type") for v in ablation.values.values() if isinstance(v, Mapping)}
    return ablation.key not in ("fast", "slow") or len(types - {"none"}) > 1


def _numbers(study: Study, ablation: Ablation, base: str) -> list[Json]:
    """One row per value."""
    arms = study.summary["arms"]
    reference = arms[base]["final_reward"]["seeds"]
    return [
        {
            "arm": arm,
            "value": value,
            "label": ablation.labels[arm],
            "reward": arms[arm]["final_reward"],
            "difference": _difference(arms[arm]["final_reward"]["seeds"], reference),
            "seed_reward": arms[arm]["final_seed_reward"],
            "kl": arms[arm][f"final_{study.summary['kl_column'] or 'kl'}"],
            "seconds": arms[arm]["seconds"]["training"],
            "slow_rollouts": arms[arm]["used"].get("slow_rollouts"),
            "fast_rollouts": arms[arm]["used"].get("fast_rollouts"),
        }
        for arm, value in ablation.values.items()
    ]


def _difference(mine: Mapping[str, float | None], reference: Mapping[str, float | None]) -> Json:
    """Over the seeds that both have."""
    pairs = {int(seed): (value, reference.get(seed)) for seed, value in mine.items()}
    known = {s: a - b for s, (a, b) in pairs.items() if a is not None and b is not None}
    return statistic(known, DIFFERENCE)


def _seeds(study: Study, found: Mapping[str, Sequence[Json]]) -> Iterator[str]:
    """What the rewards of the arms shown lack."""
    rows = {row["arm"]: row for rows in found.values() for row in rows}
    for arm, row in rows.items():
        summary = study.summary["arms"][arm]
        if summary["partial"]:
            step = number_text(summary["steps"]["mean"], 0)
            yield f"{arm} has not ended: counted as it stands, at slow step {step} in the mean."
        lost = [str(seed) for seed, value in row["reward"]["seeds"].items() if value is None]
        if lost:
            yield f"{arm}: no finite last reward of seed {', '.join(lost)}, left out."
        if row["difference"]["n"] < len(row["reward"]["seeds"]) - len(lost):
            yield f"{arm} has seeds that the base arm lacks; minus base is over the others."
    yield from single_seeds({arm: row["reward"]["n"] for arm, row in rows.items()})


def _notes(study: Study, configs: Mapping[str, Mapping[str, Any]], base: str) -> Iterator[str]:
    """Arms that no table holds, and why."""
    counted = counted_runs(study)
    for arm in study.summary["arms"]:
        if arm not in counted:
            yield f"{arm} was not evaluated yet and is left out."
        elif arm not in configs:
            keys = _disagree([run for run in counted[arm] if run.config])
            why = f"its seeds differ in {', '.join(keys)}" if keys else "its config is missing"
            yield f"{arm} is left out: {why}."
        elif len(several := changes(configs[base], configs[arm])) > 1:
            yield f"{arm} is in no table: it differs from {base} in {', '.join(several)}."


def _part(key: str, rows: Sequence[Json], svg: str, base: str) -> Iterator[Markup]:
    yield tag("h3", tag("code", key))
    caption = f"Reward at the end by {key}."
    yield shown_figure(_described(svg, _alternative(key, rows)), caption, "half")
    yield table(HEADERS, [_row(row, base) for row in rows], [row["arm"] == base for row in rows])


def _described(svg: str, text: str) -> str:
    """A figure with a text for those who cannot see it."""
    return svg.replace("<svg ", f'<svg role="img" aria-label="{esc(text)}" ', 1)


def _alternative(key: str, rows: Sequence[Json]) -> str:
    told = (
        f"{row['label']}: {number_text(row['reward']['mean'])} under the judged context, "
        f"{number_text(row['seed_reward']['mean'])} under the seed context"
        for row in rows
    )
    return f"Reward at the end by {key}. {'; '.join(told)}."


def _row(row: Json, base: str) -> list[Any]:
    is_base = row["arm"] == base
    own = tag("div", f"{base} (base)" if is_base else row["arm"], class_="soft span")
    return [
        join(row["label"], own),
        row["reward"]["n"],
        _estimate(row["reward"]),
        "0 (reference)" if is_base else _estimate(row["difference"]),
        _estimate(row["seed_reward"]),
        _rollouts(row),
        estimate_cell(row["kl"]),
        number_text(row["seconds"]["mean"], 0),
    ]


def _estimate(found: Json) -> Markup:
    return Markup("undefined") if found["mean"] is None else estimate_cell(found)


def _rollouts(row: Json) -> Markup:
    slow, fast = row["slow_rollouts"] or 0, row["fast_rollouts"] or 0
    below = tag("div", f"fast {number_text(fast, 0)}", class_="soft span")
    return join(number_text(slow + fast, 0), below)


def _frame(found: Mapping[str, Sequence[Json]]) -> pd.DataFrame:
    """One row per setting, value and seed."""
    columns = ("key", "value", "arm", "seed", "reward", "seed_reward", "kl")
    rows = [
        (key, row["label"], row["arm"], int(seed), reward,
         row["seed_reward"]["seeds"].get(seed), row["kl"]["seeds"].get(seed))
        for key, rows in found.items()
        for row in rows
        for seed, reward in row["reward"]["seeds"].items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _draw(key: str, rows: Sequence[Json], base: str) -> Figure:
    figure = Figure(figsize=(max(4.6, 0.8 * len(rows) + 1.4), 3.1), layout="constrained")
    axis = figure.subplots()
    for side, (name, (_, style)) in zip((-1, 1), SERIES.items(), strict=True):
        for place, row in enumerate(rows):
            _draw_value(axis, place, side, row[name], style)
    mean = next(row["reward"]["mean"] for row in rows if row["arm"] == base)
    if mean is not None:
        axis.axhline(mean, color=INK, lw=1.3, ls=":", zorder=1)
    labels = [plain(row["label"]) + "\n(base)" * (row["arm"] == base) for row in rows]
    axis.set_xticks(range(len(rows)), labels)
    axis.set(xlim=(-0.6, len(rows) - 0.4), ylim=(-0.03, 1.05))
    axis.set(xlabel=plain(key), ylabel="reward at the end (mean@k)")
    axis.grid(visible=False, axis="x")
    handles: list[Any] = [
        Line2D([], [], lw=0, ms=7, label=label, **style) for label, style in SERIES.values()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _draw_value(axis: Axes, place: int, side: int, found: Json, style: Mapping[str, Any]) -> None:
    """The mean, its interval (two seeds have none worth drawing), and the single seeds beside."""
    if found["mean"] is None:
        return
    middle, beside = place + 0.1 * side, place + 0.18 * side
    if found["interval"] is not None and found["n"] > 2:
        axis.plot([middle, middle], found["interval"], color=style["color"], lw=1.6)
    seeds = [value for value in found["seeds"].values() if value is not None]
    axis.plot([beside] * len(seeds), seeds, lw=0, ms=3, alpha=0.7, **style)
    axis.plot([middle], [found["mean"]], lw=0, ms=7, zorder=3, **style)
