"""What tests ask of a lab's servers about flow runs and what these left behind."""

import time
from collections.abc import Callable
from uuid import UUID

import boto3
from mlflow import MlflowClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
)
from prefect.client.schemas.objects import FlowRun

from tests.e2e.lab import Lab


def start(lab: Lab, name: str, **parameters: object) -> UUID:
    """Start a run of a deployment through the API."""
    with lab.client() as client:
        deployment = client.read_deployment_by_name(name)
        return client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id


def first(lab: Lab, name: str, chosen: Callable[[FlowRun], bool], seconds: float) -> FlowRun:
    """The first flow run of a deployment that is chosen, which may be still to come."""
    deadline = time.monotonic() + seconds
    with lab.client() as client:
        wanted = DeploymentFilterId(any_=[client.read_deployment_by_name(name).id])
        while time.monotonic() < deadline:
            runs = client.read_flow_runs(deployment_filter=DeploymentFilter(id=wanted))
            for run in filter(chosen, runs):
                return run
            time.sleep(0.5)
    raise AssertionError(f"no such run of {name} within {seconds:.0f} s")


def children(lab: Lab, parent: UUID) -> dict[str, FlowRun]:
    """The subflow runs of a flow run, by name."""
    mine = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]))
    with lab.client() as client:
        return {run.name: run for run in client.read_flow_runs(flow_run_filter=mine)}


def artifacts(lab: Lab, flow_run_id: UUID) -> dict[str, str]:
    """The data of a flow run's artifacts, by key."""
    mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
    with lab.client() as client:
        found = client.read_artifacts(artifact_filter=mine)
    return {str(artifact.key): str(artifact.data) for artifact in found}


def stored(lab: Lab, prefix: str) -> list[str]:
    """Keys in the lab's bucket below a prefix."""
    client = boto3.client(
        "s3",
        endpoint_url=lab.urls["s3"],
        aws_access_key_id=lab.env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=lab.env["AWS_SECRET_ACCESS_KEY"],
        region_name=lab.env["AWS_DEFAULT_REGION"],
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=lab.bucket, Prefix=prefix)
    return [item["Key"] for page in pages for item in page.get("Contents", ())]


def finished_in_mlflow(lab: Lab, experiment: str, run_name: str) -> list[str]:
    """Ids of an experiment's MLflow runs of a name; all must be finished, with stored journals."""
    client = MlflowClient(lab.urls["mlflow"])
    found = client.get_experiment_by_name(experiment)
    assert found is not None, f"MLflow has no experiment {experiment}"
    runs = client.search_runs([found.experiment_id], f"attributes.run_name = '{run_name}'")
    journals = [key for key in stored(lab, "mlflow/") if key.endswith("journal.jsonl")]
    for run in runs:
        assert run.info.status == "FINISHED"
        assert any(run.info.run_id in key for key in journals)
    return [run.info.run_id for run in runs]
