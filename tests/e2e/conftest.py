"""One lab for all tests of a session: its servers are up, the deployments are on them."""

import sys
from collections.abc import Iterator

import pytest

from tests.e2e.lab import Lab, opened


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="session")
def lab(servers: Lab) -> Lab:
    servers.run(sys.executable, "-m", "infra.deploy")
    return servers
