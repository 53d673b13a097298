"""What a study says, in sentences computed from its summary: where an arm beats rl, where not."""

from collections.abc import Mapping, Sequence
from typing import Any

from fst_core.counting import counted
from fst_core.report.comparison import BASELINE, KL_COLUMNS
from fst_core.report.markup import number_text
from fst_core.report.statistics import FEWEST_SEEDS, without_spread
from fst_core.report.subtraction import Subtraction, subtraction

Json = Mapping[str, Any]

MOST_DIGITS = 6

LABELS = {
    "rollouts_to_peak": "rollouts to rl's peak reward",
    "final_kl": "KL to the base model at the end (k1, estimated from samples)",
    "final_kl_exact": "KL to the base model at the end (exact)",
    "final_reward": "final reward",
    "final_seed_reward": "final reward under the seed context",
    "training_seconds": "training wall time",
}
UNITS = {
    "rollouts_to_peak": ("training rollouts", 0),
    "final_kl": ("nats per token", 3),
    "final_kl_exact": ("nats per token", 3),
    "final_reward": ("mean@k", 3),
    "final_seed_reward": ("mean@k", 3),
    "training_seconds": ("s", 1),
}


def challenger(summary: Json) -> str | None:
    """The arm the headline speaks of, among those that are compared with rl."""
    return preferred_challenger(list(summary["comparisons"]))


def preferred_challenger(arms: Sequence[str]) -> str | None:
    """fst, else the first arm that does something, else the first; None of none."""
    acting = [name for name in arms if name != "base"] or list(arms)
    return "fst" if "fst" in arms else next(iter(acting), None)


def headline(summary: Json) -> str:
    """One paragraph: where the challenger beats rl, where that is unsure, and where it does not."""
    arm = challenger(summary)
    if arm is None:
        return _without_comparison(summary)
    compared = summary["comparisons"][arm]
    if not any(found["shared"] for found in compared.values()):
        return nothing_shared(arm)
    kinds = ("clear", "unsure", "worse", "behind", "equal", "none")
    groups: dict[str, list[str]] = {kind: [] for kind in kinds}
    for metric, found in compared.items():
        kind = _group(metric, found, summary)
        groups[kind].append(_with_numbers(arm, metric, found, kind))
    sentences = [
        _not_ended(summary, arm),
        _sentence(f"{arm} beats rl, beyond seed noise, on", groups["clear"]),
        _sentence(f"{arm} is ahead of rl, but not certainly, on", groups["unsure"]),
        _sentence(f"rl beats {arm}, beyond seed noise, on", groups["worse"]),
        _sentence(f"rl is ahead of {arm}, but not certainly, on", groups["behind"]),
        _sentence(f"{arm} and rl are equal on", groups["equal"]),
        _sentence("Nothing can be said, for want of data, on", groups["none"]),
        _drift_of_less_reward(arm, compared),
        _basis(compared),
        _highest(summary, arm),
    ]
    return " ".join(filter(None, sentences))


def _not_ended(summary: Json, arm: str) -> str:
    """That the end of an arm is not one yet."""
    going = [name for name in (BASELINE, arm) if summary["arms"][name]["partial"]]
    if not going:
        return ""
    return (
        f"No run of {' or '.join(going)} has ended: the latest evaluations stand for the last "
        "ones, so nothing is decided."
    )


def _with_numbers(arm: str, metric: str, found: Json, kind: str) -> str:
    """A compared number with the values of the arm that leads and of its opponent."""
    unit, digits = UNITS[metric]
    told = subtraction(found["arm"], found["rl"], found["difference"], digits)
    if kind == "none":
        return LABELS[metric]
    if kind == "equal":
        return f"{LABELS[metric]}, both {told.minuend} {unit}"
    if found["arm"] is None:
        return f"{LABELS[metric]}, {told.subtrahend} {unit}, and {arm} never gets there"
    if found["rl"] is None:
        return f"{LABELS[metric]}, {told.minuend} {unit}, and {BASELINE} never gets there"
    if found["better"]:
        return f"{LABELS[metric]}, {told.minuend} against {BASELINE}'s {told.subtrahend} {unit}"
    return f"{LABELS[metric]}, {told.subtrahend} against {arm}'s {told.minuend} {unit}"


def nothing_shared(arm: str) -> str:
    """That two arms have no seed in common."""
    return (
        f"{arm} and rl have no seed in common, so nothing is compared: differences are taken seed "
        "by seed. Run both with the same seeds."
    )


def _drift_of_less_reward(arm: str, compared: Mapping[str, Json]) -> str:
    """That the lower KL is the one of less reward, where it is: what learns less drifts less."""
    kl = next((found for name, found in compared.items() if name.startswith("final_kl")), None)
    reward = compared.get("final_reward")
    if kl is None or reward is None or kl["better"] is None or reward["better"] is None:
        return ""
    if kl["better"] == reward["better"]:
        return ""
    nearer = arm if kl["better"] else BASELINE
    return (
        f"{nearer} has the lower KL at the lower reward, which is no merit by itself: what learns "
        "less drifts less (see KL at matched reward)."
    )


def _basis(compared: Mapping[str, Json]) -> str:
    """How many pairs of seeds this stands on, and that nothing is certain with too few."""
    most = max((found["pairs"] for found in compared.values()), default=0)
    if most >= FEWEST_SEEDS:
        return f"Seed noise is told by {most} pairs of seeds, on the same problems throughout."
    if most == 0:
        return ""
    pairs = {LABELS[metric]: found["pairs"] for metric, found in compared.items()}
    fewer = ", ".join(f"{label}: {n}" for label, n in pairs.items() if 0 < n < most)
    return (
        f"All of this stands on {counted(most, 'pair')} of seeds{f' ({fewer})' * bool(fewer)}, "
        f"which says little; from {FEWEST_SEEDS} pairs on there are intervals."
    )


def _highest(summary: Json, arm: str) -> str:
    """Which arm ends with the highest reward, where it is none of the two that are compared."""
    rewards = {
        name: found["final_reward"]["mean"]
        for name, found in summary["arms"].items()
        if found["counted"] and found["final_reward"]["mean"] is not None
    }
    best = max(rewards, key=rewards.__getitem__, default=arm)
    if best in (arm, BASELINE) or rewards[best] in (rewards.get(arm), rewards.get(BASELINE)):
        return ""
    return f"The highest final reward is {best}'s, {number_text(rewards[best])} mean@k."


def _without_comparison(summary: Json) -> str:
    arms = [name for name, arm in summary["arms"].items() if arm["counted"]]
    if not arms:
        return "No run has an evaluation yet, so there is nothing to compare."
    if BASELINE not in arms:
        return f"Nothing is compared: there is no evaluated rl run (evaluated: {', '.join(arms)})."
    return "Nothing is compared: rl is the only arm that learns and has evaluations."


def _sentence(start: str, labels: list[str]) -> str:
    return f"{start}: {'; '.join(labels)}." if labels else ""


def _group(metric: str, found: Json, summary: Json) -> str:
    if metric == "rollouts_to_peak" and not rl_learned(summary):
        return "none"
    if found["better"] is None:
        return "none" if found["difference"] is None else "equal"
    if not found["better"]:
        return "worse" if found["certain"] else "behind"
    return "clear" if found["certain"] else "unsure"


def rl_learned(summary: Json) -> bool:
    """Whether the rl arm's mean curve ever rose above its first evaluation."""
    peak = summary["rl_peak"]
    return peak is not None and peak["step"] > peak["start"]


def to_peak_text(arm: Json, column: str) -> str:
    """What an arm's mean curve had used, in whole steps or rollouts, when it reached rl's peak.

    "no peak" where rl never rose above its first evaluation, – where there is no rl.
    """
    to_peak = arm["to_rl_peak"]
    if to_peak is None:
        return "–"
    if not to_peak["defined"]:
        return "no peak"
    point = to_peak["mean_curve"]
    return number_text(point[column], 0) if point else "not reached"


def findings(summary: Json, arm: str) -> list[str]:
    """One sentence per compared number: both values, the difference, and how sure it is."""
    compared = summary["comparisons"][arm]
    sentences = [_peak_finding(summary, arm)]
    sentences += [
        _finding(arm, metric, found)
        for metric, found in compared.items()
        if metric != "rollouts_to_peak" and found["difference"] is not None
    ]
    return [*sentences, *_unpaired(arm, compared)]


def _unpaired(arm: str, compared: Mapping[str, Json]) -> list[str]:
    """Which seeds the comparison leaves out, where the arms were not run with the same."""
    found = next(iter(compared.values()))
    if not found["unpaired"]:
        return []
    if not found["shared"]:
        return [nothing_shared(arm)]
    return [
        f"{arm} and rl have {counted(found['shared'], 'seed')} in common, over which all of this "
        f"is told but the mean curves; only one of the two was run with seed "
        f"{', '.join(found['unpaired'])}."
    ]


def _finding(arm: str, metric: str, found: Json) -> str:
    unit, digits = UNITS[metric]
    told = subtraction(found["arm"], found["rl"], found["difference"], digits)
    label = f"{LABELS[metric][0].upper()}{LABELS[metric][1:]}"
    values = f"{arm} {told.minuend} against {BASELINE}'s {told.subtrahend} {unit}"
    return f"{label}: {values}{_sureness(found, told)}."


def _sureness(found: Json, told: Subtraction) -> str:
    digits = told.digits
    difference = f"difference {'' if told.exact else 'seed by seed '}{told.difference}"
    if found["interval"] is None:
        if found["pairs"] >= FEWEST_SEEDS:
            both = f"{found['pairs']} of {found['shared']} seeds"
            return f" ({difference}, no interval: only {both} have both values)"
        pairs = counted(found["pairs"], "pair")
        start = f"{difference}, no interval: " if found["pairs"] else "no interval: "
        verb = "is" if found["pairs"] == 1 else "are"
        return f" ({start}there {verb} {pairs} of seeds with both values, and it takes three)"
    if found["pairs"] < FEWEST_SEEDS:
        seeds = _by_seed(found, digits)
        return f" ({difference}; by seed {seeds}: two seeds, too few for an interval)"
    if without_spread(found["interval"]):
        return f" ({difference}, the same in all {found['pairs']} seeds: no interval)"
    low, high = (_apart_from_zero(bound, digits, found["certain"]) for bound in found["interval"])
    zero = "leaves out zero" if found["certain"] else "includes zero"
    return (
        f" ({difference}, 95% interval over {found['pairs']} seeds {low} to {high}, which {zero})"
    )


def _by_seed(found: Json, digits: int) -> str:
    """The differences seed by seed, in order."""
    known = (value for value in found["seeds"].values() if value is not None)
    return " and ".join(number_text(value, digits) for value in known)


def _apart_from_zero(bound: float, digits: int, certain: bool) -> str:
    """A bound, with so many digits more that it does not read as a zero that is left out."""
    while certain and round(bound, digits) == 0 and digits < MOST_DIGITS:
        digits += 1
    return number_text(bound, digits)


def _peak_finding(summary: Json, arm: str) -> str:
    peak = summary["rl_peak"]
    if not rl_learned(summary):
        return (
            f"{BASELINE} never rose above its first evaluation (reward "
            f"{number_text(peak['reward'])}), so it has no peak for {arm} to reach."
        )
    to_peak = summary["arms"][arm]["to_rl_peak"]
    start = f"rl's mean curve peaks at {number_text(peak['reward'])} (step {peak['step']})"
    point, rl = to_peak["mean_curve"], summary["arms"][BASELINE]["to_rl_peak"]["mean_curve"]
    kl = summary["kl_column"] or "kl"
    seeds = counted(len(to_peak["seeds"]), "seed")
    seeds = f"{to_peak['reached']} of {seeds} reached it on their own"
    if point is None:
        return f"{start}; {arm}'s mean curve never reaches it ({seeds})."
    found = summary["comparisons"][arm]["rollouts_to_peak"]
    sure = _sureness(found, subtraction(point["rollouts"], rl["rollouts"], found["difference"], 0))
    return (
        f"{start}, after {number_text(rl['rollouts'], 0)} rollouts; {arm}'s mean curve is there at "
        f"step {point['step']}, after {number_text(point['rollouts'], 0)} rollouts"
        f"{_ratio(rl['rollouts'], point['rollouts'])}{sure}, at KL {number_text(point[kl])} "
        f"against rl's {number_text(rl[kl])} nats per token ({KL_COLUMNS[kl]}), "
        f"{number_text(point['seconds'], 1)} s of training against rl's "
        f"{number_text(rl['seconds'], 1)} s; {seeds}."
    )


def _ratio(rl: float, mine: float) -> str:
    if not mine or not rl:
        return ""
    return f", {rl / mine:.2f} times fewer" if mine <= rl else f", {mine / rl:.2f} times more"
