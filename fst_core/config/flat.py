"""A nested config as one level of dotted keys: for tables of settings and tracked parameters."""

import json
from collections.abc import Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"loop": {"steps": 40}} as {"loop.steps": "40"}: strings as they are, the rest as JSON."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return flat
