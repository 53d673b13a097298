"""From config to slow part; torch and trl load here, on use."""

from fst_core.config import NoSlow
from fst_core.config.method import SlowSettings
from fst_core.methods import SLOW, load
from fst_core.slow.base import SlowPart, SlowTools


def make_none(settings: NoSlow, tools: SlowTools) -> SlowPart | None:
    """None: weights stay as they are."""
    return None


def make_slow(settings: SlowSettings, tools: SlowTools) -> SlowPart | None:
    """The slow part a run's `slow` table asks for; None where weights stay as they are."""
    if not tools.run.loop.steps:
        return None
    part: SlowPart | None = load(SLOW[settings.type].make)(settings, tools)
    return part
