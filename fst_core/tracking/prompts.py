"""Contexts as versions of one prompt in MLflow's Prompt Registry, for every run that evolves them.

A context becomes a version when it first is one of the K contexts that a fast phase leaves; a tag
with its id says so, and a context whose tag is there is never registered again. MLflow itself
would: it makes a second version of the same text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.entities.model_registry import PromptVersion

from fst_core.journal import Event
from fst_core.lineage import mean_score
from fst_core.records import content_id
from fst_core.tracking.metrics import MAX_TAG_CHARACTERS, cut
from fst_core.tracking.runs import KEY_TAG

CONTEXT_TAG = "fst.context"
"""On a version: the id of its context."""
FINAL_TAG = "fst.in_final_population"
"""On a version: "yes" once the run has ended with it in its population, else "no"."""
COMPONENT_TAG = "fst.component."
"""On a version, with a component's name: its text, where the context is made of several."""
RUN_ID_TAG = "fst.run_id"
EXPERIMENTS_TAG = "_mlflow_experiment_ids"
"""MLflow's own: in which experiments a prompt is listed, as ",1,2,"."""
LINKED_TAG = "mlflow.linkedPrompts"
"""MLflow's own: on a run, the versions of prompts its page links to, as JSON."""
BEST_ALIAS = "best"
"""Points at the first slot of the newest population."""

MAX_TEMPLATE_CHARACTERS = 100_000
MAX_NAME_CHARACTERS = 200
PAGE = 200
NOTE = (
    "Contexts (system prompts) of one run. A backslash between two braces of a text is not part "
    'of the context: it keeps MLflow from reading variables. Version "best" leads the newest '
    "population."
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A context as the first fast phase that kept it left it."""

    context: Mapping[str, Any]
    """The context's record: text, parents, cycle, operator."""
    cycle: int
    step: int
    """Slow steps done before that fast phase."""
    slots: tuple[int, ...]
    anchor_mean: float | None
    """Mean reward on the cycle's anchors, in [0, 1]."""

    @property
    def id(self) -> str:
        return content_id(self.context["text"])


def escape(text: str) -> str:
    """A text in which MLflow finds neither variables nor Jinja: "{{x}}" becomes "{\\{x}\\}".

    One backslash goes between any two characters of "{{", "{%", "}}" and "%}", and one more where
    backslashes stand between them already; everything else stays. `unescape` is the inverse.
    """
    return re.sub(r"\{(?=\\*[{%])|[}%](?=\\*\})", r"\g<0>\\", text)


def unescape(template: str) -> str:
    """The context's text from what `escape` made of it."""
    return re.sub(r"(\{)\\(?=\\*[{%])|([}%])\\(?=\\*\})", r"\1\2", template)


def prompt_name(experiment: str, folder: str, key: str) -> str:
    """Name of a run's prompt: EXPERIMENT-FOLDER-KEY-contexts, in characters MLflow accepts.

    Args:
        experiment: Name of the study.
        folder: Name of the run's folder.
        key: Identity of the run; tells apart two runs that had the same folder, one after another.
    """
    readable = re.sub(r"[^a-zA-Z0-9_.-]", "_", f"{experiment}-{folder}")[:MAX_NAME_CHARACTERS]
    return f"{readable}-{key[:8]}-contexts"


def register_contexts(client: MlflowClient, run: Run, events: Sequence[Event]) -> int:
    """Make a version of every context that lacks one, and mark the newest or final population.

    Args:
        run: The MLflow run of the journal.
        events: The journal's effective events, as far as they may be sent.
    Returns:
        How many versions were made; 0 without a fast phase.
    """
    found = snapshots(events)
    if not found:
        return 0
    newest = _newest(events)
    final = newest if any(event["kind"] == "end" for event in events) else []
    config = next(event["config"] for event in events if event["kind"] == "run")
    name = prompt_name(config["name"], run.info.run_name, run.data.tags[KEY_TAG])
    _open_prompt(client, name, run)
    versions = _versions(client, name)
    absent = [snapshot for snapshot in found if snapshot.id not in versions]
    if absent:
        mine = {_register(client, name, run, s, s.id in final) for s in absent}
        versions = _without_doubles(client, name, mine)
    for context_id in final:
        if versions[context_id].tags.get(FINAL_TAG) != "yes":
            version = versions[context_id].version
            client.set_prompt_version_tag(name, version, FINAL_TAG, "yes")
    client.set_prompt_alias(name, BEST_ALIAS, versions[newest[0]].version)
    linked = [{"name": name, "version": str(versions[i].version)} for i in newest]
    client.set_tag(run.info.run_id, LINKED_TAG, json.dumps(linked))
    return len(absent)


def snapshots(events: Sequence[Event]) -> list[Snapshot]:
    """Every context that was ever one of a population's slots, in order of appearance."""
    seen: dict[str, Snapshot] = {}
    for event in events:
        if event["kind"] == "fast":
            for snapshot in _slots_of(event):
                seen.setdefault(snapshot.id, snapshot)
    return list(seen.values())


def _slots_of(event: Event) -> list[Snapshot]:
    """The distinct contexts of one fast phase's population, by first slot."""
    population = event["evolution"]["population"]
    contexts, scores = population["contexts"], population["scores"]
    texts = [context["text"] for context in contexts]
    return [
        Snapshot(
            context=contexts[slot],
            cycle=event["cycle"],
            step=event["step"],
            slots=tuple(i for i, other in enumerate(texts) if other == text),
            anchor_mean=mean_score(scores[slot]) if scores else None,
        )
        for slot, text in enumerate(texts)
        if text not in texts[:slot]
    ]


def _newest(events: Sequence[Event]) -> list[str]:
    """Context ids of the last fast phase's population, best first, each once."""
    last = next(event for event in reversed(events) if event["kind"] == "fast")
    return [snapshot.id for snapshot in _slots_of(last)]


def _open_prompt(client: MlflowClient, name: str, run: Run) -> None:
    """Make the prompt where it is not; a prompt of a run that was made anew is made anew too."""
    found = next(iter(client.search_prompts(f"name = '{name}'")), None)
    if found is not None and found.tags.get(RUN_ID_TAG) == run.info.run_id:
        return
    if found is not None:
        client.delete_prompt(name)
    tags = {
        **{tag: run.data.tags[tag] for tag in ("fst.arm", "fst.seed", KEY_TAG)},
        RUN_ID_TAG: run.info.run_id,
        EXPERIMENTS_TAG: f",{run.info.experiment_id},",
    }
    client.create_prompt(name, NOTE, tags)


def _all_versions(client: MlflowClient, name: str) -> list[PromptVersion]:
    """Versions of a prompt that stand for contexts, oldest first."""
    found: list[PromptVersion] = []
    token: str | None = None
    while True:
        page = client.search_prompt_versions(name, PAGE, token)
        found += [version for version in page if CONTEXT_TAG in version.tags]
        token = page.token
        if not token:
            return sorted(found, key=lambda version: int(version.version))


def _versions(client: MlflowClient, name: str) -> dict[str, PromptVersion]:
    """The first version of each context, by context id."""
    found: dict[str, PromptVersion] = {}
    for version in _all_versions(client, name):
        found.setdefault(version.tags[CONTEXT_TAG], version)
    return found


def _register(client: MlflowClient, name: str, run: Run, snapshot: Snapshot, final: bool) -> int:
    """Make a context's version; returns its number."""
    template = escape(snapshot.context["text"])
    whole = f"contexts/cycle-{snapshot.cycle:03d}.json"
    tags = {
        CONTEXT_TAG: snapshot.id,
        "fst.cycle": str(snapshot.cycle),
        "fst.step": str(snapshot.step),
        "fst.slots": " ".join(map(str, snapshot.slots)),
        "fst.operator": snapshot.context["operator"],
        "fst.parents": " ".join(snapshot.context["parents"]) or "–",
        "fst.anchor_mean": _mean_text(snapshot.anchor_mean),
        FINAL_TAG: "yes" if final else "no",
        **{tag: run.data.tags[tag] for tag in ("fst.arm", "fst.seed")},
        RUN_ID_TAG: run.info.run_id,
        **{
            f"{COMPONENT_TAG}{component}": cut(text, MAX_TAG_CHARACTERS, whole)
            for component, text in snapshot.context.get("parts", {}).items()
        },
    }
    shown = cut(template, MAX_TEMPLATE_CHARACTERS, whole)
    return int(client.create_prompt_version(name, shown, _message(snapshot), tags).version)


def _message(snapshot: Snapshot) -> str:
    """What `git log --oneline` would say of a context."""
    slots, parents = snapshot.slots, snapshot.context["parents"]
    where = f"slot{'s' if len(slots) > 1 else ''} {', '.join(map(str, slots))}"
    origin = f"{snapshot.context['operator']}{' of ' if parents else ''}{' and '.join(parents)}"
    mean = _mean_text(snapshot.anchor_mean)
    return f"cycle {snapshot.cycle}, {where}: {origin}; anchor mean {mean}"


def _mean_text(mean: float | None) -> str:
    return "–" if mean is None else f"{mean:.3f}"


def _without_doubles(client: MlflowClient, name: str, mine: set[int]) -> dict[str, PromptVersion]:
    """Versions by context id, after removing those of mine that another machine made first."""
    first = _versions(client, name)
    kept = {int(version.version) for version in first.values()}
    for version in sorted(mine - kept):
        client.delete_prompt_version(name, str(version))
    return first
