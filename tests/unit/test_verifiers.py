"""Environments of the package verifiers: rows, rewards, feedback, and what is refused.

The package is an extra; tests that need it are skipped without it, those of the refusals never are.
"""

import importlib.util
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fst_core.config import RunConfig, VerifiersConfig
from fst_core.config.model import ConfigError, NotHere
from fst_core.environments.errors import DataError
from fst_core.environments.pools import PooledEnvironment, build_pools
from fst_core.environments.registry import make_environment
from fst_core.environments.verifiers import VerifiersEnvironment, reward_of, sentences
from fst_core.environments.verifiers.source import Scored, as_messages, chat, wait_for
from fst_core.preflight import preflight
from fst_core.records import SPLITS
from tests.runs import tiny_config

RUBRICS = "fst_core.environments.verifiers.rubrics"
THERE = importlib.util.find_spec("verifiers") is not None
needed = pytest.mark.skipif(
    not THERE, reason="the package verifiers is not here: pip install 'fst-lab[verifiers]'"
)

CLASSIC = """
import verifiers as vf
from datasets import Dataset


def load_environment(count=90):
    async def right(completion, answer, state):
        state["feedback"] = ["Count once more.", f"It is {answer}."]
        return float(completion[-1]["content"].strip() == answer)

    def short(completion):
        return float(len(completion[-1]["content"]) < 20)

    def spaces(completion):
        return float(" " in completion[-1]["content"])

    rows = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(count)]
    rubric = vf.Rubric(funcs=[right, short, spaces], weights=[1.5, 0.5, -0.5])
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), system_prompt="Only the number.", rubric=rubric
    )
"""
TASKSET = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data]):
    @vf.reward(weight=1.5)
    async def right(self, trace: vf.Trace) -> float:
        trace.info["feedback"] = ["Count once more.", f"It is {self.data.answer}."]
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 20)

    @vf.reward(weight=-0.5)
    async def spaces(self, trace: vf.Trace) -> float:
        return float(" " in trace.last_reply)


class Config(vf.TasksetConfig):
    count: int = 90


class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for i in range(self.config.count):
            yield Sum(
                Data(
                    prompt=f"What is {i} + 1?", system_prompt="Only the number.", answer=str(i + 1)
                )
            )


__all__ = ["Sums"]
"""
SEVERAL_TURNS = {
    True: """
import verifiers as vf
from datasets import Dataset


def load_environment():
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b

    rows = Dataset.from_list([{"question": "1 + 1?", "answer": "2"}])
    return vf.ToolEnv(dataset=rows, tools=[add], rubric=vf.Rubric(funcs=[len]))
""",
    False: """
import verifiers.v1 as vf


class Boxed(vf.Task[vf.TaskData]):
    async def setup(self, trace, runtime):
        await runtime.start()


class Tasks(vf.Taskset[Boxed, vf.TasksetConfig]):
    def load(self):
        yield Boxed(vf.TaskData(prompt="Fix it."))


__all__ = ["Tasks"]
""",
}


def is_classic() -> bool:
    import verifiers

    return hasattr(verifiers, "load_environment")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerifiersConfig:
    """A config of a small environment, of the kind that the installed package knows."""
    name = "own_sums"
    (tmp_path / f"{name}.py").write_text(CLASSIC if is_classic() else TASKSET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return VerifiersConfig(id="own-sums", name="sums", args={"count": 60})


@needed
def test_rows_become_problems_by_hash(own: VerifiersConfig) -> None:
    environment = VerifiersEnvironment(own)
    problems = [environment.problem(s, i) for s in SPLITS for i in range(environment.size(s))]
    assert len(problems) == 60 and all(environment.size(split) for split in SPLITS)
    first = environment.problem("train", 0)
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert first.messages[0]["content"] == "Only the number."
    assert first.text == f"What is {int(first.reference) - 1} + 1?"
    fewer = VerifiersEnvironment(own.model_copy(update={"most_problems": 40}))
    assert sum(fewer.size(split) for split in SPLITS) == 40


@needed
def test_rewards_are_normalised_and_told(own: VerifiersConfig) -> None:
    environment = VerifiersEnvironment(own)
    problem = environment.problem("train", 9)
    right = environment.judge(problem, problem.reference)
    assert (right.reward, right.feedback) == (1, ("Correct.",))
    assert right.subscores == {"right": 1, "short": 1}
    short = environment.judge(problem, "no")
    assert short.reward == 0.25, "0.5 of 1.5 + 0.5"
    spaced = environment.judge(problem, "no no")
    assert spaced.reward == 0, "the penalty takes what the other score gave"
    assert "The penalty spaces is 1; 0 is best." in spaced.feedback
    assert "The score right is 0 of 1." in short.feedback
    assert short.feedback[0] == "Count once more."
    assert not any(s.startswith("It is") for s in short.feedback), "it holds the answer"
    assert environment.solution(problem) == problem.reference


@needed
def test_a_pool_is_judged_without_the_rows(own: VerifiersConfig, tmp_path: Path) -> None:
    live = VerifiersEnvironment(own)
    build_pools(live, tmp_path / "sums", {"train": 4, "validation": 1, "test": 1})
    pooled = make_environment(own, str(tmp_path))
    assert isinstance(pooled, PooledEnvironment)
    problem = pooled.problem("train", 1)
    assert problem == live.problem("train", 1)
    assert pooled.judge(problem, problem.reference).reward == 1


@needed
def test_several_turns_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_turns.py").write_text(SEVERAL_TURNS[is_classic()])
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'own-turns' .*a rollout here is one completion"):
        VerifiersEnvironment(VerifiersConfig(id="own-turns"))


@needed
def test_an_unknown_environment_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'no-such-one': verifiers cannot load .*install"):
        VerifiersEnvironment(VerifiersConfig(id="no-such-one"))


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    environment = {"type": "verifiers", "id": "gsm8k"}
    with pytest.raises(NotHere, match=r"pip install 'fst-lab\[verifiers\]'"):
        make_environment(RunConfig.model_validate({"environment": environment}).environment)  # type: ignore[arg-type]
    config = tiny_config(environment=environment)
    with pytest.raises(NotHere):
        preflight(config)
    assert any("fst-lab[verifiers]" in note for note in preflight(config, plan_only=True))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As much of the classic package as loading an environment touches."""
    package: Any = ModuleType("verifiers")
    package.SingleTurnEnv = type("SingleTurnEnv", (), {})
    package.ToolEnv = type("ToolEnv", (), {})
    package.State = dict
    monkeypatch.setitem(sys.modules, "verifiers", package)
    monkeypatch.delitem(sys.modules, RUBRICS, raising=False)
    yield package
    sys.modules.pop(RUBRICS, None)


@pytest.mark.parametrize(
    ("kind", "tools", "groups", "said"),
    [
        ("ToolEnv", (), False, "is a ToolEnv, which takes several turns or tools"),
        ("SingleTurnEnv", ("search",), False, "offers tools"),
        ("SingleTurnEnv", (), True, "compare the completions of a group"),
    ],
)
def test_what_one_completion_cannot_give_is_refused(
    stand_in: Any, kind: str, tools: tuple[str, ...], groups: bool, said: str
) -> None:
    environment = getattr(stand_in, kind)()
    environment.tool_defs = tools
    environment.rubric = SimpleNamespace(has_group_rewards=groups)
    stand_in.load_environment = lambda name, **args: environment
    with pytest.raises(ConfigError, match=said):
        VerifiersEnvironment(VerifiersConfig(id="theirs"))


def test_an_environment_that_fails_to_load_is_one_sentence(stand_in: Any) -> None:
    def load(name: str, **args: Any) -> None:
        raise RuntimeError(f"no key {args['key']}")

    stand_in.load_environment = load
    with pytest.raises(ConfigError, match=r"'theirs': verifiers cannot load it \(no key K\)"):
        VerifiersEnvironment(VerifiersConfig(id="theirs", args={"key": "K"}))


@pytest.mark.parametrize(
    ("total", "full", "reward"), [(1.0, 2.0, 0.5), (3.0, 2.0, 1.0), (-1.0, 2.0, 0.0)]
)
def test_the_reward_is_a_share_of_full_marks(total: float, full: float, reward: float) -> None:
    assert reward_of(Scored(total, full, {}, {})) == reward


def test_no_positive_weight_is_refused() -> None:
    with pytest.raises(DataError, match="no score a positive weight"):
        reward_of(Scored(1.0, 0.0, {"turns": 1.0}, {"turns": 0.0}))


def test_scores_that_cost_nothing_are_not_told() -> None:
    scores = {"right": 1.0, "style": 0.3333, "turns": 7.0, "noise": 0.0}
    weights = {"right": 1.0, "style": 1.0, "turns": 0.0, "noise": -1.0}
    assert list(sentences(Scored(0, 2, scores, weights))) == ["The score style is 0.33 of 1."]


def test_prompts_are_read_as_chats() -> None:
    assert chat("e:1", "Hi") == ({"role": "user", "content": "Hi"},)
    given = [{"role": "system", "content": "old"}, SimpleNamespace(role="user", content="Hi")]
    assert [m["content"] for m in chat("e:1", given)] == ["old", "Hi"]
    assert [m["content"] for m in chat("e:1", given, "new")] == ["new", "Hi"]
    with pytest.raises(DataError, match="e:1: a message is no text"):
        chat("e:1", [{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(DataError, match="e:1: the prompt does not end with a user's message"):
        chat("e:1", [{"role": "assistant", "content": "Hi"}])


def test_messages_are_texts() -> None:
    assert as_messages(" a ") == ("a",)
    assert as_messages(["a", "", 3, "b"]) == ("a", "b")
    assert as_messages({"a": 1}) == () == as_messages(None)


def test_coroutines_share_one_loop_and_raise_here() -> None:
    import asyncio

    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def fail() -> None:
        raise KeyError("gone")

    async def within() -> bool:
        return wait_for(loop()) is not asyncio.get_running_loop()

    assert wait_for(loop()) is wait_for(loop())
    assert asyncio.run(within()), "also where the caller runs a loop of its own"
    failing: Coroutine[Any, Any, None] = fail()
    with pytest.raises(KeyError, match="gone"):
        wait_for(failing)
