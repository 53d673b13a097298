"""What loads what: flows stay light, and the rules on imports really fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "trl", "gepa", "mlflow", "pandas")


@pytest.mark.parametrize(
    "module",
    [
        "flows.train",
        "flows.compare",
        "flows.plasticity",
        "flows.continual",
        "flows.ablation",
        "flows.report",
        "flows.prepare",
    ],
)
def test_importing_a_flow_loads_nothing_heavy(module):
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    for folder in ("fst_core", "flows", "tasks"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", root)
    return root


def broken_contracts(root: Path) -> list[str]:
    program = Path(sys.executable).with_name("lint-imports")
    env = {**os.environ, "PYTHONPATH": str(root), "NO_COLOR": "1"}
    line = [program, "--no-cache"]
    done = subprocess.run(line, cwd=root, env=env, capture_output=True, text=True)
    assert "Contracts:" in done.stdout, done.stdout + done.stderr
    assert (done.returncode != 0) == ("BROKEN" in done.stdout)
    return [line.split(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line]


def test_the_code_keeps_every_contract(copy):
    assert broken_contracts(copy) == []


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("fst_core/journal.py", "import tasks.track", "flows -> tasks -> fst_core"),
        ("fst_core/fast/base.py", "import fst_core.slow.base", "Layers of fst_core"),
        ("fst_core/policy/base.py", "import fst_core.session", "Layers of fst_core"),
        ("fst_core/records.py", "import torch", "Records, config and journal"),
        ("tasks/phases.py", "import gepa", "gepa only in fast"),
        ("fst_core/session.py", "import trl", "trl only in slow"),
        ("flows/compare.py", "import vllm", "vllm only in policy"),
        ("tasks/track.py", "import mlflow", "mlflow only in tracking"),
        ("fst_core/checkpoint.py", "import boto3", "boto3 only in storage"),
        ("fst_core/interleave.py", "import prefect", "prefect only in flows and tasks"),
        ("flows/train.py", "import dvc", "dvc nowhere"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(copy, module, line, contract):
    path = copy / module
    before = path.read_text()
    path.write_text(f"{before}\n\ndef late() -> None:\n    {line}\n")
    try:
        broken = broken_contracts(copy)
    finally:
        path.write_text(before)
    assert any(name.startswith(contract) for name in broken), broken
