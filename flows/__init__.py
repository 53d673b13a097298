"""Prefect flows: one question each; run from the project root as `python -m flows.NAME`."""

from fst_core.quiet import settle_environment

settle_environment()  # before prefect and torch load: they read it at import
