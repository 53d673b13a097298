"""Hand-computed tables and summaries of small synthetic journals."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from fst_core.records import content_id
from fst_core.report.runs import RunLog, read_run, read_runs, warnings
from fst_core.report.summary import interval, run_seconds, statistic, summarize, write_summary
from fst_core.report.tables import all_tables, curves, settings, settings_by_arm, write_parquet
from tests.journals import (
    SEED_TEXT,
    end,
    evaluate,
    fast_phase,
    slow_step,
    start,
    synthetic_run,
    synthetic_study,
)


def rl_run(root: Path, seed: int, rewards: list[float]) -> Path:
    """An rl run evaluated at steps 0, 1, 2, ... with 16 rollouts a step."""
    writer = start(root / f"rl-s{seed}", "rl", seed)
    for step, reward in enumerate(rewards):
        if step:
            slow_step(writer, step, reward, 0.1 * step)
        evaluate(writer, step, "seed", reward, 0.1 * step)
    end(writer, len(rewards) - 1)
    return writer.path.parent


def fst_run(root: Path, seed: int, rewards: list[float]) -> Path:
    """An fst run with one fast phase of 10 rollouts, then as `rl_run`; seed context at half."""
    writer = start(root / f"fst-s{seed}", "fst", seed)
    evaluate(writer, 0, "seed", rewards[0])
    fast_phase(writer, 0, 0, 0.5)
    for step, reward in enumerate(rewards[1:], 1):
        slow_step(writer, step, reward, 0.01 * step)
        evaluate(writer, step, "seed", reward / 2, 0.02 * step)
        evaluate(writer, step, "best", reward, 0.01 * step)
    end(writer, len(rewards) - 1)
    return writer.path.parent


def summary_of(*folders: Path) -> dict:
    runs = read_runs(folders)
    return summarize(runs, curves(runs))


def test_interval_is_the_t_interval() -> None:
    low, high = interval([0.4, 0.6])
    half = 12.706204736 * math.sqrt(0.02 / 2)
    assert low == pytest.approx(0.5 - half) and high == pytest.approx(0.5 + half)
    assert interval([0.4]) is None and interval([]) is None
    assert interval([0.3, 0.3, 0.3]) == pytest.approx([0.3, 0.3])


def test_statistic_leaves_out_missing_seeds() -> None:
    found = statistic({0: 0.25, 1: None, 2: float("nan")})
    assert found == {
        "mean": 0.25, "interval": None, "n": 1, "seeds": {"0": 0.25, "1": None, "2": None}
    }  # fmt: skip


def test_curves_count_training_rollouts_and_seconds(tmp_path: Path) -> None:
    table = curves([read_run(fst_run(tmp_path, 0, [0.0, 0.4, 0.8]))])
    assert len(table) == 5
    last = table[(table["step"] == 2) & (table["context"] == "best")].iloc[0]
    assert last["rollouts"] == 10 + 2 * 16 and last["tokens"] == 420
    assert last["seconds"] == pytest.approx(4 + 2 * 3)
    assert (last["reward"], last["kl"]) == (0.8, 0.02)


def test_headline_is_best_where_contexts_evolve_and_seed_before(tmp_path: Path) -> None:
    table = curves(
        [read_run(fst_run(tmp_path, 0, [0.1, 0.4])), read_run(rl_run(tmp_path, 0, [0.2]))]
    )
    headline = table[table["headline"]][["run", "step", "context", "reward"]].values.tolist()
    assert headline == [
        ["fst-s0", 0, "seed", 0.1],
        ["fst-s0", 1, "best", 0.4],
        ["rl-s0", 0, "seed", 0.2],
    ]


def test_steps_to_the_peak_of_the_mean_curve(tmp_path: Path) -> None:
    # rl means: 0, .3, .6, .5 -> peak .6 at step 2; fst means: 0, .5, .6, .9.
    summary = summary_of(
        rl_run(tmp_path, 0, [0.0, 0.2, 0.4, 0.5]),
        rl_run(tmp_path, 1, [0.0, 0.4, 0.8, 0.5]),
        fst_run(tmp_path, 0, [0.0, 0.7, 0.5, 0.8]),
        fst_run(tmp_path, 1, [0.0, 0.3, 0.7, 1.0]),
    )
    assert summary["rl_peak"] == {"reward": pytest.approx(0.6), "step": 2, "start": 0}
    rl, fst = (summary["arms"][arm]["to_rl_peak"] for arm in ("rl", "fst"))
    assert (rl["mean_curve"]["step"], rl["mean_curve"]["rollouts"]) == (2, 32)
    assert rl["seeds"]["0"] is None and rl["seeds"]["1"]["step"] == 2 and rl["reached"] == 1
    assert (fst["mean_curve"]["step"], fst["mean_curve"]["rollouts"]) == (2, 42)
    assert fst["mean_curve"]["kl"] == pytest.approx(0.02)
    assert [fst["seeds"][seed]["step"] for seed in "01"] == [1, 2]
    assert [fst["seeds"][seed]["rollouts"] for seed in "01"] == [26, 42]


def test_never_reaching_the_peak_is_null_and_worse(tmp_path: Path) -> None:
    summary = summary_of(rl_run(tmp_path, 0, [0.0, 0.9]), fst_run(tmp_path, 0, [0.0, 0.5]))
    to_peak = summary["arms"]["fst"]["to_rl_peak"]
    assert to_peak == {"defined": True, "mean_curve": None, "seeds": {"0": None}, "reached": 0}
    assert summary["comparisons"]["fst"]["rollouts_to_peak"]["better"] is False


def test_comparison_is_paired_by_seed(tmp_path: Path) -> None:
    summary = summary_of(
        rl_run(tmp_path, 0, [0.0, 0.2]),
        rl_run(tmp_path, 1, [0.0, 0.6]),
        fst_run(tmp_path, 0, [0.0, 0.5]),
        fst_run(tmp_path, 1, [0.0, 0.9]),
    )
    found = summary["comparisons"]["fst"]["final_reward"]
    assert found["difference"] == pytest.approx(0.3) and found["pairs"] == 2
    assert found["interval"] == pytest.approx([0.3, 0.3])  # both seeds differ by .3
    assert found["better"] is True and found["certain"] is False  # two seeds, whatever they say
    assert found["seeds"] == {"0": pytest.approx(0.3), "1": pytest.approx(0.3)}
    retention = summary["comparisons"]["fst"]["final_seed_reward"]
    assert retention["difference"] == pytest.approx(-0.05) and retention["better"] is False
    assert retention["certain"] is False


def test_final_and_best_reward(tmp_path: Path) -> None:
    arm = summary_of(rl_run(tmp_path, 0, [0.0, 0.8, 0.5]))["arms"]["rl"]
    assert arm["final_reward"]["mean"] == 0.5 and arm["best_reward"]["mean"] == 0.8
    assert arm["final_reward"]["interval"] is None
    assert arm["used"]["slow_rollouts"] == 32 and arm["used"]["evaluation_rollouts"] == 24
    assert [item["reward"]["mean"] for item in arm["evaluations"]] == [0.0, 0.8, 0.5]


def test_reflections_are_proposals_or_what_the_method_counted(tmp_path: Path) -> None:
    (run,) = read_runs([fst_run(tmp_path, 0, [0.0, 0.5])])
    (phase,) = run.of("fast")
    summary = summarize([run], curves([run]))
    assert summary["arms"]["fst"]["used"]["reflections"] == 4
    phase["evolution"]["metrics"] = {"fast/reflections": 40}
    summary = summarize([run], curves([run]))
    assert summary["arms"]["fst"]["used"]["reflections"] == 40


def test_seconds_by_part(tmp_path: Path) -> None:
    seconds = run_seconds(read_run(fst_run(tmp_path, 0, [0.0, 0.4, 0.8])))
    assert seconds == {
        "fast": 4.0, "slow": 6.0, "evaluation": 10.0, "slow_generate": 2.0, "other": 5.0,
        "total": 25.0,
    }  # fmt: skip


def test_rewound_events_do_not_count(tmp_path: Path) -> None:
    writer = start(tmp_path / "rl-s0", "rl", 0)
    evaluate(writer, 0, "seed", 0.1)
    kept = writer.add("checkpoint", step=0, name="step-000000", next_phase=1)["seq"]
    slow_step(writer, 1, 0.9, 0.1)
    evaluate(writer, 1, "seed", 0.9)
    writer.add("rewind", to=kept)
    slow_step(writer, 1, 0.3, 0.1)
    evaluate(writer, 1, "seed", 0.3)
    end(writer, 1)
    tables = all_tables([read_run(writer.path.parent)])
    assert tables["curves"]["reward"].tolist() == [0.1, 0.3]
    assert tables["training"]["slow/reward"].tolist() == [0.3]


def test_unfinished_runs_count_only_where_none_has_finished(tmp_path: Path) -> None:
    died = start(tmp_path / "rl-s1", "rl", 1)
    evaluate(died, 0, "seed", 0.9)
    finished = rl_run(tmp_path, 0, [0.1, 0.2])
    arm = summary_of(finished, died.path.parent)["arms"]["rl"]
    assert arm["counted"] == ["rl-s0"] and arm["runs"] == 2 and arm["partial"] is False
    alone = summary_of(died.path.parent)["arms"]["rl"]
    assert alone["counted"] == ["rl-s1"] and alone["partial"] is True


def test_mean_curve_uses_steps_every_seed_evaluated(tmp_path: Path) -> None:
    short = start(tmp_path / "rl-s1", "rl", 1)
    evaluate(short, 0, "seed", 0.0)
    long = start(tmp_path / "rl-s0", "rl", 0)
    evaluate(long, 0, "seed", 0.2)
    evaluate(long, 1, "seed", 1.0)
    summary = summary_of(short.path.parent, long.path.parent)
    assert summary["rl_peak"]["reward"] == pytest.approx(0.1)


def test_populations_hold_lineage_and_anchor_means(tmp_path: Path) -> None:
    table = all_tables([read_run(fst_run(tmp_path, 0, [0.0, 0.4]))])["populations"]
    assert table["anchor_mean"].tolist() == [0.5, 0.25]
    assert table["operator"].tolist() == ["lesson", "seed"]
    assert table["parents"].tolist() == [content_id(SEED_TEXT), ""]
    assert table["context_id"].tolist()[1] == content_id(SEED_TEXT)


def test_settings_mark_what_differs(tmp_path: Path) -> None:
    folders = [
        start(tmp_path / name, arm, seed, **changes).path.parent
        for name, arm, seed, changes in (
            ("rl-s0", "rl", 0, {}),
            ("rl-s1", "rl", 1, {"threads": 2}),
            ("fst-s0", "fst", 0, {}),
        )
    ]
    runs = read_runs(folders)
    table = settings(runs)
    marked = set(table.loc[table["differs"], "key"])
    assert {"threads", "fast.type", "fast.metric_calls"} <= marked
    assert not marked & {"arm", "seed", "loop.steps", "slow.learning_rate"}
    by_arm = settings_by_arm(table, runs).set_index("key")
    assert by_arm.loc["threads", "rl"] == "1 | 2" and by_arm.loc["threads", "fst"] == "1"
    assert by_arm.loc["fast.metric_calls", "rl"] == "–"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: None, "No journal was found"),
        (lambda folder: (folder / "journal.jsonl").write_text("{]\n"), "damaged"),
        (lambda folder: start(folder, "rl", 7), "has not ended"),
    ],
)
def test_incomplete_runs_get_a_sentence(tmp_path: Path, damage, words: str) -> None:
    folder = tmp_path / "rl-s7"
    folder.mkdir()
    damage(folder)
    run = read_run(folder)
    assert words in run.note and str(tmp_path) not in run.note
    assert (run.arm, run.seed) == ("rl", 7)


def test_second_folder_of_the_same_run_is_left_out(tmp_path: Path) -> None:
    first, second = rl_run(tmp_path / "a", 0, [0.1]), rl_run(tmp_path / "b", 0, [0.9])
    runs = read_runs([first, second])
    assert [bool(run.events) for run in runs] == [True, False]
    assert "same arm and seed" in runs[1].note


def damaged(folder: Path) -> Path:
    start(folder, "rl", 0)
    (folder / "journal.jsonl").write_text("{]\n")
    return folder


def empty(folder: Path) -> Path:
    start(folder, "rl", 0).path.write_text("")
    return folder


def unfinished(folder: Path) -> Path:
    writer = start(folder, "rl", 0)
    evaluate(writer, 0, "seed", 0.9)
    return writer.path.parent


@pytest.mark.parametrize(
    ("make", "words"),
    [(damaged, "is damaged"), (empty, "No journal"), (unfinished, "has not ended")],
)
@pytest.mark.parametrize("name", ["a/rl-s0", "z/rl-s0", "runs/rl-copy", "runs/z-copy"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_finished_run_wins_over_any_other(
    tmp_path: Path, make, words: str, name: str, swapped: bool
) -> None:
    good = synthetic_run(tmp_path / "runs", "rl", 0)
    bad = make(tmp_path / name)
    folders = [good, bad] if swapped else [bad, good]
    runs = dict(zip(folders, read_runs(folders), strict=True))
    assert runs[good].finished and runs[good].note == ""
    assert runs[bad].events == () and words in runs[bad].note
    assert runs[bad].note.startswith("Left out: the same arm and seed as runs/rl-s0, ")
    [said] = warnings(folders, read_runs(folders))
    assert said.startswith(f"warning: {bad}: left out: the same arm and seed as runs/rl-s0")


def test_an_unfinished_run_wins_over_one_without_events(tmp_path: Path) -> None:
    folders = [damaged(tmp_path / "a" / "rl-s0"), unfinished(tmp_path / "b" / "rl-s0")]
    for order in (folders, folders[::-1]):
        runs = dict(zip(order, read_runs(order), strict=True))
        assert [bool(runs[folder].events) for folder in folders] == [False, True]
        assert len(warnings(order, list(runs.values()))) == 2


def test_summary_is_plain_json(tmp_path: Path) -> None:
    summary = summary_of(*synthetic_study(tmp_path / "runs"))
    path = write_summary(summary, tmp_path / "out" / "summary.json")
    assert json.loads(path.read_text()) == summary
    assert list(summary["comparisons"]) == [
        "gepa",
        "fst",
    ]  # base learns nothing: nothing to compare


def test_parquet_round_trip(tmp_path: Path) -> None:
    runs = read_runs(synthetic_study(tmp_path / "runs", seeds=(0,)))
    tables = all_tables(runs)
    paths = write_parquet(tables, tmp_path / "tables")
    for name, path in paths.items():
        pd.testing.assert_frame_equal(pd.read_parquet(path), tables[name], check_dtype=False)


def test_no_runs_at_all() -> None:
    empty: list[RunLog] = []
    summary = summarize(empty, curves(empty))
    assert summary["arms"] == {} and summary["rl_peak"] is None and summary["comparisons"] == {}


def test_writer_matches_the_journal_format(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path, "fst", 0)
    run = read_run(folder)
    assert run.finished and run.note == "" and run.last_step == 8


def test_an_rl_that_never_rises_has_no_peak_to_reach(tmp_path: Path) -> None:
    summary = summary_of(rl_run(tmp_path, 0, [0.0, 0.0]), fst_run(tmp_path, 0, [0.0, 0.5]))
    for arm in summary["arms"].values():
        assert arm["to_rl_peak"]["defined"] is False
        assert arm["to_rl_peak"]["mean_curve"] is None
    assert summary["comparisons"]["fst"]["final_reward"]["difference"] == 0.5


def test_a_study_without_any_evaluation_has_a_summary(tmp_path: Path) -> None:
    assert summary_of(rl_run(tmp_path, 0, []))["arms"]["rl"]["final_reward"]["mean"] is None
