"""One self-contained HTML page about a study: no script, no network, everything escaped."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fst_core.report.contexts import run_contexts
from fst_core.report.figures import inline
from fst_core.report.headline import LABELS, UNITS, challenger, findings, headline
from fst_core.report.markup import Markup, details, join, number_text, table, tag
from fst_core.report.runs import RunLog
from fst_core.report.style import CSS
from fst_core.report.tables import settings_by_arm

Json = Mapping[str, Any]

SAMPLES_SHOWN = 8
TEXT_SHOWN_CHARACTERS = 4000
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
CAPTIONS = {
    "reward_by_step": "Reward against slow steps. Left: the context each arm is judged by; right: "
    "every arm under the seed context, which shows what went into the weights. Thin: seeds; bold: "
    "their mean; thin and dashed: runs that are not counted.",
    "reward_by_rollouts": "Reward against the rollouts training used in both loops.",
    "reward_by_kl": "Reward against the distance from the base model, under the judged context.",
    "reward_by_seconds": "Reward against training wall time; evaluation is left out.",
    "populations": "Anchor mean of every context slot at each cycle. Lines join a context to "
    "itself or to its parents in the cycle before. Anchors change each cycle.",
    "seconds": "Where the time went, mean over the runs of an arm.",
}
WIDE = frozenset({"reward_by_step", "populations"})


def page(
    runs: Sequence[RunLog],
    summary: Json,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, str],
) -> str:
    """The whole page as text."""
    title = f"Fast-slow training: {summary['experiment'] or 'no runs'}"
    body = tag(
        "body",
        tag("h1", title),
        tag("p", summary["why"] or "No reason for choosing this task was given.", class_="soft"),
        tag("p", headline(summary), class_="lead"),
        *_sections(runs, summary, tables, figures),
    )
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("title", title),
        tag("style", Markup(CSS)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _sections(
    runs: Sequence[RunLog],
    summary: Json,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, str],
) -> Iterator[Markup]:
    yield _findings(summary)
    yield from _notes(runs)
    yield join(tag("h2", "Summary"), *_summary_tables(summary))
    drawn = (_figure(name, svg) for name, svg in figures.items())
    yield join(tag("h2", "Figures"), tag("div", *drawn, class_="figures"))
    yield join(tag("h2", "Rewards by seed"), *_rewards(summary))
    yield join(tag("h2", "Contexts"), *_contexts(runs))
    yield join(tag("h2", "Sample rollouts"), *_samples(runs))
    yield join(tag("h2", "Settings"), _settings(tables["settings"], runs))
    yield join(tag("h2", "Provenance"), _provenance(runs))


def _findings(summary: Json) -> Markup:
    arm = challenger(summary)
    if arm is None:
        return Markup()
    return tag("ul", *(tag("li", sentence) for sentence in findings(summary, arm)))


def _notes(runs: Sequence[RunLog]) -> Iterator[Markup]:
    for run in runs:
        if run.note:
            yield tag("p", tag("strong", run.id), f": {run.note}", class_="note")


def with_interval(found: Json, digits: int = 3) -> str:
    """ "0.812 [0.700, 0.924]"; with two seeds "0.812 (0.800, 0.824)", for a t-interval over two
    is twelve standard errors wide and says nothing; the mean alone where there is one.
    """
    mean = number_text(found["mean"], digits)
    if found["interval"] is None:
        return mean
    values = [value for value in found["seeds"].values() if value is not None]
    if len(values) == 2:
        return f"{mean} ({', '.join(number_text(value, digits) for value in values)})"
    low, high = (number_text(bound, digits) for bound in found["interval"])
    return f"{mean} [{low}, {high}]"


def _summary_tables(summary: Json) -> Iterator[Markup]:
    note = (
        "Means over the runs counted; behind them the two seeds' own values, or from three seeds "
        "on the 95% t-interval over seeds."
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
            "fast rollouts", "evaluation rollouts", "slow tokens", "fast tokens", "fast s",
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
    return [name, count, arm["context"], *(_interval_cell(arm[key]) for key in names)]


def _interval_cell(found: Json) -> Markup:
    mean, *bounds = with_interval(found).split(" ", 1)
    return join(mean, *(tag("div", bound, class_="soft span") for bound in bounds))


def _cost_row(name: str, arm: Json) -> list[Any]:
    to_peak = arm["to_rl_peak"] or {"mean_curve": None, "defined": False}
    point = to_peak["mean_curve"]
    missing = "not reached" if to_peak["defined"] else "–"
    reached = [number_text(point[k], 0) if point else missing for k in ("step", "rollouts")]
    used = ("slow_rollouts", "fast_rollouts", "evaluation_rollouts", "slow_tokens", "fast_tokens")
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
            bounds = found["interval"] and [number_text(b, digits) for b in found["interval"]]
            verdict = {True: "better", False: "worse", None: "equal or unknown"}[found["better"]]
            values = [number_text(found[key], digits) for key in ("arm", "rl", "difference")]
            span = f"{bounds[0]} to {bounds[1]}" if bounds else "–"
            sure = "yes" if found["certain"] else "no"
            rows.append([arm, f"{LABELS[metric]} ({unit})", *values, span, verdict, sure])
    headers = ("arm", "measure", "arm", "rl", "difference", "95% interval", "", "beyond seed noise")
    return table(headers, rows)


def _figure(name: str, svg: str) -> Markup:
    width = "wide" if name in WIDE else "half"
    return tag("figure", Markup(inline(svg)), tag("figcaption", CAPTIONS[name]), class_=width)


def _rewards(summary: Json) -> Iterator[Markup]:
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
            yield details(f"{name}: {len(rows)} evaluations", table(headers, rows))


def _contexts(runs: Sequence[RunLog]) -> Iterator[Markup]:
    evolved = [run for run in runs if any(run.of("fast"))]
    if not evolved:
        yield tag("p", "No run evolved contexts.", class_="soft")
    for run in evolved:
        yield run_contexts(run)


def _samples(runs: Sequence[RunLog]) -> Iterator[Markup]:
    shown = {run.id: _first_and_last(list(run.of("rollouts"))) for run in runs}
    if not any(shown.values()):
        yield tag("p", "No rollouts were logged.", class_="soft")
    for name, events in shown.items():
        if events:
            yield details(f"{name}: first and last of each kind", *map(_sample, events))


def _first_and_last(events: Sequence[Json]) -> list[Json]:
    kept: dict[int, Json] = {}
    for loop in dict.fromkeys(event["loop"] for event in events):
        mine = [event for event in events if event["loop"] == loop]
        kept |= {event["seq"]: event for event in (mine[0], mine[-1])}
    return list(kept.values())


def _sample(event: Json) -> Markup:
    rows = [_rollout_row(rollout) for rollout in event["sample"][:SAMPLES_SHOWN]]
    headers = ("question", "context", "reward", "text", "feedback")
    title = tag("h3", f"{event['loop']}, step {event['step']}")
    return join(title, table(headers, rows))


def _rollout_row(rollout: Json) -> list[Any]:
    context = rollout.get("context_id", rollout.get("context", ""))
    text = str(rollout["text"])
    beyond = len(text) - TEXT_SHOWN_CHARACTERS
    if beyond > 0:
        text = f"{text[:TEXT_SHOWN_CHARACTERS]}\n[{beyond} more characters]"
    return [
        tag("pre", str(rollout.get("question") or rollout["problem"])),
        tag("code", context),
        number_text(rollout["reward"]),
        tag("pre", text),
        tag("ul", *(tag("li", line) for line in rollout.get("feedback", ()))),
    ]


def _settings(frame: pd.DataFrame, runs: Sequence[RunLog]) -> Markup:
    shown = settings_by_arm(frame, runs)
    rows = [[tag("code", row[0]), *row[2:]] for row in shown.itertuples(index=False, name=None)]
    differs = shown["differs"].tolist()
    note = (
        f"All resolved settings; the {sum(differs)} that differ between runs are marked "
        "(arm and seed differ by construction). A dash: the arm has no such setting."
    )
    headers = ["setting", *shown.columns[2:]]
    return join(tag("p", note, class_="soft"), table(headers, rows, marked=differs))


def _provenance(runs: Sequence[RunLog]) -> Markup:
    rows = []
    for run in runs:
        started = next(run.of("run"), {})
        rows.append(
            [
                run.id,
                "ended" if run.finished else "not ended",
                tag("code", started.get("git") or "unknown"),
                _pairs(started.get("problems", {})),
                _pairs(started.get("data", {})),
                _pairs(started.get("versions", {})),
            ]
        )
    return table(("run", "state", "git", "problems", "data files", "versions"), rows)


def _pairs(values: Json | None) -> Markup:
    lines = (
        tag("div", f"{key} ", tag("code", str(value)[:16])) for key, value in (values or {}).items()
    )
    return join(*lines) or join("–")
