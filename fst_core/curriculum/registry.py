"""From config to curriculum."""

from fst_core.curriculum.base import Curriculum, StreamTools
from fst_core.methods import CURRICULUM, RETENTION, load


def make_curriculum(tools: StreamTools) -> Curriculum:
    """The curriculum of a run, inside what its `retention` makes of the stream."""
    run = tools.run
    curriculum: Curriculum = load(CURRICULUM[run.curriculum.type].make)(run.curriculum, tools)
    for settings in run.retention:
        if settings.place == "stream":
            curriculum = load(RETENTION[settings.type].make)(settings, tools, curriculum)
    return curriculum
