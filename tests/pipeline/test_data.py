"""The problem pools that git vouches for are those the code makes today."""

from pathlib import Path

from fst_core.config import RunConfig, load_config
from fst_core.environments.pools import check_pools
from fst_core.environments.tasks import problems_read
from tests.unit.commands import call

ROOT = Path(__file__).parents[2]
CONFIGS = [ROOT / f"configs/tiny/{name}.toml" for name in ("demo", "plasticity", "continual")]


def test_the_pools_of_the_studies_are_those_of_the_tracked_manifest(tmp_path: Path) -> None:
    for config in CONFIGS:
        assert call("data", "build", config, "--out", tmp_path).code == 0
    check_pools(tmp_path, ROOT / "data.manifest.json")


def test_a_pool_holds_what_its_runs_read() -> None:
    """A sequence trains each task for its share of the steps; posthoc reads the demo's pool."""
    demo, _ = load_config(ROOT / "configs/tiny/demo.toml")
    posthoc, _ = load_config(ROOT / "configs/tiny/posthoc.toml")
    assert posthoc.environment == demo.environment
    assert posthoc.evaluation.problems <= demo.evaluation.problems
    assert _read(posthoc) == {"directives": 15 * 16}
    suites = dict.fromkeys((suite.name for suite in demo.evaluation.suites), 0)
    assert _read(demo) == {"directives": 60 * 16, **suites}
    ablation, _ = load_config(ROOT / "configs/tiny/ablation.toml")
    assert ablation.environment == demo.environment
    assert ablation.evaluation.problems <= demo.evaluation.problems
    assert _read(ablation) == {"directives": 15 * 16}
    continual, _ = load_config(ROOT / "configs/tiny/continual.toml")
    assert _read(continual) == {"tags": 25 * 16, "dots": 25 * 16, "stars": 25 * 16}


def _read(config: RunConfig) -> dict[str, int]:
    """Train problems by environment."""
    return {environment.name: read["train"] for environment, read in problems_read(config)}
