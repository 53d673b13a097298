"""Which events the automations act on, as Prefect's own triggers see them."""

import json
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.settings import PREFECT_API_URL, temporary_settings

from infra import deploy
from infra.automations import PUT_BACK, apply_automations, automations

OURS = {"train/train": uuid4(), "compare/compare": uuid4()}
SILENT, PUT_BACK_NAME, COMPARED = (
    "fst: silent run is crashed",
    "fst: crashed run is put back",
    "fst: changed data is compared",
)


def trigger(name: str) -> EventTrigger:
    (found,) = [one for one in automations(OURS) if one.name == name]
    return EventTrigger.model_validate(found.trigger.model_dump(mode="json"))


def event(name: str, deployment: UUID = OURS["train/train"], run_count: int = 1) -> ReceivedEvent:
    resource = {
        "prefect.resource.id": f"prefect.flow-run.{uuid4()}",
        "prefect.run-count": str(run_count),
    }
    related = {
        "prefect.resource.id": f"prefect.deployment.{deployment}",
        "prefect.resource.role": "deployment",
    }
    return ReceivedEvent(
        occurred=datetime.now(UTC), event=name, resource=resource, related=[related], id=uuid4()
    )


def test_each_heartbeat_waits_for_the_next_and_any_state_ends_the_wait():
    silent = trigger(SILENT)
    beat = event("prefect.flow-run.heartbeat")
    assert silent.covers(beat) and silent.starts_after(beat.event) and silent.expects(beat.event)
    ended = event("prefect.flow-run.Completed")
    assert silent.covers(ended) and silent.expects(ended.event)
    assert not silent.starts_after(ended.event)
    assert not silent.covers(event("prefect.flow-run.heartbeat", deployment=uuid4()))


@pytest.mark.parametrize(
    ("run_count", "acts"), [(0, False), (1, True), (PUT_BACK, True), (PUT_BACK + 1, False)]
)
def test_a_crashed_run_is_put_back_a_few_times(run_count, acts):
    crashed = event("prefect.flow-run.Crashed", run_count=run_count)
    assert trigger(PUT_BACK_NAME).covers(crashed) == acts


def test_runs_of_others_and_other_ends_are_left_alone():
    put_back = trigger(PUT_BACK_NAME)
    assert not put_back.covers(event("prefect.flow-run.Crashed", deployment=uuid4()))
    assert not put_back.covers(event("prefect.flow-run.Failed"))
    assert not put_back.covers(event("prefect.flow-run.Cancelled"))


def test_changed_data_starts_a_comparison_in_a_folder_of_its_own():
    (compared,) = [one for one in automations(OURS) if one.name == COMPARED]
    (action,) = compared.actions
    assert action.deployment_id == OURS["compare/compare"]
    assert action.parameters["data"] == "data"
    assert "event.payload['new']" in json.dumps(action.parameters["runs"])


class Server:
    """Automations as a server keeps them: with ids, and ids in their triggers."""

    def __init__(self) -> None:
        self.kept: dict[UUID, Automation] = {}

    def read_automations_by_name(self, name: str) -> list[Automation]:
        return [one for one in self.kept.values() if one.name == name]

    def create_automation(self, automation: AutomationCore) -> None:
        self.update_automation(uuid4(), automation)

    def update_automation(self, identifier: UUID, automation: AutomationCore) -> None:
        as_sent = automation.model_dump(mode="json", exclude_unset=True)
        as_sent["trigger"]["id"] = str(uuid4())
        self.kept[identifier] = Automation.model_validate({**as_sent, "id": identifier})

    def delete_automation(self, identifier: UUID) -> None:
        del self.kept[identifier]


def test_automations_are_made_once_changed_where_they_differ_and_else_kept():
    server = Server()
    assert set(apply_automations(server, automations(OURS)).values()) == {"made"}
    before = dict(server.kept)
    assert set(apply_automations(server, automations(OURS)).values()) == {"kept"}
    assert server.kept == before
    became = apply_automations(server, automations(OURS, silence_seconds=120))
    assert became == {SILENT: "changed", PUT_BACK_NAME: "kept", COMPARED: "kept"}
    assert server.kept.keys() == before.keys()


def test_one_that_was_switched_off_stays_so():
    server = Server()
    apply_automations(server, automations(OURS))
    (kept,) = server.read_automations_by_name(SILENT)
    server.kept[kept.id] = kept.model_copy(update={"enabled": False})
    apply_automations(server, automations(OURS, silence_seconds=120))
    (kept,) = server.read_automations_by_name(SILENT)
    assert not kept.enabled and kept.trigger.within.total_seconds() == 120


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, r"^error: PREFECT_API_URL is not set.*make services"),
        ("http://127.0.0.1:9/api", r"^error: .*http://127.0.0.1:9/api, does not answer"),
    ],
)
def test_without_a_server_deploy_ends_in_a_sentence(monkeypatch, url, said):
    monkeypatch.setattr("sys.argv", ["deploy"])
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(SystemExit, match=said):
        deploy.main()


def test_a_silence_shorter_than_two_heartbeats_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["deploy", "--silence", "30"])
    with pytest.raises(SystemExit):
        deploy.main()
    assert "a run beats every 30 s" in capsys.readouterr().err
