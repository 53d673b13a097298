"""Hand-computed tables and summaries of small synthetic journals."""

import io
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from fst_core.records import content_id
from fst_core.report import make_report, summary_table, terminal
from fst_core.report.headline import findings, headline
from fst_core.report.markup import esc
from fst_core.report.runs import RunLog, read_run, read_runs, warnings
from fst_core.report.statistics import (
    DIFFERENCE,
    NOT_NEGATIVE,
    REWARD,
    UNBOUNDED,
    interval,
    statistic,
)
from fst_core.report.summary import run_seconds, summarize, write_summary
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


@pytest.mark.parametrize(
    ("values", "within", "bounds"),
    [
        ([0.5, 0.75, 0.75], REWARD, [0.308, 1.0]),
        ([0.0, 0.25, 0.25], REWARD, [0.0, 0.525]),
        ([-0.75, -0.5, -1.0], DIFFERENCE, [-1.0, -0.129]),
        ([0.5, 0.01, 0.02], NOT_NEGATIVE, [0.0, 0.873]),
        ([0.5, 0.01, 0.02], UNBOUNDED, [-0.519, 0.873]),
        ([0.4, 0.5, 0.6], REWARD, [0.252, 0.748]),
    ],
)
def test_an_interval_is_cut_where_no_value_can_lie(values, within, bounds) -> None:
    assert statistic(dict(enumerate(values)), within)["interval"] == pytest.approx(bounds, abs=1e-3)


def test_no_interval_of_a_study_ends_where_no_value_can_lie(tmp_path: Path) -> None:
    folders = [
        run(tmp_path, seed, rewards)
        for run, last in ((rl_run, 0.6), (fst_run, 0.95))
        for seed, rewards in enumerate(([0.0, 0.05, last], [0.0, 0.0, 1.0], [0.1, 0.3, last]))
    ]
    summary = summary_of(*folders)
    for arm in summary["arms"].values():
        rewards = [item["reward"] for item in (*arm["evaluations"], *arm["seed_evaluations"])]
        for found in (*rewards, *(arm[f"{name}_reward"] for name in ("final", "best"))):
            assert found["interval"] is None or 0 <= found["interval"][0] <= found["interval"][1]
            assert found["interval"] is None or found["interval"][1] <= 1
        assert arm["seconds"]["training"]["interval"][0] >= 0
    assert summary["arms"]["fst"]["final_reward"]["interval"][1] == 1
    assert summary["comparisons"]["fst"]["final_reward"]["interval"][1] <= 1


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


def differing(root: Path, mine: dict[int, float], theirs: dict[int, float]) -> dict:
    """The summary of arms with these final rewards by seed."""
    fst = [fst_run(root, seed, [0.0, reward]) for seed, reward in mine.items()]
    return summary_of(*(rl_run(root, seed, [0.0, r]) for seed, r in theirs.items()), *fst)


def test_differences_are_over_the_seeds_both_have(tmp_path: Path) -> None:
    summary = differing(tmp_path, {0: 0.5, 1: 0.6, 2: 0.1}, {1: 0.4, 2: 0.2, 3: 1.0, 10: 1.0})
    found = summary["comparisons"]["fst"]["final_reward"]
    assert found["seeds"] == pytest.approx({"1": 0.2, "2": -0.1})
    assert (found["shared"], found["pairs"]) == (2, 2) and found["unpaired"] == ["0", "3", "10"]
    assert found["difference"] == pytest.approx(0.05)  # and not .4 - .65 of the arms' own means
    assert (found["arm"], found["rl"]) == pytest.approx((0.35, 0.3)) and found["better"] is True
    sentences = " ".join(findings(summary, "fst"))
    assert "fst 0.350 against rl's 0.300" in sentences and "have 2 seeds in common" in sentences
    assert "only one of the two was run with seed 0, 3, 10" in sentences


def test_without_a_seed_in_common_nothing_is_compared(tmp_path: Path) -> None:
    summary = differing(tmp_path, {0: 0.9, 1: 0.8}, {2: 0.1, 3: 0.2})
    for found in summary["comparisons"]["fst"].values():
        assert found["difference"] is None and found["interval"] is None
        assert (found["shared"], found["pairs"], found["better"]) == (0, 0, None)
    told = "fst and rl have no seed in common, so nothing is compared"
    assert headline(summary).startswith(told) and findings(summary, "fst")[-1].startswith(told)


def test_three_equal_differences_are_not_certain(tmp_path: Path) -> None:
    same = dict.fromkeys(range(3), 0.5)
    found = differing(tmp_path, same, dict.fromkeys(same, 0.25))["comparisons"]["fst"]
    assert found["final_reward"]["better"] is True and found["final_reward"]["certain"] is False


def kl_run(root: Path, arm: str, exact: bool) -> Path:
    """Two evaluations: k1 says -.05 at the end, exact (where measured) .02."""
    writer = start(root / f"{arm}-s0", arm, 0)
    for step, kl in ((0, (0.0, 0.0)), (2, (-0.05, 0.02))):
        more = {"kl_exact": kl[1]} if exact else {}
        for context in ("seed", "best") if arm == "fst" else ("seed",):
            evaluate(writer, step, context, 0.1 * step, kl[0], more=more)
    end(writer, 2)
    return writer.path.parent


@pytest.mark.parametrize(
    ("exact", "column", "told", "value"),
    [
        ((True, True), "kl_exact", "exact", "0.020"),
        ((True, False), "kl", "k1", "-0.050"),
        ((False, True), "kl", "k1", "-0.050"),
        ((False, False), "kl", "k1", "-0.050"),
    ],
)
def test_kl_is_exact_where_every_run_has_it_and_is_named(
    tmp_path: Path, exact: tuple[bool, bool], column: str, told: str, value: str
) -> None:
    arms = zip(("rl", "fst"), exact, strict=True)
    report = make_report([kl_run(tmp_path / "runs", a, e) for a, e in arms], tmp_path / "out")
    summary, page = report.summary, report.paths["report"].read_text()
    assert summary["kl_column"] == column
    assert [m for m in summary["comparisons"]["fst"] if "kl" in m] == [f"final_{column}"]
    assert summary["arms"]["rl"]["final_kl"]["mean"] == -0.05  # k1 keeps its name
    assert f"KL at the end, {told} (nats/token)" in page and f"KL to the base model, {told}" in page
    said = next(line for line in findings(summary, "fst") if line.startswith("KL to"))
    assert told in said and f"fst {value}" in said and told in headline(summary)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(summary))
    shown = console.export_text()
    assert told in shown and value in shown


def test_captions_are_whole_in_a_terminal_of_eighty_columns() -> None:
    captions = (terminal.JUDGED, terminal.NO_PEAK, terminal.UNFINISHED)
    lines = [line for caption in captions for line in caption.split("\n")]
    assert max(map(len, lines)) <= 78, lines


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
    [(damaged, "is damaged"), (empty, "The journal is empty"), (unfinished, "has not ended")],
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


def run_event() -> str:
    return json.dumps({"seq": 0, "time": 0.0, "kind": "run", "config": {}})


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        (None, "No journal was found: there is no run in it; run it first."),
        ("", "The journal is empty: the run died before its first event."),
        ('{"seq": 0, "ki', "The journal has no whole event: its first line is torn"),
        (
            f'{run_event()}\n{{"seq": 1, "kind": "rewind", "to": -1}}\n',
            "Every event of the journal was taken back by a rewind.",
        ),
        ("{torn}\n", "The journal is damaged and none of it was used: journal.jsonl:1"),
    ],
)
def test_a_folder_without_events_is_told_as_what_it_is(
    tmp_path: Path, journal: str | None, told: str
) -> None:
    folder = tmp_path / "rl-s0"
    folder.mkdir()
    if journal is not None:
        (folder / "journal.jsonl").write_text(journal)
    run = read_run(folder)
    assert run.note.startswith(told) and "never started" not in run.note
    page = make_report([folder], tmp_path / "out").paths["report"].read_text()
    assert esc(run.note) in page


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert read_run(tmp_path / "rl-s0").note == "There is no such folder."


def test_a_run_set_aside_by_a_fresh_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "rl-s0" / ".earlier").mkdir(parents=True)
    assert "set aside" in read_run(tmp_path / "rl-s0").note
