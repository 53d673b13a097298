"""Prefect flows: one question each. `python -m flows.NAME --help` runs one from the project root."""
