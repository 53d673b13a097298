"""The paper's figures (arXiv 2605.12484) beside the study's own: other model, other tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from fst_core.counting import counted
from fst_core.report.arms import counted_runs, learning_runs
from fst_core.report.asymptote import fits_by_step
from fst_core.report.comparison import BASELINE
from fst_core.report.divergence import kl_saved, saved_numbers
from fst_core.report.efficiency import mean_curve_costs, no_target, times_less
from fst_core.report.escape import THRESHOLD, leaving_by_arm
from fst_core.report.headline import preferred_challenger
from fst_core.report.markup import number_text, table, tag
from fst_core.report.quadrants import cells_and_effects
from fst_core.report.section import Section, Study

READING = (
    "What the paper reports for the Qwen3-8B family on CodeIO, Math (Polaris), HoVer-hard and a "
    "star-graph search, beside this study: another model and other tasks, so neither number "
    "confirms or refutes the other. The paper gives no interval over seeds; those of this "
    "study are in the sections above."
)


@dataclass(frozen=True, slots=True)
class Reported:
    """One quantity of the paper."""

    name: str
    told: str
    """Its value or values, as reported."""
    ours: Callable[[Study, str], str]
    """The study's own, of the given arm, in words where it has no value."""


def section(study: Study) -> Section | None:
    """The paper's figures and the study's; None where no arm can be set beside rl's."""
    arms = learning_runs(study)  # an arm that learns nothing has none of these figures
    arm = preferred_challenger([name for name in arms if name != BASELINE])
    if arm is None or BASELINE not in arms:
        return None
    rows = [(item.name, item.told, item.ours(study, arm)) for item in REPORTED]
    return Section(
        name="paper",
        title="Beside the paper",
        body=[
            tag("p", READING, class_="soft"),
            table(("", "paper (other model, other tasks)", f"this study, {arm} against rl"), rows),
        ],
        tables={"paper": pd.DataFrame(rows, columns=pd.Index(["quantity", "paper", "study"]))},
        summary={"arm": arm, "rows": [list(row) for row in rows]},
    )


def _steps(study: Study, arm: str) -> str:
    if reason := no_target(study):
        return f"undefined: {reason}"
    costs = mean_curve_costs(study)
    if costs[arm]["step"] == 0:
        return "reached before any step"
    ratio = times_less(costs, arm, "step")
    if ratio is None:
        return "not reached"
    fewer = ratio >= 1
    times = f"{number_text(ratio if fewer else 1 / ratio, 1)} times {'fewer' if fewer else 'more'}"
    return f"{times}, on the mean curves"


def _saved(study: Study, arm: str) -> str:
    column = study.summary["kl_column"]
    if column is None or not any(run.trains for run in counted_runs(study)[arm]):
        return "undefined: it takes the KL of two arms that train weights"
    found = saved_numbers(kl_saved(study, arm, BASELINE, column))
    if found["saved"]["mean"] is None:
        reasons = " ".join(dict.fromkeys(found["reasons"].values()))
        return f"undefined: {reasons or 'the arms share no seed'}"
    return f"{100 * found['saved']['mean']:.0f}% (mean over {counted(found['saved']['n'], 'seed')})"


def _asymptotes(study: Study, arm: str) -> str:
    fits = fits_by_step(study)
    shown = {name: fits[name] for name in (arm, BASELINE) if name in fits}
    return ", ".join(
        f"{name} {number_text(fit.A) if fit.identifiable else 'not identifiable'}"
        for name, fit in shown.items()
    )


def _quadrants(study: Study, arm: str) -> str:
    cells = cells_and_effects(study).get(arm, {}).get("cells", {})
    order = ("base x seed", "trained x seed", "base x best", "trained x best")
    means = [cells.get(name, {}).get("mean") for name in order]
    return " / ".join("not measured" if m is None else f"{100 * m:.1f}" for m in means)


def _escape(study: Study, arm: str) -> str:
    found = leaving_by_arm(study)
    starts = [found[name]["start"] for name in (arm, BASELINE)]
    if not any(start is not None and start < THRESHOLD for start in starts):
        return "neither starts at zero"
    points = {name: found[name]["mean_curve"] for name in (arm, BASELINE)}
    return " against ".join(
        f"{name} {'at step ' + number_text(point['step'], 0) if point else 'not left'}"
        for name, point in points.items()
    )


REPORTED: Sequence[Reported] = (
    Reported(
        "steps to rl's running peak",
        "3.0 (CodeIO), 1.4 (Math), 3.0 (HoVer-hard) times fewer",
        _steps,
    ),
    Reported("KL to base saved at matched reward", "up to 70%", _saved),
    Reported("asymptote A", "higher than rl's on CodeIO, Math and HoVer-hard", _asymptotes),
    Reported(
        "reward in %: base / weights only / contexts only / both",
        "HoVer-hard 2.0 / 11.6 / 10.6 / 21.2; CodeIO – / 25.1 / 34.5 / 43.3; "
        "Math 20.0 to 47.2, nearly all by weights",
        _quadrants,
    ),
    Reported(
        "step at which reward leaves zero", "about 50 against about 300 (star graph)", _escape
    ),
)
