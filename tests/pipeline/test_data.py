"""The problem pools that git vouches for are those the code makes today."""

from pathlib import Path

from fst_core.config import load_config
from fst_core.environments.pools import check_pools
from tests.unit.commands import call

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "tiny" / "demo.toml"


def test_the_demos_pools_are_those_of_the_tracked_manifest(tmp_path: Path) -> None:
    config, _ = load_config(DEMO)
    assert call("data", "build", DEMO, "--out", tmp_path).code == 0
    check_pools(tmp_path, ROOT / "data.manifest.json")
    rows = (tmp_path / "directives" / "train.jsonl").read_text().splitlines()
    assert len(rows) == config.loop.steps * config.loop.problems_per_step
