"""What the Prefect server does by itself: runs that died go on, changed data starts a comparison.

docs/how-to/recover.md says how these work together, and what they do not see.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.automations import AutomationCore

SILENCE_SECONDS = 90
"""A run that has given no sign of life for so long is taken for dead: three heartbeats."""
PUT_BACK = 3
"""How often a run that crashed is put back at most. Counted by its starts, tries after an error
among them; one that crashed before its first start stays crashed."""
COMPARED = "compare/compare"
DATA_CHANGED = "fst.data.changed"


def automations(
    deployments: Mapping[str, UUID], silence_seconds: float = SILENCE_SECONDS
) -> list[AutomationCore]:
    """The automations for a set of deployments, whose runs alone they touch.

    Args:
        deployments: ids by name, "FLOW/DEPLOYMENT".
        silence_seconds: after which a run without a heartbeat is taken for dead; at least twice
            the 30 s between two heartbeats, and more than any call that holds the interpreter.
    """
    ours = [f"prefect.deployment.{identifier}" for identifier in deployments.values()]
    wanted = [_silent_is_crashed(ours, silence_seconds), _crashed_is_put_back(ours)]
    if COMPARED in deployments:
        wanted.append(_changed_data_is_compared(deployments[COMPARED]))
    return [AutomationCore.model_validate(automation) for automation in wanted]


def apply_automations(
    client: SyncPrefectClient, wanted: Sequence[AutomationCore]
) -> dict[str, str]:
    """Make the automations on a server, found by name; what became of each: made, changed or kept.

    One that is as it should be is left alone: with an update, the server forgets whose heartbeat
    it was waiting for. Whether an automation is switched on is left to the people who use it.
    """
    return {automation.name: _apply(client, automation) for automation in wanted}


def _apply(client: SyncPrefectClient, wanted: AutomationCore) -> str:
    found = client.read_automations_by_name(wanted.name)
    if not found:
        client.create_automation(wanted)
        return "made"
    for again in found[1:]:
        client.delete_automation(again.id)
    if _settings(found[0]) == _settings(wanted):
        return "kept"
    wanted = wanted.model_copy(update={"enabled": found[0].enabled})
    client.update_automation(found[0].id, wanted)
    return "changed"


def _settings(automation: AutomationCore) -> dict[str, Any]:
    """What an automation says, without what the server adds to it and the order of its sets."""
    fields = {"name", "description", "trigger", "actions"}
    return {
        name: _ordered(value)
        for name, value in automation.model_dump(mode="json", include=fields).items()
    }


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items() if key != "id"}
    if isinstance(value, list):
        return sorted(map(_ordered, value), key=repr)
    return value


def _silent_is_crashed(ours: Sequence[str], silence_seconds: float) -> dict[str, Any]:
    return {
        "name": "fst: silent run is crashed",
        "description": "A run whose heartbeats stop before it has ended is marked as crashed.",
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": _of(ours),
            "for_each": ["prefect.resource.id"],
            # The same event opens the window and is waited for in it: each heartbeat opens the
            # next window. Any change of state, too, means that somebody looks after the run.
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.*"],
            "threshold": 1,
            "within": silence_seconds,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "name": "Crashed",
                "message": f"no heartbeat for {silence_seconds:.0f} s",
            }
        ],
    }


def _crashed_is_put_back(ours: Sequence[str]) -> dict[str, Any]:
    return {
        "name": "fst: crashed run is put back",
        "description": (
            f"A run that crashed goes on from its last checkpoint on any worker, after at most "
            f"{PUT_BACK} starts."
        ),
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "match": {
                "prefect.resource.id": "prefect.flow-run.*",
                "prefect.run-count": [str(starts) for starts in range(1, PUT_BACK + 1)],
            },
            "match_related": _of(ours),
            "for_each": ["prefect.resource.id"],
            "expect": ["prefect.flow-run.Crashed"],
            "threshold": 1,
            "within": 0,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "SCHEDULED",
                "name": "Scheduled",
                "message": "crashed, and put back to go on from its last checkpoint",
            }
        ],
    }


def _changed_data_is_compared(deployment: UUID) -> dict[str, Any]:
    return {
        "name": "fst: changed data is compared",
        "description": "Data that `prepare` found changed starts a comparison on it.",
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "match": {"prefect.resource.id": "fst.data"},
            "expect": [DATA_CHANGED],
            "threshold": 1,
            "within": 0,
        },
        "actions": [
            {
                "type": "run-deployment",
                "source": "selected",
                "deployment_id": str(deployment),
                "parameters": {
                    "data": "data",
                    # A folder for each state of the data: a finished run is never run again.
                    "runs": {
                        "__prefect_kind": "jinja",
                        "template": "runs/data-{{ event.payload['new'] }}",
                    },
                },
            }
        ],
    }


def _of(deployments: Sequence[str]) -> dict[str, Any]:
    return {"prefect.resource.role": "deployment", "prefect.resource.id": list(deployments)}
