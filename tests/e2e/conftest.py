"""One lab for all tests of a session: its servers are up, the deployments are on them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest

from infra.servers import ROOT
from tests.e2e.lab import Lab, opened


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="session")
def lab(servers: Lab) -> Lab:
    servers.run(sys.executable, "-m", "infra.deploy")
    return servers


@pytest.fixture(scope="session")
def project_folder() -> Iterator[Path]:
    """A folder inside the project, where alone a deployment's runs may be written."""
    (ROOT / "runs").mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="e2e-", dir=ROOT / "runs", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def project_runs(project_folder: Path) -> Path:
    """A folder of runs for one test."""
    return Path(mkdtemp(dir=project_folder))
