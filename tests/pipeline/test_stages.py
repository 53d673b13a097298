"""DVC, really run in a clone: what makes which stage stale, and that no stage reads more."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pipeline.clones import clone, commit, run, shrink
from tests.pipeline.stages import Declared, declared

ROOT = Path(__file__).parents[2]
STAGES = declared(ROOT)
TRAINING = {name for name, stage in STAGES.items() if stage.commands[0].startswith("fst run ")}
DEMO, ABLATION = "configs/tiny/demo.toml", "configs/tiny/ablation.toml"

SHOWN = (
    *("__init__", "addresses", "cli", "cli_data", "cli_methods", "cli_options", "cli_run"),
    *("cli_store", "cli_study", "counting", "dropped", "estimators/__init__", "failures", "home"),
    *("hub", "interrupts", "launch", "lineage"),
    *(
        "offline",
        "preflight",
        "processes",
        "progress",
        "provenance",
        "quiet",
        "storage",
        "study",
        "summary",
        "tracked",
    ),
)
"""Code of a run that starts, shows, refuses or sends it, and changes no number of it."""


def of(*patterns: str) -> set[str]:
    """Stages whose names begin so."""
    return {name for name in STAGES if name.startswith(patterns)}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose pools are built and whose other outputs are stand-ins, all up to date."""
    root = clone(tmp_path_factory.mktemp("unchanged"))
    run(root, "dvc", "repro", "data.dvc")
    for stage in STAGES.values():
        for out in stage.outs:
            if not (root / out).exists():
                (root / out).parent.mkdir(parents=True, exist_ok=True)
                (root / out).write_text(f"{out}\n")
    run(root, "dvc", "commit", "--force")
    commit(root, "as if it had run")
    assert stale(root) == set()
    return root


def stale(root: Path) -> set[str]:
    """Stages that something changed for, without what follows from others' outputs."""
    return set(json.loads(run(root, "dvc", "status", "--json").stdout))


@contextmanager
def edited(path: Path, old: str, new: str) -> Iterator[None]:
    """A file in which one piece of text is another for as long as the block."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    yield
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "old", "new", "wanted"),
    [
        (DEMO, "metric_calls = 256", "metric_calls = 128", of("train@gepa", "train@fst")),
        (DEMO, "learning_rate = 5e-4", "learning_rate = 1e-4", of("train@rl", "train@fst")),
        (DEMO, "samples = 4", "samples = 8", of("train@")),
        (DEMO, "\nsteps = 60", "\nsteps = 45", of("train@")),
        (DEMO, '"dashes"]\n\n[policy]', '"upper"]\n\n[policy]', of("train@", "generate")),
        (DEMO, "seeds = [0, 1]", "seeds = [0, 1, 2]", set()),
        (DEMO, "The judge wants", "A judge wants", set()),
        (DEMO, "# The demo", "# A demo", set()),
        ("configs/tiny/plasticity.toml", '"demo/rl-', '"demo/gepa-', of("plasticity@rl")),
        ("configs/tiny/posthoc.toml", "anchors = 16", "anchors = 8", of("posthoc@")),
        ("configs/tiny/continual.toml", "anchors = 16", "anchors = 8", of("continual@fst")),
        (ABLATION, "values = [64, 256]", "values = [64]",
         of("ablation@") - of("ablation@fst")),
        (ABLATION, "\nsize = 4", "\nsize = 2", of("ablation@")),
        ("params.yaml", "seed: 0", "seed: 1", {"base_model"}),
    ],
)  # fmt: skip
def test_a_config_key_makes_stale_the_stages_that_read_it(unchanged, file, old, new, wanted):
    with edited(unchanged / file, old, new):
        assert stale(unchanged) == wanted


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("fst_core/curriculum/stream.py", TRAINING),
        ("fst_core/slow/advantages.py", TRAINING),
        ("fst_core/environments/directives.py", TRAINING | {"generate", "base_model"}),
        ("fst_core/environments/pools.py", TRAINING | {"generate", "check"}),
        ("fst_core/report/html.py", {"report"}),
        ("fst_core/estimators/divergence.py", TRAINING | {"report"}),
        ("fst_core/tracking/runs.py", set()),
        ("flows/compare.py", set()),
        ("data/dots/train.jsonl", of("continual@") | {"check", "data.dvc"}),
        ("data/brackets-told/test.jsonl", of("train@") | {"check", "data.dvc"}),
        ("data.manifest.json", {"check"}),
        ("runs/repro/demo/rl-s0", of("train@rl-0", "plasticity@rl-0", "posthoc@rl-0", "report")),
    ],
)
def test_a_file_makes_stale_the_stages_that_read_it(unchanged, file, wanted):
    with edited(unchanged / file, "\n", "\n\n"):
        assert stale(unchanged) == wanted


WATCH = """
import os, sys
ROOT, LOG = os.environ["WATCHED"] + "/", os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_APPEND)

def watch(event, args):
    if event == "open" and isinstance(args[0], str) and not (args[2] or 0) & os.O_ACCMODE:
        path = os.path.abspath(args[0])
        if path.startswith(ROOT):
            os.write(LOG, (path[len(ROOT):] + "\\n").encode())

sys.addaudithook(watch)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose runs take seconds, with its pools built."""
    root = clone(tmp_path_factory.mktemp("small"))
    shrink(root, {"train": ["fst-0"], "plasticity": ["fst-0"]})
    run(root, "dvc", "repro", "data.dvc")
    return root


def files_read(root: Path, stage: Declared, scratch: Path) -> set[str]:
    """Files of a clone that the commands of a stage open to read, compiled code aside."""
    (scratch / "sitecustomize.py").write_text(WATCH)
    log = scratch / "read.txt"
    log.touch()
    watched = {"WATCHED": str(root), "WATCH_LOG": str(log), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in stage.commands:
        path = f"{scratch}{os.pathsep}{root}"
        run(root, "bash", "-c", command, **watched, PYTHONPATH=path)
    names = {name for name in log.read_text().splitlines() if (root / name).is_file()}
    return {name for name in names if "__pycache__" not in name}


@pytest.mark.parametrize("name", ["train@fst-0", "plasticity@fst-0", "report"])
def test_a_stage_reads_nothing_that_it_does_not_declare(small, tmp_path, name):
    """Beside its own outputs.

    A report takes the config.json beside a journal where there is one, else the same config from
    the journal; its code is not looked at, as `fst` loads it all.
    """
    stage = declared(small)[name]
    own = {str(Path(out).parent) if out.endswith(".jsonl") else out for out in stage.outs}
    allowed = {*stage.deps, *stage.params, *own, *(f"fst_core/{part}.py" for part in SHOWN)}
    if name == "report":
        allowed |= {"fst_core", "runs/repro/demo-plasticity/from-fst-s0/config.json"}
    else:
        allowed |= {"fst_core/tracking"}
    read = files_read(small, stage, tmp_path)
    assert {path for path in read if not within(path, allowed)} == set()
    assert any(within(path, {"data", "runs"}) for path in read)


def within(path: str, allowed: set[str]) -> bool:
    """Whether a path is one of the allowed files or below an allowed folder."""
    return any(path == place or path.startswith(f"{place}/") for place in allowed)
