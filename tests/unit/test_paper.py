"""The paper's settings: every file of configs/paper resolves, plans and tells its cost anywhere."""

from pathlib import Path

import pytest

from fst_core.config import GepaConfig, HubPolicy, RunConfig, SequenceConfig, load_config
from fst_core.cost import cost_rows, estimate
from fst_core.interleave import plan
from fst_core.model_size import size_of
from fst_core.preflight import preflight
from tests.unit.commands import call

PAPER = Path(__file__).parents[2] / "configs/paper"
FILES = sorted(PAPER.glob("*.toml"))
ARMS = ("base", "rl", "gepa", "fst")


def test_every_task_of_the_paper_has_its_file() -> None:
    names = {"codeio", "math", "hover", "physics", "star-graph", "continual"}
    assert {file.stem for file in FILES} == names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_papers_settings(file: Path) -> None:
    config, study = load_config(file, "fst")
    assert study.arms == ARMS and config.why
    loop = (config.loop.problems_per_step, config.loop.group_size, config.loop.cycle_steps)
    assert loop == (32, 8, 6) and config.contexts.size == 4
    assert isinstance(config.fast, GepaConfig) and config.fast.metric_calls == 960
    slow = config.slow.model_dump()
    assert (slow["type"], slow["learning_rate"], slow["warmup_steps"]) == ("cispo", 1e-6, 10)
    assert (slow["tau"], slow["beta"], slow["zero_variance"]) == (4.0, 0.001, "drop")
    assert slow["baseline"] == "problem" and slow["scale_by_std"]
    policy = config.policy
    assert isinstance(policy, HubPolicy) and policy.model == "Qwen/Qwen3-8B"
    assert policy.engine == "vllm" and policy.autocast
    assert config.evaluation.samples == 4
    if isinstance(config.environment, SequenceConfig):
        names = [task.name for task in config.environment.tasks]
        assert names == ["hover-hard", None, "physics"] and config.environment.task_steps == 200


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_arm_plans_and_costs(file: Path, arm: str) -> None:
    config, _ = load_config(file, arm)
    assert plan(config)
    cost = estimate(config)
    assert cost.idle_fast_phases == 0
    trained, evolved = arm in ("rl", "fst"), arm in ("gepa", "fst")
    assert cost.slow_rollouts == 256 * config.loop.steps * trained
    assert cost.fast_rollouts == 960 * cost.fast_phases and bool(cost.fast_phases) == evolved
    rows = dict(cost_rows(cost, config))
    assert ("GPU-hours, slow, training" in rows) == trained
    assert ("GPU-hours, fast, generation" in rows) == evolved
    assert ("memory, Adam (2 x fp32)" in rows) == trained
    assert "memory, KV cache" in rows and "H100" in rows["hours assume"]


def test_four_kept_contexts_leave_room_for_a_search_step() -> None:
    config, _ = load_config(PAPER / "math.toml", "fst")
    fast = config.fast
    assert isinstance(fast, GepaConfig)
    scored = config.contexts.size * fast.anchors
    step = 2 * fast.proposals * fast.minibatch + fast.anchors
    assert scored + step <= fast.metric_calls < scored + step + fast.metric_calls / 2


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dry_run_tells_what_is_absent_and_a_run_refuses(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call("run", file, "--arm", "fst", "--dry-run")
    assert answer.code == 0, answer.err
    notes = [line for line in answer.err.splitlines() if line.startswith("note: not here yet:")]
    published = file.stem in ("hover", "math", "physics", "continual")
    assert any("no such file" in note for note in notes) == published
    assert "GPU-hours, all" in answer.out and "memory, together" in answer.out
    if published:
        words = ["run", file, "--arm", "fst", "--no-track", "--set", "policy.engine=auto"]
        refused = call(*words)
        assert refused.code == 1 and "no such file" in refused.err
        assert not list(tmp_path.iterdir())


def test_every_absent_file_of_a_sequence_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = load_config(PAPER / "continual.toml", "fst")
    told = " ".join(preflight(config, plan_only=True))
    assert "hover_train_release_v1.1.json" in told and "sciknoweval_physics_test.jsonl" in told


def test_the_size_in_the_files_is_that_of_the_published_shape() -> None:
    for file in FILES:
        policy = load_config(file, "fst")[0].policy
        assert isinstance(policy, HubPolicy)
        size = size_of(policy)
        assert size.shape is not None and policy.parameters == size.shape.parameters


def test_a_folder_that_is_absent_is_a_note_of_a_plan_and_refused_by_a_run() -> None:
    config, _ = load_config(PAPER / "star-graph.toml", "rl")
    local = RunConfig.model_validate(
        {**config.model_dump(), "policy": {"type": "hub", "model": "./no-such-folder"}}
    )
    assert any("no such folder" in note for note in preflight(local, plan_only=True))
    with pytest.raises(ValueError, match="no such folder"):
        preflight(local)
