"""The hub: whether it can be asked, found out once and at once.

Its own clients try again for a minute, file by file, where there is no network.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

REACH_SECONDS = 10.0
"""Longest wait for the hub's first answer."""


def why_unreachable() -> str | None:
    """Why nothing can be fetched from the hub, and what to do; None if it answers.

    A hub that has answered this process once is not asked again.
    """
    from huggingface_hub import constants, is_offline_mode  # noqa: PLC0415

    if is_offline_mode():
        return "HF_HUB_OFFLINE forbids to fetch it; unset that"
    try:
        reach(constants.ENDPOINT)
    except Exception as error:  # whatever the hub's client raises of a network
        told = str(error).strip() or type(error).__name__
        return f"{constants.ENDPOINT} cannot be reached ({told}); connect this machine"
    return None


@functools.cache
def reach(address: str) -> None:
    """Ask a hub for an answer; what it raises where there is none is not remembered."""
    from huggingface_hub import get_session  # noqa: PLC0415

    get_session().head(address, timeout=REACH_SECONDS)


@contextmanager
def data_from_cache_alone() -> Iterator[None]:
    """The package datasets reads what was fetched before, and asks nobody."""
    import datasets  # noqa: PLC0415
    from huggingface_hub import constants  # noqa: PLC0415

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
