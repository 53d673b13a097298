"""All benches of one config in one process, and the page that comes of them."""

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from fst_core.bench.evolution import bench_evolution
from fst_core.bench.generation import bench_generation, bench_sync
from fst_core.bench.parts import bench_parts, shares
from fst_core.bench.timing import Table
from fst_core.bench.training import bench_steps
from fst_core.config import GepaConfig, PolicyGradient, RunConfig
from fst_core.config.model import ConfigError
from fst_core.policy.device import device_name, pick_device
from fst_core.policy.language_model import LanguageModelPolicy

PARTS = ("generation", "sync", "step", "fast", "parts")


def bench(
    config: RunConfig, wanted: Sequence[str], repeats: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the wanted benches; tables are said as they come.

    Returns: device and versions, and per bench its rows and what else was measured.

    Raises:
        ConfigError: if a wanted bench is of a part that the config does without.
    """
    _refuse_missing_parts(config, wanted)
    found: dict[str, Any] = {"machine": machine(config), "config": config.model_dump(mode="json")}
    made: dict[str, Callable[[], tuple[Table, dict[str, Any]]]] = {
        "generation": lambda: bench_generation(
            LanguageModelPolicy(config.policy),
            config.loop.problems_per_step,
            config.loop.group_size,
            config.contexts.size,
            config.policy.max_new_tokens,
            repeats,
        ),
        "sync": lambda: bench_sync(LanguageModelPolicy(config.policy)),
        "step": lambda: bench_steps(config, repeats),
        "fast": lambda: bench_evolution(config, repeats),
    }
    for name in wanted:
        if name == "parts":
            seconds, about = bench_parts(config)
            found[name] = {"seconds": seconds, **about}
            say(f"### Where the time of a run goes\n\n{shares(seconds)}")
            continue
        table, about = made[name]()
        found[name] = {"rows": table.rows, **about}
        say(f"{table.markdown()}\n{json.dumps(about)}\n")
    return found


def _refuse_missing_parts(config: RunConfig, wanted: Sequence[str]) -> None:
    for name, missing in (
        ("step", not isinstance(config.slow, PolicyGradient)),
        ("fast", not isinstance(config.fast, GepaConfig)),
    ):
        if missing and name in wanted:
            raise ConfigError(
                f"the bench {name} needs a run with that part, which arm {config.arm} is not; "
                "add --arm fst, or name others with --only"
            )


def machine(config: RunConfig) -> dict[str, str]:
    """Device and versions."""
    return {
        "device": device_name(pick_device(config.policy.device)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "trl": trl.__version__,
    }


def open_results(folder: Path) -> Path:
    """The file of a folder for results, made before anything is measured.

    Raises:
        ConfigError: if nothing can be written there.
    """
    path = folder / "bench.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be written ({error.strerror})") from error
    return path


def write(found: dict[str, Any], path: Path) -> None:
    """Everything that was measured, as JSON; earlier benches that are not among it stay."""
    earlier = json.loads(path.read_text() or "{}")
    path.write_text(json.dumps({**earlier, **found}, indent=1) + "\n")
