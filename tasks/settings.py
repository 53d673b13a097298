"""Prefect's settings, which it reads when it is loaded."""

import importlib
import os
import sys
from urllib.parse import urlsplit

from pydantic import ValidationError

from fst_core.addresses import without_password

ADDRESS = "PREFECT_API_URL"


def load_prefect() -> None:
    """Load Prefect; where it cannot read its settings, end this process with a sentence."""
    address = os.environ.get(ADDRESS, "")
    try:
        urlsplit(address)
    except ValueError as error:
        shown = without_password(address)
        sys.exit(f"error: {ADDRESS} = {shown!r} is no address ({error}); correct it, or unset it")
    try:
        importlib.import_module("prefect.context")
    except ValidationError as error:
        sys.exit(f"error: {unread(error)}")


def unread(error: ValidationError) -> str:
    """Which setting Prefect cannot read, and what to do."""
    first = error.errors(include_url=False)[0]
    setting = ".".join(map(str, first["loc"]))
    suspects = sorted(
        name
        for name in os.environ
        if name.startswith("PREFECT_") and setting and name.endswith(setting.upper())
    )
    where = " or ".join(suspects) or "the variables that begin with PREFECT_, or its profile"
    what = f"{setting}: {first['msg']}" if setting else first["msg"]
    return f"Prefect cannot read its settings ({what}); correct {where}"
