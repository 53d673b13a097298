"""Prefect flows: one question each. `python -m flows.NAME --help` runs one from the project root."""

from fst_core.quiet import settle_environment

settle_environment()  # before prefect and torch load: they read it at import
