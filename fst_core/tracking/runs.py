"""The runs of an experiment in MLflow: seeds under arms, found by what they are, never doubled."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Param, Run
from mlflow.exceptions import MlflowException

from fst_core.config.flat import flatten
from fst_core.home import place_of, study_place_of
from fst_core.journal import Event, effective
from fst_core.provenance import arm_settings, config_hash
from fst_core.records import content_id
from fst_core.tracking.metrics import MAX_TAG_CHARACTERS, cut, metric_key, milliseconds

KEY_TAG = "fst.key"
"""Identity of a run: a hash of experiment, folder name, config and the journal's first moment."""
ARM_KEY_TAG = "fst.arm_key"
"""On a seed's run: the identity of its arm's run."""
PARENT_TAG = "mlflow.parentRunId"
PLACE_TAG = "mlflow.source.name"
"""MLflow's own, shown in its lists: where below runs/ a run is, or the study whose numbers the run
of an arm or a study holds. It tells apart what has one name: the same study of two nights."""
STEP = " > "
"""Between the names of a place; of a path with slashes, MLflow's lists show the last name alone."""
SYNCED_TAG = "fst.synced_seq"
"""Last journal position whose metrics and artifacts have all been sent."""

MAX_PARAMS = 100
MAX_PARAM_CHARACTERS = 6000
MAX_DIGEST_CHARACTERS = 36
MEASURING = frozenset({"fast", "slow", "evaluation", "suite", "quadrant", "end"})


def experiment_id_of(client: MlflowClient, uri: str, name: str) -> str:
    """Id of the experiment of a name, which is made where there is none."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, _artifact_location(uri, name))
        except MlflowException:  # another machine may have made it just now
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id


def sqlite_address(file: Path) -> str:
    """The address of a SQLite file, whose name may hold what means something in addresses."""
    return f"sqlite:///{str(file).replace('%', '%25').replace('?', '%3F')}"


def sqlite_file(uri: str) -> Path:
    """The file of a SQLite address."""
    return Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0]))


def _artifact_location(uri: str, experiment: str) -> str | None:
    """mlartifacts/ beside a SQLite file; a server decides for itself."""
    if not uri.startswith("sqlite:///"):
        return None
    database = sqlite_file(uri).absolute()
    safe = re.sub(r"[^\w.-]", "_", experiment).lstrip(".")
    return (database.parent / "mlartifacts" / f"{safe}-{content_id(experiment)}").as_uri()


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a run is found by, and what it is made with where there is none."""

    experiment_id: str
    key: str
    """Value of its KEY_TAG."""
    name: str
    start_ms: int | None
    """Unix milliseconds; None for now."""
    tags: Mapping[str, str]


def _find(client: MlflowClient, identity: RunIdentity) -> Run | None:
    found = client.search_runs([identity.experiment_id], f"tags.`{KEY_TAG}` = '{identity.key}'")
    return min(found, key=lambda run: (run.info.start_time, run.info.run_id), default=None)


def find_or_create(client: MlflowClient, identity: RunIdentity) -> Run:
    """The run of an identity, which is made where there is none."""
    found = _find(client, identity)
    if found is not None:
        return found
    tags = {**identity.tags, KEY_TAG: identity.key}
    tags = {tag: cut(value, MAX_TAG_CHARACTERS) for tag, value in tags.items()}
    mine = client.create_run(
        identity.experiment_id, identity.start_ms, tags, run_name=identity.name
    )
    first = _find(client, identity) or mine
    if first.info.run_id != mine.info.run_id:  # a machine without our lock created one as well
        client.delete_run(mine.info.run_id)
    return first


def open_run(
    client: MlflowClient, uri: str, run_dir: Path, started: Event, events: Sequence[Event]
) -> Run:
    """The MLflow run of a journal, under its arm's run; deleted and made anew if it went back."""
    folder = run_dir.name
    config, name, start_ms = started["config"], started["config"]["name"], milliseconds(started)
    experiment_id = experiment_id_of(client, uri, name)
    arm_key = content_id(name, "arm", config_hash(arm_settings(config)))
    tags = {**arm_tags(config["arm"]), PLACE_TAG: place_text(study_place_of(run_dir.parent))}
    arm = find_or_create(client, RunIdentity(experiment_id, arm_key, config["arm"], start_ms, tags))
    key = run_key(folder, started, events)
    tags = {
        PARENT_TAG: arm.info.run_id,
        ARM_KEY_TAG: arm_key,
        PLACE_TAG: place_text(place_of(run_dir)),
    }
    tags |= _seed_tags(started)
    identity = RunIdentity(experiment_id, key, folder, start_ms, tags)
    run = find_or_create(client, identity)
    if _went_back(events, synced_seq(run)):
        client.delete_run(run.info.run_id)
        run = find_or_create(client, identity)
    return put_under(client, run, arm.info.run_id, arm_key)


def run_key(folder: str, started: Event, events: Sequence[Event]) -> str:
    """Identity of a journal's run."""
    config = started["config"]
    return content_id(config["name"], folder, config_hash(config), repr(events[0]["time"]))


def find_run(
    client: MlflowClient, folder: str, started: Event, events: Sequence[Event]
) -> Run | None:
    """The MLflow run of a journal; None where there is none yet."""
    experiment = client.get_experiment_by_name(started["config"]["name"])
    if experiment is None:
        return None
    key = run_key(folder, started, events)
    return _find(client, RunIdentity(experiment.experiment_id, key, folder, None, {}))


def put_under(client: MlflowClient, run: Run, parent_id: str, arm_key: str) -> Run:
    """A seed's run with its arm's run as parent, which another process may have made anew."""
    place = {PARENT_TAG: parent_id, ARM_KEY_TAG: arm_key}
    wrong = {tag: value for tag, value in place.items() if run.data.tags.get(tag) != value}
    for tag, value in wrong.items():
        client.set_tag(run.info.run_id, tag, value)
    return client.get_run(run.info.run_id) if wrong else run


def place_text(place: str) -> str:
    """A path below runs/ as MLflow's lists show the whole of it."""
    return place.replace("/", STEP)


def tell_place(client: MlflowClient, run: Run, place: str) -> None:
    """Say on the run of an arm or a study in which study the numbers are that it holds."""
    if run.data.tags.get(PLACE_TAG) != place:
        client.set_tag(run.info.run_id, PLACE_TAG, cut(place, MAX_TAG_CHARACTERS))


def arm_tags(arm: str) -> dict[str, str]:
    """Tags of an arm's run."""
    return {"fst.level": "arm", "fst.arm": arm}


def _seed_tags(started: Event) -> dict[str, str]:
    config, git = started["config"], started.get("git")
    return {
        "fst.level": "seed",
        "fst.arm": config["arm"],
        "fst.seed": str(config["seed"]),
        "fst.data": json.dumps(started.get("data") or {}, sort_keys=True),
        "fst.versions": json.dumps(started.get("versions") or {}, sort_keys=True),
        "fst.device": started.get("device", ""),
        "mlflow.note.content": config.get("why", ""),
        **({"mlflow.source.git.commit": git} if git else {}),
    }


def synced_seq(run: Run) -> int:
    """The last journal position that was wholly sent; -1 before the first."""
    return int(run.data.tags.get(SYNCED_TAG, -1))


def _went_back(events: Sequence[Event], synced: int) -> bool:
    """Whether a measurement that was sent has since been rewound."""
    then = {e["seq"] for e in effective(list(events[: synced + 1])) if e["kind"] in MEASURING}
    return not then <= {event["seq"] for event in effective(list(events))}


def set_status(client: MlflowClient, run: Run, ended: Event | None, last: Event | None) -> None:
    """FINISHED at the end event; FAILED if told to be final without one; else RUNNING."""
    stop = ended or last
    status = "FINISHED" if ended else ("FAILED" if last else "RUNNING")
    if run.info.status == status:
        return
    if stop is None:
        client.update_run(run.info.run_id, status=status)
        return
    client.set_terminated(run.info.run_id, status, milliseconds(stop))
    client.set_terminated(run.data.tags[PARENT_TAG], "FINISHED", milliseconds(stop))


def log_settings(client: MlflowClient, run: Run, started: Event) -> None:
    """Parameters of a run and of its arm, and data sets; all are unchanged by a second call."""
    log_params(client, run.info.run_id, flatten(started["config"]))
    log_params(client, run.data.tags[PARENT_TAG], flatten(arm_settings(started["config"])))
    environment = started["config"]["environment"]
    name = str(environment.get("name") or environment.get("dataset") or environment["type"])
    source = json.dumps({"environment": environment, "data": started.get("data") or {}})
    inputs = [
        DatasetInput(
            Dataset(f"{name}-{split}", digest[:MAX_DIGEST_CHARACTERS], "code", source),
            [InputTag("mlflow.data.context", split)],
        )
        for split, digest in (started.get("problems") or {}).items()
    ]
    if inputs:
        client.log_inputs(run.info.run_id, datasets=inputs)


def log_params(client: MlflowClient, run_id: str, settings: Mapping[str, str]) -> None:
    """Write settings as parameters of a run, by dotted name."""
    params = [
        Param(metric_key(name), cut(value, MAX_PARAM_CHARACTERS))
        for name, value in settings.items()
    ]
    for start in range(0, len(params), MAX_PARAMS):
        client.log_batch(run_id, params=params[start : start + MAX_PARAMS])
