"""MLflow stores for tests, and what stands in them."""

import sqlite3
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

Rows = list[tuple]


def rows(database: Path, query: str) -> Rows:
    with sqlite3.connect(database) as connection:
        return sorted(connection.execute(query).fetchall())


def metrics(database: Path) -> Rows:
    return rows(database, "SELECT key, timestamp, step, value FROM metrics")


def everything(database: Path) -> dict[str, Rows]:
    """What must not change when the same events are sent again, without MLflow's random ids."""
    return {
        "metrics": metrics(database),
        "runs": rows(database, "SELECT name, status, start_time, end_time FROM runs"),
        "params": rows(database, "SELECT key, value FROM params"),
        "inputs": rows(database, "SELECT source_type, destination_type FROM inputs"),
        "datasets": rows(database, "SELECT name, digest FROM datasets"),
        "tags": rows(
            database,
            "SELECT key, value FROM tags WHERE key LIKE 'fst.%' OR key LIKE 'mlflow.note%'",
        ),
    }


def experiment(client: MlflowClient) -> list[str]:
    return [client.get_experiment_by_name("synthetic").experiment_id]


def by_name(uri: str) -> dict[str, Run]:
    client = MlflowClient(tracking_uri=uri)
    return {run.info.run_name: run for run in client.search_runs(experiment(client))}
