"""Prefect flows: one question each; run from the project root as `python -m flows.NAME`."""

import tasks  # noqa: F401  (settles what prefect and torch read when they load, and loads prefect)
from tasks.tries import leave_out_tracebacks

leave_out_tracebacks()
