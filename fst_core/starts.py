"""What a run refuses when it opens, found without opening it: for a plan."""

from pathlib import Path

from fst_core.config import RunConfig
from fst_core.config.model import NotHere
from fst_core.environments.errors import DataAbsent
from fst_core.environments.tasks import Tasks
from fst_core.fast.window import held_problems, refuse_vain_search, room_for_context
from fst_core.policy.chats import planned_chats
from fst_core.ranks import first_weights
from fst_core.session import first_population


def refuse_bad_start(config: RunConfig, folder: Path) -> None:
    """Refuse what the run in a folder would refuse before its first rollout.

    Of a model or problems that are not on this machine, nothing is known yet.

    Raises:
        ConfigError: if a run that it starts from is not there or does not fit, or its search could
            propose nothing.
        ContextTooLong: if the seed context does not fit the model's window.
    """
    population = first_population(config, folder)
    first_weights(config, folder)
    planned = planned_chats(config.policy)
    if planned is None:
        return
    chats, window = planned
    try:
        tasks = Tasks(config)
    except (DataAbsent, NotHere):
        return
    room_for_context(config, tasks, held_problems(config, tasks), chats, window)
    refuse_vain_search(config, population.contexts, chats, window)
