"""What holds of any run: counts, repeatability, and what may reach a context."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from fst_core.checkpoint import CheckpointError, check_slow, list_checkpoints, read_state
from fst_core.config import RunConfig
from fst_core.config.model import ConfigError
from fst_core.environments.directives import DirectivesEnvironment
from fst_core.environments.errors import DataError
from fst_core.fast.reflection import ReflectionError
from fst_core.fast.rules import Rules
from fst_core.interleave import EvaluatePhase, FastPhase, SlowPhase, interleave, plan
from fst_core.journal import comparable, effective, read_events
from fst_core.policy.base import ContextTooLong
from fst_core.policy.language_model import LanguageModelPolicy
from fst_core.records import Verdict
from fst_core.rollouts import JudgeError
from fst_core.run_folder import RunBusy, RunMismatch, holds_finished
from fst_core.session import Session
from fst_core.slow.base import TrainingDiverged
from fst_core.slow.group import GroupSlow
from tests.runs import run, tiny_config


def test_the_plan_interleaves() -> None:
    config = tiny_config(loop={"steps": 5, "cycle_steps": 2}, evaluation={"every": 3})
    assert plan(config) == [
        EvaluatePhase(0, 0),
        FastPhase(0, 0, 2),
        SlowPhase(0, 0, 2),
        FastPhase(1, 2, 4),
        SlowPhase(1, 2, 3),
        EvaluatePhase(1, 3),
        SlowPhase(1, 3, 4),
        FastPhase(2, 4, 5),
        SlowPhase(2, 4, 5),
        EvaluatePhase(2, 5),
    ]


@pytest.mark.parametrize(
    ("arm", "kinds"),
    [
        ({"fast": {"type": "none"}, "slow": {"type": "none"}}, {EvaluatePhase}),
        ({"fast": {"type": "none"}}, {EvaluatePhase, SlowPhase}),
        ({"slow": {"type": "none"}}, {EvaluatePhase, FastPhase}),
    ],
)
def test_an_arm_without_a_part_has_no_phase_of_it(arm: dict[str, Any], kinds: set[type]) -> None:
    assert {type(phase) for phase in plan(tiny_config(**arm))} == kinds


def test_the_engines_own_counter_equals_the_ledger(tmp_path: Path) -> None:
    with Session(tiny_config(), tmp_path) as session:
        interleave(session)
        ledger, engines = session.ledger, (session.policy.engine, session.policy.frozen.engine)
    assert sum(engine.rollouts for engine in engines) == (
        ledger.slow_rollouts + ledger.fast_rollouts + ledger.evaluation_rollouts
    )
    tokens = ledger.slow_tokens + ledger.fast_tokens + ledger.evaluation_tokens
    assert sum(engine.tokens for engine in engines) == tokens
    assert sum(engine.calls for engine in engines) == ledger.generate_calls
    assert ledger.slow_rollouts == 4 * 4 * 4
    events = read_events(tmp_path / "journal.jsonl")
    metric_calls = sum(e["evolution"]["metric_calls"] for e in events if e["kind"] == "fast")
    assert ledger.fast_rollouts == metric_calls <= 2 * 40


def test_same_seed_same_journal_and_another_seed_another(tmp_path: Path) -> None:
    first, again = (comparable(run(tiny_config(), tmp_path / name)) for name in ("a", "b"))
    assert first == again
    assert comparable(run(tiny_config(seed=1), tmp_path / "c")) != first


def test_prompts_only_leaves_the_weights_untouched(tmp_path: Path) -> None:
    config = tiny_config(slow={"type": "none"})
    with Session(config, tmp_path) as session:
        before = {k: v.clone() for k, v in session.policy.model.state_dict().items()}
        interleave(session)
        after = session.policy.model.state_dict()
        assert session.slow is None and session.ledger.fast_rollouts > 0
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_no_held_out_problem_reaches_a_context_or_a_reflection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reflection was shown, and every context that came of it, is about train problems."""
    shown: list[str] = []
    propose = Rules.propose

    def recorded(self: Rules, jobs: Any) -> Any:
        shown.extend(repr(job) for job in jobs)
        proposals = propose(self, jobs)
        shown.extend(str(p.text) for p in proposals)
        return proposals

    monkeypatch.setattr(Rules, "propose", recorded)
    config = tiny_config(fast={"metric_calls": 120, "show_solutions": True})
    with Session(config, tmp_path) as session:
        interleave(session)
        environment = session.tasks.trained[0]
        train = {session.tasks.train(i).text for i in range(16)}
    assert len(shown) > 20 and any(text in line for text in train for line in shown)
    for split in ("validation", "test"):
        for index in range(64):
            problem = environment.problem(split, index)  # type: ignore[arg-type]
            assert not any(problem.text in line for line in shown)
            assert not any(problem.reference in line for line in shown)


def test_a_resume_goes_on_with_the_next_phase_only(tmp_path: Path) -> None:
    """After an exception inside a phase, the next session repeats that phase and none before."""

    class Stop(Exception):
        pass

    def stop_at_step_3(event: dict[str, Any]) -> None:
        if event["kind"] == "slow" and event["step"] == 3:
            raise Stop

    with pytest.raises(Stop):
        run(tiny_config(), tmp_path, stop_at_step_3)
    done: list[tuple[str, int]] = []

    def note(event: dict[str, Any]) -> None:
        done.append((event["kind"], event["step"]))

    run(tiny_config(), tmp_path, note)
    assert [step for kind, step in done if kind == "slow"] == [3, 4]
    assert [kind for kind, _ in done].count("fast") == 0, "the fast phase had a checkpoint"


def test_checkpoints_are_pruned_to_the_configs_number(tmp_path: Path) -> None:
    run(tiny_config(checkpoint={"keep": 1}), tmp_path)
    (only,) = list_checkpoints(tmp_path / "checkpoints")
    assert read_state(only).step == 4


def begun(tmp_path: Path, **changes: Any) -> None:
    with Session(tiny_config(**changes), tmp_path):
        pass


def test_another_config_in_the_folder_is_refused_with_the_difference(tmp_path: Path) -> None:
    run(tiny_config(), tmp_path)
    with pytest.raises(RunMismatch, match=r"slow\.tau 4\.0 -> 3\.0"):
        begun(tmp_path, slow={"tau": 3.0})


def test_the_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tiny_config(seed=seed), tmp_path / str(seed))
    shutil.copy(tmp_path / "1" / "journal.jsonl", tmp_path / "0")
    assert not holds_finished(tmp_path / "0", tiny_config(seed=0))
    with pytest.raises(RunMismatch, match="seed 1 -> 0"):
        run(tiny_config(seed=0), tmp_path / "0")


def test_a_folder_that_somebody_put_beside_the_checkpoints_is_none(tmp_path: Path) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"

    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "slow" and event["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny_config(), tmp_path / "run", stop)
    newest = list_checkpoints(checkpoints)[-1]
    backup = shutil.copytree(newest, checkpoints / f"{newest.name}.bak")
    assert list_checkpoints(checkpoints)[-1] == newest
    straight = comparable(run(tiny_config(), tmp_path / "straight"))
    assert comparable(run(tiny_config(), tmp_path / "run")) == straight
    assert (backup / "state.json").exists()


def test_a_checkpoint_of_another_config_is_refused(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    run(tiny_config(), own)
    run(tiny_config(slow={"tau": 3.0}), other)
    shutil.rmtree(own / "checkpoints")
    shutil.copytree(other / "checkpoints", own / "checkpoints")
    with pytest.raises(CheckpointError, match="another config"):
        begun(own)


def test_a_run_without_its_config_is_known_by_its_journal(tmp_path: Path) -> None:
    run(tiny_config(), tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(RunMismatch, match=r"slow\.tau 4\.0 -> 3\.0"):
        begun(tmp_path, slow={"tau": 3.0})


def test_weights_that_diverged_are_named_at_the_evaluation(tmp_path: Path) -> None:
    slow = {"learning_rate": 1e30, "max_grad_norm": 1e30}
    config = tiny_config(slow=slow, environment={"required": []}, fast={"type": "none"})
    with (
        pytest.raises(TrainingDiverged, match=r"lower slow\.learning_rate"),
        Session(config, tmp_path) as session,
    ):
        session.step()
        with torch.no_grad():
            for parameter in session.policy.model.parameters():
                parameter.fill_(float("nan"))
        session.policy.version += 1
        session.evaluate(4)


def test_a_failed_start_leaves_nothing_that_blocks_the_next(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown directives"):
        begun(tmp_path, environment={"type": "directives", "required": ["shout"]})
    begun(tmp_path)


def test_two_sessions_on_one_folder(tmp_path: Path) -> None:
    with Session(tiny_config(), tmp_path), pytest.raises(RunBusy, match=r"pid \d+"):
        begun(tmp_path)


def test_too_few_problems(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lower evaluation\.problems"):
        begun(tmp_path, evaluation={"problems": 10_000})


def test_a_seed_context_past_the_window_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContextTooLong, match=r"contexts\.seed has \d+ tokens"):
        run(tiny_config(contexts={"seed": "dashes " * 600}), tmp_path)


def test_room_for_contexts_counts_the_problems_of_suites(tmp_path: Path) -> None:
    """A suite whose problems are longer than the trained ones leaves contexts less room."""
    told = {"type": "directives", "task": "echo", "required": ["upper", "dashes"], "told": True}
    suite = {"name": "told", "axis": "easy to hard", "problems": 4, "environment": told}

    def room(folder: Path, **evaluation: Any) -> int:
        with Session(tiny_config(evaluation=evaluation), folder) as session:
            return session._room_for_context()

    assert room(tmp_path / "with", suites=[suite]) < room(tmp_path / "without")


def test_checkpoints_after_fast_phases_can_be_left_out(tmp_path: Path) -> None:
    def written(folder: Path, **checkpoint: Any) -> list[int]:
        run(tiny_config(checkpoint={"every_cycles": 100, **checkpoint}), folder)
        events = read_events(folder / "journal.jsonl")
        return [e["next_phase"] for e in events if e["kind"] == "checkpoint"]

    often, rarely = written(tmp_path / "often"), written(tmp_path / "rarely", after_fast=False)
    assert set(rarely) < set(often) and rarely[-1] == often[-1]


@pytest.mark.parametrize(("fault", "part"), [("raise", "KeyError"), ("nan", "reward nan")])
@pytest.mark.parametrize("fast", [True, False])
def test_a_broken_judge_stops_the_run_with_the_problems_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, part: str, fast: bool
) -> None:
    """In a fast phase (inside gepa) as in a slow one (inside TRL); what was done before is kept."""

    def judge(self: Any, problem: Any, completion: str) -> Verdict:
        if fault == "raise":
            raise KeyError("broken")
        return Verdict(float("nan"))

    target = Session.evolve if fast else GroupSlow.step

    def broken(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(DirectivesEnvironment, "judge", judge)
        return target(self, *arguments)

    monkeypatch.setattr(Session if fast else GroupSlow, target.__name__, broken)
    with pytest.raises(JudgeError, match=part) as error:
        run(tiny_config(), tmp_path)
    assert "on problem" in str(error.value)
    assert effective(read_events(tmp_path / "journal.jsonl"))[-1]["kind"] == "checkpoint"


def test_vllm_is_refused_with_a_sentence() -> None:
    config = RunConfig.model_validate(
        {**tiny_config().model_dump(), "policy": {"type": "tiny", "engine": "vllm"}}
    )
    with pytest.raises(ConfigError, match=r"policy\.engine"):
        LanguageModelPolicy(config.policy)


def test_a_finite_train_split_goes_round_in_new_orders(tmp_path: Path) -> None:
    rows = [{"question": f"What is {i}?", "answer": str(i)} for i in range(40)]
    for split, part in (("train", rows[:10]), ("validation", rows[10:20]), ("test", rows[20:])):
        text = "\n".join(map(json.dumps, part))
        (tmp_path / f"{split}.jsonl").write_text(text + "\n")
    config = tiny_config(environment={"type": "jsonl", "path": str(tmp_path)})
    with Session(config, tmp_path / "run") as session:
        epochs = [[session.tasks.train(e * 10 + i).text for i in range(10)] for e in range(3)]
    assert epochs[0] == [row["question"] for row in rows[:10]]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def cut(path: Path) -> None:
    """Keep a file's beginning; the file alone, not those that share its content by hard link."""
    start = path.read_bytes()[:1000]
    path.unlink()
    path.write_bytes(start)


def flipped(path: Path) -> None:
    """One bit of many, where every format would read on; again the file alone."""
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.unlink()
    path.write_bytes(data)


def emptied(path: Path) -> None:
    """As after a power loss; again the file alone."""
    path.unlink()
    path.touch()


@pytest.mark.parametrize(
    ("harm", "part"),
    [
        (lambda c: (c / "slow" / "optimizer.pt").unlink(), r"no slow/optimizer\.pt"),
        (lambda c: (c / "slow" / "scheduler.pt").unlink(), r"no slow/scheduler\.pt"),
        (lambda c: cut(c / "slow" / "model.safetensors"), "damaged"),
        (lambda c: cut(c / "slow" / "optimizer.pt"), "damaged"),
        (lambda c: emptied(c / "slow" / "optimizer.pt"), "damaged"),
        (lambda c: emptied(c / "slow" / "scheduler.pt"), "damaged"),
        (lambda c: flipped(c / "slow" / "model.safetensors"), r"model\.safetensors does not hold"),
        (lambda c: flipped(c / "slow" / "optimizer.pt"), r"optimizer\.pt does not hold"),
        (lambda c: flipped(c / "state.json"), r"state\.json does not hold"),
        (lambda c: (c / "state.json").write_text(""), "damaged"),
        (lambda c: (c / "state.json").write_text('{"format": 1}'), "damaged"),
        (lambda c: (c.parent.parent / "journal.jsonl").write_text(""), "parts of the journal"),
    ],
    ids=[
        *("optimizer", "scheduler", "weights", "cut", "no optimizer", "no schedule"),
        *("flipped weights", "flipped optimizer", "flipped state"),
        *("state", "fields", "journal"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_serves(
    tmp_path: Path, harm: Callable[[Path], Any], part: str
) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "slow" and event["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny_config(), tmp_path / "run", stop)
    straight = comparable(run(tiny_config(), tmp_path / "straight"))
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    harm(newest)
    with pytest.raises(CheckpointError, match=part):
        run(tiny_config(), tmp_path / "run")
    if "journal" not in part:
        shutil.rmtree(newest)
        assert comparable(run(tiny_config(), tmp_path / "run")) == straight


def test_a_reflection_server_that_refuses_stops_the_run_resumably(tmp_path: Path) -> None:
    pytest.importorskip("litellm")
    server = {"model": "openai/any", "api_base": "http://127.0.0.1:9", "retries": 0}
    reflection = {"type": "litellm", "timeout_seconds": 2, **server}
    config = tiny_config(fast={"reflection": reflection})
    with pytest.raises(ReflectionError, match=r"127\.0\.0\.1:9") as error:
        run(config, tmp_path)
    assert "\n" not in str(error.value)
    assert effective(read_events(tmp_path / "journal.jsonl"))[-1]["kind"] == "checkpoint"


def test_weights_are_one_file_however_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above 50 GB, where transformers would write several, which no resume here looks for."""
    save = PreTrainedModel.save_pretrained

    def in_pieces(self: Any, folder: Path, **given: Any) -> None:
        save(self, folder, **{"max_shard_size": "10KB", **given})

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", in_pieces)
    run(tiny_config(), tmp_path / "run")
    check_slow(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
