"""Ablations: which arms are one setting away from the base, and what the changed setting did."""

import math
from pathlib import Path
from typing import Any

from fst_core.report.ablation import changes, section
from tests.journals import end, evaluate, fast_phase, slow_step, synthetic_study
from tests.unit.section_studies import answer, begin, read_study, told

LOOP = {"steps": 8, "problems_per_step": 4, "group_size": 4}
CISPO = {"type": "cispo", "learning_rate": 1e-3}


def run(
    root: Path, arm: str, seed: int, best: float, seed_reward: float = 0.0, **changes: Any
) -> None:
    """One fast phase, one slow step and the two evaluations of a finished run."""
    writer = begin(root, arm, seed, like="fst", **changes)
    evaluate(writer, 0, "seed", 0.0)
    fast_phase(writer, 0, 0, 0.5)
    slow_step(writer, 1, 0.5, 0.0)
    evaluate(writer, 8, "seed", seed_reward, 0.5)
    evaluate(writer, 8, "best", best, 0.25)
    end(writer, 8)


def k_study(root: Path) -> None:
    """K = 2 is the base's."""
    for seed, (base, one, four) in enumerate([(0.5, 0.25, 0.75), (0.75, 0.25, 0.5)]):
        run(root, "fst", seed, base, 0.25)
        run(root, "K-1", seed, one, 0.125, contexts={"size": 1})
        run(root, "K-4", seed, four, 0.5, contexts={"size": 4})


def rows_of(found: Any, key: str) -> dict[str, Any]:
    return {row["label"]: row for row in found.summary["settings"][key]}


def test_values_and_differences_by_hand(tmp_path: Path) -> None:
    k_study(tmp_path)
    found = answer(section, tmp_path)
    assert found.summary["base"] == "fst" and list(found.summary["settings"]) == ["contexts.size"]
    rows = rows_of(found, "contexts.size")
    assert list(rows) == ["1", "2", "4"]
    assert rows["4"]["arm"] == "K-4" and rows["2"]["arm"] == "fst"
    assert rows["1"]["reward"]["mean"] == 0.25 and rows["1"]["seed_reward"]["mean"] == 0.125
    assert rows["4"]["difference"]["seeds"] == {"0": 0.25, "1": -0.25}
    assert rows["1"]["difference"]["mean"] == -0.375
    assert rows["4"]["kl"]["mean"] == 0.25
    assert (rows["4"]["slow_rollouts"], rows["4"]["fast_rollouts"]) == (16, 10)
    assert rows["4"]["seconds"]["mean"] == 7.0  # a fast phase of 4 and a slow step of 3
    assert found.summary["notes"] == []


def test_what_the_page_shows(tmp_path: Path) -> None:
    k_study(tmp_path)
    found = answer(section, tmp_path)
    page = told(found)
    assert "0.625" in page and "(0.500, 0.750)" in page  # the base's mean, and its two seeds
    assert "fst (base)" in page and "0 (reference)" in page and "fast 10" in page
    assert page.count('class="marked"') == 1
    assert 'role="img"' in page and "1: 0.250 under the judged context" in page
    assert list(found.figures) == ["ablation_contexts_size"]
    table = found.tables["ablation"]
    assert len(table) == 6 and set(table["key"]) == {"contexts.size"}
    assert table.loc[(table["arm"] == "K-4") & (table["seed"] == 0), "reward"].item() == 0.75


def test_three_seeds_have_an_interval_in_the_figure(tmp_path: Path) -> None:
    k_study(tmp_path)
    two = answer(section, tmp_path).figures["ablation_contexts_size"]
    run(tmp_path, "fst", 2, 0.625)
    run(tmp_path, "K-1", 2, 0.3, contexts={"size": 1})
    run(tmp_path, "K-4", 2, 0.6, contexts={"size": 4})
    three = answer(section, tmp_path).figures["ablation_contexts_size"]
    intervals = 3 * 2  # values times contexts
    assert three.count('id="line2d') - two.count('id="line2d') == intervals


def test_one_group_a_setting_and_a_table_of_another_type_is_one_value(tmp_path: Path) -> None:
    k_study(tmp_path)
    for seed in (0, 1):
        run(tmp_path, "baseline-batch", seed, 0.5, slow={**CISPO, "baseline": "batch"})
        run(tmp_path, "curriculum-uniform", seed, 0.5, curriculum={"type": "uniform"})
        keep = [{"type": "kl"}, {"type": "kl", "coefficient": 1.0}]
        run(tmp_path, "weak", seed, 0.5, retention=keep[:1])
        run(tmp_path, "strong", seed, 0.5, retention=keep[1:])
    found = answer(section, tmp_path)
    assert {key: sorted(rows_of(found, key)) for key in found.summary["settings"]} == {
        "contexts.size": ["1", "2", "4"],
        "slow.baseline": ["batch", "problem"],
        "curriculum": ["stream", "uniform"],
        "retention": ["kl (strong)", "kl (weak)", "none"],
    }


def test_arms_that_switch_a_loop_off_or_start_elsewhere_are_no_ablations(tmp_path: Path) -> None:
    synthetic_study(tmp_path / "arms")
    assert section(read_study(tmp_path / "arms")) is None
    for arm, start in (("from-base", None), ("from-fst", "first/fst-s0")):
        run(tmp_path / "probes", arm, 0, 0.5, start_from=start)
    assert section(read_study(tmp_path / "probes")) is None


def test_a_loop_switched_off_stands_beside_other_ablations(tmp_path: Path) -> None:
    k_study(tmp_path)
    for seed in (0, 1):
        writer = begin(tmp_path, "rl", seed, like="rl")
        evaluate(writer, 8, "seed", 0.375)
        end(writer, 8)
    rows = rows_of(answer(section, tmp_path), "fast")
    assert list(rows) == ["gepa", "none"]
    assert rows["none"]["reward"]["mean"] == rows["none"]["seed_reward"]["mean"] == 0.375


def test_the_base_is_the_arm_with_most_others_around_it(tmp_path: Path) -> None:
    run(tmp_path, "a", 0, 0.5, contexts={"size": 1})
    run(tmp_path, "m", 0, 0.5)
    run(tmp_path, "z", 0, 0.5, slow={**CISPO, "baseline": "batch"})
    found = answer(section, tmp_path)
    assert found.summary["base"] == "m"
    assert "One seed, so no interval over seeds: a, m, z." in found.summary["notes"]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    k_study(tmp_path)
    run(tmp_path, "K-4", 7, 1.0, contexts={"size": 4})
    run(tmp_path, "T-4", 0, math.nan, loop={**LOOP, "cycle_steps": 4})
    run(tmp_path, "two", 0, 0.5, loop={**LOOP, "cycle_steps": 4}, contexts={"size": 1})
    run(tmp_path, "mixed", 0, 0.5, contexts={"size": 1})
    run(tmp_path, "mixed", 1, 0.5, contexts={"size": 4})
    begin(tmp_path, "dead", 0, like="fst", contexts={"size": 1})
    writer = begin(tmp_path, "cut", 0, like="fst", slow={**CISPO, "baseline": "batch"})
    evaluate(writer, 3, "best", 0.5)
    found = answer(section, tmp_path)
    assert found.summary["notes"] == [
        "dead was not evaluated yet and is left out.",
        "mixed is left out: its seeds differ in contexts.size.",
        "two is in no table: it differs from fst in contexts.size, loop.cycle_steps.",
        "K-4 has seeds that the base arm lacks; minus base is over the others.",
        "T-4: no finite last reward of seed 0, left out.",
        "cut has not ended: counted as it stands, at slow step 3 in the mean.",
        "One seed, so no interval over seeds: cut.",
    ]
    assert rows_of(found, "loop.cycle_steps")["4"]["reward"]["mean"] is None
    assert "undefined" in told(found)


def test_changes_by_hand() -> None:
    before = {"seed": 0, "name": "a", "loop": {"steps": 4}, "slow": {"type": "x", "a": 1}}
    now = {"seed": 1, "name": "b", "loop": {"steps": 5}, "slow": {"type": "y", "b": 2}, "new": 3}
    assert changes(before, now) == {
        "loop.steps": (4, 5),
        "slow": ({"type": "x", "a": 1}, {"type": "y", "b": 2}),
        "new": (None, 3),
    }
    assert changes({"a": {"seed": 1}}, {"a": {"seed": 2}}) == {"a.seed": (1, 2)}
