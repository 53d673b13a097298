"""The problem pools that git vouches for are those the code makes today."""

import shlex
from pathlib import Path

import pytest
import yaml

from fst_core.config import load_config
from fst_core.environments.pools import PooledEnvironment, check_pools
from fst_core.environments.tasks import problems_read
from tests.unit.commands import call

ROOT = Path(__file__).parents[2]
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STUDIES = ("demo", "plasticity", "posthoc", "continual", "ablation")


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pools that the stage `generate` makes."""
    folder = tmp_path_factory.mktemp("pools")
    for command in DVC["stages"]["generate"]["cmd"]:
        program, *words = shlex.split(command.replace("build/pools", str(folder)))
        assert program == "fst"
        words[2] = str(ROOT / words[2])
        assert call(*words).code == 0
    return folder


def test_the_pools_of_the_studies_are_those_of_the_tracked_manifest(pools: Path) -> None:
    """Whatever changes their bytes must also change the manifest: dvc trains on nothing else."""
    check_pools(pools, ROOT / "data.manifest.json")


@pytest.mark.parametrize("study", STUDIES)
def test_no_run_goes_through_its_pool_twice(pools: Path, study: str) -> None:
    config, _ = load_config(ROOT / f"configs/tiny/{study}.toml")
    for environment, read in problems_read(config):
        pool = PooledEnvironment(environment, pools / environment.name)
        assert {split for split, count in read.items() if pool.size(split) < count} == set()
