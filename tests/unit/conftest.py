"""Fixtures of more than one file: MLflow stores."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: creating its tables takes seconds, so it is done once."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(migrated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(migrated, tmp_path / "mlflow.db"))


@pytest.fixture
def uri(database: Path) -> str:
    return f"sqlite:///{database}"
