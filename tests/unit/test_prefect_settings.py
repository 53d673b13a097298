"""Settings that Prefect cannot read when it is loaded end a command in a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMOKE = "configs/tiny/smoke.toml"
COMMANDS = ["flows.train " + SMOKE, "flows.compare " + SMOKE, "flows.prepare", "infra.deploy"]
COMMANDS += ["tasks.cards"]


def told(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *line.split()],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("line", COMMANDS)
def test_an_address_that_is_none_is_told_and_its_password_is_not(line: str) -> None:
    done = told(line, PREFECT_API_URL="http://me:secret@[::1/api")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        "error: PREFECT_API_URL = 'http://***@[::1/api' is no address (Invalid IPv6 URL); correct "
        "it, or unset it\n"
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PREFECT_API_REQUEST_TIMEOUT", "abc"), ("PREFECT_LOGGING_LEVEL", "nonsense")],
)
def test_another_setting_that_prefect_does_not_take_is_named(variable: str, value: str) -> None:
    done = told("tasks.cards", **{variable: value})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: Prefect cannot read its settings (")
    assert last.endswith(f"; correct {variable}")
