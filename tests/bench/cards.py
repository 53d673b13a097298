"""Does a run on several cards compute what a run on one computes, and how much faster?

    python tests/bench/cards.py --out DIR                               (2 GPUs, SmolLM2-135M)
    python tests/bench/cards.py --out DIR --policy tiny --device cpu    (a dry run)

Each run is a launch of its own, of the real command line. Checked: recorded rollouts give the same
losses on one card and on several; a short live run has finite losses and one population on all
ranks; an error on one rank stops all. Measured: weak scaling of the slow step. Under torchrun,
rank 0 does this and the other ranks end at once.
"""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FP32_TOLERANCE = 1e-3
"""Largest relative difference of a step's loss, DDP against one card, both float32."""
BF16_TOLERANCE = 2e-2
"""The same for FSDP with bfloat16 weights against one card under bfloat16 autocast."""
LAUNCHER_ENVIRONMENT = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "TORCHELASTIC",
)

POLICIES = {
    "tiny": (
        "configs/tiny/smoke.toml",
        [
            "environment.required=[]",
            "loop.problems_per_step=8",
            "slow.micro_batch=8",
            "slow.learning_rate=1e-3",
        ],
    ),
    "smollm2": ("configs/smollm2/gpu.toml", ["policy.max_new_tokens=64", "slow.micro_batch=128"]),
}
SLOW_ONLY = [
    "evaluation.every=0",
    "evaluation.problems=1",
    "evaluation.samples=1",
    "evaluation.kl=false",
    "evaluation.ends=false",
    "evaluation.suites=[]",
]


def launch(
    words: Sequence[str], processes: int = 1, fsdp: bool = False, seconds: float = 550
) -> subprocess.CompletedProcess[str]:
    """Run this file's `work` in so many processes; words are its options, then fst's behind "--".

    Raises:
        subprocess.TimeoutExpired: if it hangs.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_ENVIRONMENT)}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(paths)}
    environment |= fsdp_environment() if fsdp else {}
    command = [sys.executable, str(Path(__file__).resolve()), "work", *words]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        command = [*torchrun, "--nproc-per-node", str(processes), *where, *command[1:]]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )


def fsdp_environment() -> dict[str, str]:
    """What `accelerate launch` sets for infra/accelerate/fsdp.yaml."""
    settings = yaml.safe_load((ROOT / "infra/accelerate/fsdp.yaml").read_text())["fsdp_config"]
    return {
        "ACCELERATE_USE_FSDP": "true",
        **{
            key.upper(): str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in settings.items()
        },
    }


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Events of one kind in a run's journal."""
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def losses(folder: Path) -> list[float]:
    """The loss of every slow step of a run."""
    return [event["metrics"]["slow/loss"] for event in events(folder, "slow")]


def difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Largest |a - b| over steps, relative to |b|, or to the mean |b| where b is smaller.

    Raises:
        ValueError: if there was nothing to learn from.
    """
    scale = statistics.mean(map(abs, theirs))
    if not scale:
        raise ValueError("every loss is 0, so nothing is compared")
    return max(abs(a - b) / max(abs(b), scale) for a, b in zip(ours, theirs, strict=True))


# One process of a run: the real command line with a few ears in it


class Recorded:
    """An engine that repeats completions by their rollout's seed, or notes those of another."""

    def __init__(self, engine: Any, known: dict[int, Any], replay: bool):
        self.engine, self.known, self.replay = engine, known, replay
        self.rollouts = self.calls = self.tokens = 0

    def sync(self, version: int) -> None:
        """See `fst_core.policy.base.Engine`."""
        self.engine.sync(version)

    def generate(self, prompts: Any, seeds: Sequence[int], sampling: Any) -> list[Any]:
        """See `fst_core.policy.base.Engine`."""
        if not self.replay:
            done = self.engine.generate(prompts, seeds, sampling)
            self.known.update(zip(seeds, done, strict=True))
        return [self.known[seed] for seed in seeds]


def work(options: argparse.Namespace) -> None:
    """One process of a launch."""
    from fst_core.quiet import settle_environment

    settle_environment()
    from fst_core import cli
    from fst_core.policy import language_model
    from fst_core.records import completion_from_json, to_json
    from fst_core.slow.callbacks import RewardByJudge
    from fst_core.slow.group import GroupSlow

    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpu()
    known: dict[int, Any] = {}
    if options.replay:
        recorded = json.loads(Path(options.replay).read_text())
        known.update({int(seed): completion_from_json(done) for seed, done in recorded.items()})
    if options.replay or options.record:
        make = language_model.make_engine
        language_model.make_engine = lambda *given: Recorded(  # type: ignore[assignment]
            make(*given), known, bool(options.replay)
        )
    notes: list[dict[str, Any]] = []
    GroupSlow.step = noting(GroupSlow.step, notes)  # type: ignore[method-assign]
    if options.one_engine:
        language_model.at_server = lambda config: True
    if options.fail is not None:
        RewardByJudge.__call__ = failing(RewardByJudge.__call__, options.fail)  # type: ignore[method-assign]
    try:
        cli.main(options.words)
    except SystemExit as end:  # typer's way to end, well or not
        if end.code:
            raise
    if options.record:
        recorded = {seed: to_json(done) for seed, done in known.items()}
        Path(options.record).write_text(json.dumps(recorded))
    if options.notes and os.environ.get("RANK", "0") == "0":
        Path(options.notes).write_text(json.dumps(notes))


def shard_on_cpu() -> None:
    """Have accelerate shard on CPUs as it does on GPUs, for a dry run: it leaves them to DDP."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    make = AcceleratorState.__init__

    def make_sharded(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        if self.distributed_type is DistributedType.MULTI_CPU and named.get("fsdp_plugin"):
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            if self._mixed_precision != "no":
                named["fsdp_plugin"].set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = named["fsdp_plugin"]

    AcceleratorState.__init__ = make_sharded  # type: ignore[method-assign]


def noting(step: Callable[..., Any], notes: list[dict[str, Any]]) -> Callable[..., Any]:
    """The same step; notes every rank's population, and whether the weights are sharded."""
    import torch
    from accelerate.utils import gather_object
    from torch.distributed.tensor import DTensor

    def noted(self: Any, population: Any, problems: Any) -> Any:
        report = step(self, population, problems)
        seen = [c.id for c in self.trainer.population.contexts]
        cuda = torch.cuda.is_available()
        notes.append(
            {
                "populations": gather_object([seen]),
                "sharded": isinstance(next(self.policy.model.parameters()), DTensor),
                "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0,
            }
        )
        return report

    return noted


def failing(judge: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The same reward function; it raises on rank 1 in step number `at` (from 0)."""

    def judged(self: Any, *given: Any, **named: Any) -> Any:
        if os.environ.get("RANK") == "1" and self.trainer.state.global_step == at:
            from fst_core.rollouts import JudgeError

            raise JudgeError("a judge failed on purpose")
        return judge(self, *given, **named)

    judged.__name__ = "judge"
    return judged


# The checks


class Bench:
    """Launches of one policy on one kind of device, each in a folder of its own."""

    def __init__(self, options: argparse.Namespace):
        self.out = Path(options.out).resolve()
        self.cards, self.steps = options.cards, options.steps
        self.config, self.settings = POLICIES[options.policy]
        self.settings = [*self.settings, f"policy.device={options.device}"]

    def run(
        self, name: str, arm: str, settings: Sequence[str], *words: str, cards: int, fsdp: bool
    ) -> tuple[Path, list[dict[str, Any]]]:
        """One launch: its run folder and the notes of its steps.

        Raises:
            RuntimeError: if it fails.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        notes = self.out / f"{name}.notes.json"
        chosen = [w for s in [*self.settings, *settings, f"name={name}"] for w in ("--set", s)]
        fst = ["run", self.config, "--arm", arm, "--runs", str(self.out), "--no-track", "--fresh"]
        done = launch([*words, "--notes", str(notes), "--", *fst, *chosen], cards, fsdp)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stdout[-1000:]}\n{done.stderr[-3000:]}")
        return self.out / name / f"{arm}-s0", json.loads(notes.read_text())

    def replay(self) -> dict[str, Any]:
        """Losses of recorded rollouts on one card and on several."""
        settings = [*SLOW_ONLY, f"loop.steps={self.steps}"]
        full, half = [*settings, "policy.autocast=false"], [*settings, "policy.autocast=true"]
        recorded = str(self.out / "recorded.json")
        again = ["--replay", recorded]
        one, _ = self.run("one", "rl", full, "--record", recorded, cards=1, fsdp=False)
        ddp, _ = self.run("ddp", "rl", full, *again, cards=self.cards, fsdp=False)
        one_half, _ = self.run("one-bf16", "rl", half, *again, cards=1, fsdp=False)
        fsdp, notes = self.run("fsdp", "rl", half, *again, cards=self.cards, fsdp=True)
        found = {
            "ddp_fp32": difference(losses(ddp), losses(one)),
            "fsdp_bf16": difference(losses(fsdp), losses(one_half)),
        }
        agrees = found["ddp_fp32"] <= FP32_TOLERANCE and found["fsdp_bf16"] <= BF16_TOLERANCE
        sharded = all(note["sharded"] for note in notes)
        return {"relative_difference": found, "sharded": sharded, "passed": agrees and sharded}

    def live(self, fsdp: bool) -> dict[str, Any]:
        """A short run of the whole method: finite losses, one population on all ranks."""
        name = "live-fsdp" if fsdp else "live-ddp"
        settings = ["loop.steps=4", "loop.cycle_steps=2", "evaluation.suites=[]"]
        settings += ["evaluation.problems=8"]
        folder, notes = self.run(name, "fst", settings, cards=self.cards, fsdp=fsdp)
        finite = all(map(math.isfinite, losses(folder)))
        same = all(p == note["populations"][0] for note in notes for p in note["populations"])
        peak = max(note["peak_gib"] for note in notes)
        return {"losses": losses(folder), "peak_gib": peak, "passed": finite and same}

    def failure(self) -> dict[str, Any]:
        """Seconds from the start to the end of a run that fails on rank 1 in its second step."""
        began = time.perf_counter()
        settings = [*SLOW_ONLY, "loop.steps=4"]
        try:
            self.run("failing", "rl", settings, "--fail", "1", cards=self.cards, fsdp=False)
        except RuntimeError as error:
            told = "error: rank 1: a judge failed on purpose" in str(error)
            return {"seconds": time.perf_counter() - began, "passed": told}
        return {"passed": False}

    def scaling(self, repeats: int) -> dict[str, Any]:
        """Seconds of a slow step (generation and update) with the same rows per card."""
        found: dict[int, list[float]] = {1: [], self.cards: []}
        problems = 8 if "tiny" in self.config else 32
        for repeat in range(repeats):
            for cards, seconds in found.items():
                settings = [*SLOW_ONLY, f"loop.steps={self.steps}"]
                settings += [f"loop.problems_per_step={problems * cards}"]
                name = f"weak-{cards}-{repeat}"
                folder, _ = self.run(name, "rl", settings, cards=cards, fsdp=False)
                seconds += [event["seconds"] for event in events(folder, "slow")[3:]]
        one, many = (statistics.median(seconds) for seconds in found.values())
        return {"seconds": {"1": one, str(self.cards): many}, "efficiency": one / many}


def main() -> None:
    """Every check; exit 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command")
    worker = commands.add_parser("work")
    worker.add_argument("--record")
    worker.add_argument("--replay")
    worker.add_argument("--notes")
    worker.add_argument("--fail", type=int)
    worker.add_argument("--one-engine", action="store_true")
    worker.add_argument("words", nargs="*")
    parser.add_argument("--out", default="cards")
    parser.add_argument("--policy", choices=POLICIES, default="smollm2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", help="checks by name, separated by commas; else all")
    options = parser.parse_args()
    if options.command == "work":
        work(options)
        return
    if os.environ.get("RANK", "0") != "0":
        return
    bench = Bench(options)
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "replay": bench.replay,
        "live_ddp": lambda: bench.live(False),
        "live_fsdp": lambda: bench.live(True),
        "failure": bench.failure,
        "weak_scaling": lambda: bench.scaling(options.repeats),
    }
    chosen = options.only.split(",") if options.only else list(checks)
    results: dict[str, Any] = {"cards": options.cards, "policy": options.policy}
    if (bench.out / "cards.json").is_file():  # of checks made before
        results = {**json.loads((bench.out / "cards.json").read_text()), **results}
    for name in chosen:
        results[name] = checks[name]()
        print(f"{name:<14}{json.dumps(results[name])}", flush=True)  # noqa: T201
        (bench.out / "cards.json").write_text(json.dumps(results, indent=1))
    failed = [name for name in chosen if results[name].get("passed") is False]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
