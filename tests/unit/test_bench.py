"""The bench's own arithmetic, and that every bench runs on the tiny policy and says what it saw."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fst_core.bench.parts import Clock, shares
from fst_core.bench.timing import Table, interleaved
from fst_core.cli import app
from fst_core.config.model import ConfigError

SMOKE = "configs/tiny/smoke.toml"


def test_a_ratio_is_the_references_median_over_its_own() -> None:
    table = Table("t", "tokens/s")
    table.fill({"slow": [4.0, 2.0, 3.0], "fast": [1.0, 1.5, 2.0]}, work=6, reference="slow")
    assert table.rows == [("slow", 3.0, 2 / 3, 2.0, 1.0), ("fast", 1.5, 2 / 3, 4.0, 2.0)]
    assert "| fast | 1.5000 | 67 | 4 | 2.00 |" in table.markdown()


def test_calls_take_turns() -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    found = interleaved(calls, repeats=3, warmups=1)
    assert order == ["a", "b"] + ["a", "b"] * 3
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}


def test_time_inside_a_nested_part_counts_for_that_part_alone() -> None:
    clock = Clock()
    inner = clock.wrap("inner", lambda: time.sleep(0.05))

    def both() -> None:
        time.sleep(0.02)
        inner()
        inner()

    began = time.perf_counter()
    clock.wrap("outer", both)()
    took = time.perf_counter() - began
    assert clock.seconds["inner"] >= 0.1
    assert 0.02 <= clock.seconds["outer"] <= took - 0.1
    assert sum(clock.seconds.values()) == pytest.approx(took, rel=0.05)


def test_a_part_that_raises_is_still_booked() -> None:
    clock = Clock()

    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        clock.wrap("part", fails)()
    clock.wrap("next", lambda: None)()
    assert set(clock.seconds) == {"part", "next"}


def test_shares_are_of_the_whole() -> None:
    page = shares({"a": 1.0, "b": 3.0})
    assert page.index("| b | 3.00 | 75.0% |") < page.index("| a | 1.00 | 25.0% |")
    assert "| whole run | 4.00 | 100% |" in page


def test_every_bench_runs_on_the_tiny_policy(tmp_path: Path) -> None:
    arguments = ["bench", SMOKE, "--arm", "fst", "--repeats", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "--set", "policy.engine=graph"])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "bench.json").read_text())
    names = {row[0] for row in found["generation"]["rows"]}
    assert names == {"plain generate", "our transformers engine", "our graph engine"}
    assert found["generation"]["mismatch_max"] < 1e-3
    assert {row[0] for row in found["step"]["rows"]} == {"plain TRL, our engine", "our slow step"}
    spent = found["fast"]["metric_calls"]
    assert set(spent) == {"gepa's default adapter", "our fast phase"} and all(
        count > 0 for counts in spent.values() for count in counts
    )
    assert {"generate", "judge", "journal", "checkpoint", "sync"} <= set(found["parts"]["seconds"])
    assert found["machine"]["torch"]


def test_an_unknown_bench_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", SMOKE, "--only", "speed", "--out", str(tmp_path)])
    assert done.exit_code != 0 and "speed" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arm", "bench"), [("base", "step"), ("rl", "fast"), ("gepa", "step")])
def test_a_bench_of_a_part_that_is_not_there_is_refused(
    tmp_path: Path, arm: str, bench: str
) -> None:
    arguments = ["bench", SMOKE, "--arm", arm, "--only", bench, "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, ConfigError) and f"bench {bench} needs" in str(done.exception)


def test_later_benches_leave_earlier_ones_in_the_file(tmp_path: Path) -> None:
    arguments = ["bench", SMOKE, "--arm", "rl", "--repeats", "2", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, [*arguments, "--only", "sync"]).exit_code == 0
    assert CliRunner().invoke(app, [*arguments, "--only", "parts"]).exit_code == 0
    assert {"sync", "parts", "machine"} <= set(json.loads((tmp_path / "bench.json").read_text()))


@pytest.mark.parametrize("only", ["", ",,"])
def test_no_bench_at_all_is_refused(tmp_path: Path, only: str) -> None:
    done = CliRunner().invoke(app, ["bench", SMOKE, "--only", only, "--out", str(tmp_path)])
    assert isinstance(done.exception, ConfigError) and not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ["bench", SMOKE, "--only", "sync", "--out", str(tmp_path / "file")]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, ConfigError) and "--out" in str(done.exception)
