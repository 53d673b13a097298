"""Sentences of the summary: bounds that read as what they say."""

from typing import Any

import pytest

from fst_core.report.headline import findings, headline


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """A study whose arm differs from rl in KL alone."""
    both = {"shared": 3, "unpaired": []}
    nothing = {"arm": None, "rl": None, "difference": None, "interval": None, "pairs": 0, **both}
    curve = {"rollouts": 10, "step": 1, "kl": 0.0, "reward": 0.5}
    to_peak = {"mean_curve": curve, "seeds": [0], "reached": 1}
    return {
        "rl_peak": {"reward": 0.0, "step": 0, "start": 0},
        "arms": {
            arm: {"to_rl_peak": to_peak, "counted": [], "partial": False} for arm in ("fst", "rl")
        },
        "kl_column": "kl",
        "comparisons": {"fst": {"final_kl": {**both, **found}, "rollouts_to_peak": nothing}},
    }


@pytest.mark.parametrize(
    ("interval", "certain", "told"),
    [
        ([-1.39, -0.0004], True, "-1.390 to -0.0004, which leaves out zero"),
        ([-1.39, 0.0004], False, "-1.390 to 0.000, which includes zero"),
        ([0.002, 0.4], True, "0.002 to 0.400, which leaves out zero"),
    ],
)
def test_a_bound_that_is_not_zero_does_not_read_as_zero(
    interval: list[float], certain: bool, told: str
) -> None:
    found = {"arm": 0.1, "rl": 0.8, "difference": -0.7, "pairs": 3}
    (_, sentence) = findings(summary({**found, "interval": interval, "certain": certain}), "fst")
    assert told in sentence


@pytest.mark.parametrize(
    ("pairs", "told"), [(1, "there is 1 pair of seeds"), (0, "there are 0 pairs of seeds")]
)
def test_what_an_interval_takes_is_said(pairs: int, told: str) -> None:
    found = {"arm": 0.1, "rl": 0.8, "difference": -0.7, "pairs": pairs, "interval": None}
    (_, sentence) = findings(summary(found), "fst")
    assert told in sentence and "it takes three" in sentence


def test_two_seeds_are_told_by_their_differences_and_never_as_an_interval() -> None:
    found = {
        **{"arm": 0.75, "rl": 0.0, "difference": 0.75, "pairs": 2, "better": True},
        **{"interval": [0.75, 0.75], "certain": False, "seeds": {"0": 0.7, "1": 0.8}},
    }
    study = summary(found)
    study["comparisons"]["fst"].pop("rollouts_to_peak")
    (_, sentence) = findings(study, "fst")
    assert "by seed 0.700 and 0.800: two seeds, too few for an interval" in sentence
    assert "95%" not in sentence and "leaves out zero" not in sentence
    assert "stands on 2 pairs of seeds, which says little" in headline(study)


def test_what_stands_on_fewer_pairs_than_the_rest_is_said() -> None:
    found = {"arm": 0.75, "rl": 0.0, "difference": 0.75, "interval": None, "better": True}
    study = summary({})
    study["rl_peak"] = {"reward": 0.5, "step": 4, "start": 0}
    found |= {"certain": False, "shared": 2, "unpaired": []}
    study["comparisons"]["fst"] = {
        "rollouts_to_peak": {**found, "pairs": 1},
        "final_reward": {**found, "pairs": 2},
    }
    told = "stands on 2 pairs of seeds (rollouts to rl's peak reward: 1), which says little"
    assert told in headline(study)


@pytest.mark.parametrize(
    ("espl", "told"), [(0.9, "The highest final reward is espl's, 0.900 mean@k."), (0.7, "")]
)
def test_an_arm_that_ends_above_both_is_named(espl: float, told: str) -> None:
    study = summary({"arm": 0.8, "rl": 0.7, "difference": 0.1, "pairs": 3, "interval": None})
    study["comparisons"]["fst"]["final_kl"] |= {"better": True, "certain": False}
    for name, reward in (("fst", 0.8), ("rl", 0.7), ("espl", espl)):
        arm = study["arms"].get(name, study["arms"]["rl"])
        study["arms"][name] = {**arm, "counted": [0], "final_reward": {"mean": reward}}
    said = headline(study)
    assert told in said and ("highest" in said) is bool(told)


def test_differences_without_a_spread_are_no_interval_and_not_certain() -> None:
    found = {
        **{"arm": 0.5, "rl": 0.25, "difference": 0.25, "pairs": 3, "better": True},
        **{"interval": [0.25, 0.25], "certain": False, "seeds": dict.fromkeys("012", 0.25)},
    }
    (_, sentence) = findings(summary(found), "fst")
    assert "difference 0.250, the same in all 3 seeds: no interval" in sentence


def test_a_value_missing_in_a_shared_seed_is_told() -> None:
    found = {"arm": 0.1, "rl": 0.8, "difference": -0.7, "pairs": 3, "interval": None, "shared": 4}
    (_, sentence) = findings(summary(found), "fst")
    assert "only 3 of 4 seeds have both values" in sentence


@pytest.mark.parametrize(
    ("kl", "reward", "told"),
    [
        (False, True, "rl has the lower KL at the lower reward"),
        (True, False, "fst has the lower KL at the lower reward"),
        (True, True, ""),
        (False, False, ""),
        (None, True, ""),
    ],
)
def test_less_drift_at_less_reward_is_no_merit(kl: bool | None, reward: bool, told: str) -> None:
    found = {"arm": 0.1, "rl": 0.8, "difference": -0.7, "pairs": 3, "interval": None}
    study = summary({**found, "better": kl, "certain": False})
    compared = study["comparisons"]["fst"]
    compared["final_reward"] = {**compared["final_kl"], "better": reward}
    said = headline(study)
    assert told in said and ("no merit" in said) is bool(told)


@pytest.mark.parametrize(
    ("values", "better", "told"),
    [
        ((0.75, 0.5), True, "fst is ahead of rl, but not certainly, on: final reward, "
         "0.750 against rl's 0.500 mean@k."),
        ((0.5, 0.75), False, "rl is ahead of fst, but not certainly, on: final reward, "
         "0.750 against fst's 0.500 mean@k."),
        ((0.5, 0.5), None, "fst and rl are equal on: final reward, both 0.500 mean@k."),
    ],
)  # fmt: skip
def test_the_headline_says_the_numbers_and_whose_they_are(
    values: tuple[float, float], better: bool | None, told: str
) -> None:
    arm, rl = values
    found = {"arm": arm, "rl": rl, "difference": arm - rl, "pairs": 3, "interval": None}
    study = summary({})
    found |= {"better": better, "certain": False, "shared": 3, "unpaired": []}
    study["comparisons"]["fst"] = {"final_reward": found}
    assert headline(study).startswith(told)


@pytest.mark.parametrize(
    ("points", "better", "told"),
    [
        ((None, 15360.0), False, "15,360 training rollouts, and fst never gets there"),
        ((15360.0, None), True, "15,360 training rollouts, and rl never gets there"),
    ],
)
def test_an_arm_that_never_reaches_the_peak_is_said_to_in_the_headline(
    points: tuple[float | None, float | None], better: bool, told: str
) -> None:
    study = summary({})
    study["rl_peak"] = {"reward": 0.5, "step": 4, "start": 0}
    found = {"arm": points[0], "rl": points[1], "difference": None, "pairs": 0, "interval": None}
    found |= {"better": better, "certain": False, "shared": 3, "unpaired": []}
    study["comparisons"]["fst"] = {"rollouts_to_peak": found}
    assert f"rollouts to rl's peak reward, {told}" in headline(study)


def test_every_finding_names_the_opponent() -> None:
    found = {"arm": 0.1, "rl": 0.8, "difference": -0.7, "pairs": 3, "interval": None}
    study = summary(found)
    study["rl_peak"] = {"reward": 0.5, "step": 4, "start": 0}
    to_peak = {"rollouts": 10, "step": 1, "kl": 0.1, "reward": 0.5, "seconds": 1.0}
    study["arms"] = {arm: {"to_rl_peak": {"mean_curve": to_peak, "seeds": [0], "reached": 1}}
                     for arm in ("fst", "rl")}  # fmt: skip
    for sentence in findings(study, "fst"):
        assert all(f"against {number}" not in sentence for number in range(10))
        assert "against rl's" in sentence


@pytest.mark.parametrize(("going", "named"), [(["rl"], "rl"), (["rl", "fst"], "rl or fst")])
def test_arms_of_which_no_run_has_ended_are_named_first(going: list[str], named: str) -> None:
    found = {"arm": 0.1, "rl": 0.8, "difference": -0.7, "pairs": 3, "better": True}
    study = summary({**found, "interval": [-0.8, -0.6], "certain": False})
    for arm in going:
        study["arms"][arm]["partial"] = True
    told = headline(study)
    assert told.startswith(f"No run of {named} has ended: ") and "nothing is decided" in told
