"""What a changed `type` leaves behind: a table of another type begins with its own defaults."""

from collections.abc import Iterator

from fst_core.config import RunConfig
from fst_core.config.model import ConfigModel

TABLES = ("fast", "slow", "curriculum", "policy")


def dropped_settings(written: RunConfig, chosen: RunConfig) -> Iterator[str]:
    """One sentence for each table whose type an arm or an override changed, and what that reset.

    Args:
        written: the run as its file has it, without arm and overrides.
        chosen: the run that was asked for.
    """
    for name in TABLES:
        before, now = getattr(written, name), getattr(chosen, name)
        lost = dict(_reset(before, now)) if type(before) is not type(now) else {}
        if lost:
            values = ", ".join(f"{key} = {value}" for key, value in lost.items())
            yield (
                f"{name}.type = {now.type!r} begins with its own defaults: {values}; what the file "
                f"sets for {before.type!r} does not carry over, so set these beside the type"
            )


def _reset(before: ConfigModel, now: ConfigModel) -> Iterator[tuple[str, str]]:
    """Settings of both that the old table set and the new one has at another value, unset."""
    for key in type(now).model_fields:
        shared = key != "type" and key in before.model_fields_set
        if shared and key not in now.model_fields_set:
            old, new = getattr(before, key), getattr(now, key)
            if old != new:
                yield key, f"{new!r} (the file has {old!r})"
