"""Prefect tasks: thin wrappers that put calls of the library into the UI, with retries and names.

Heavy parts (torch, trl, gepa, mlflow) load inside the tasks that use them.
"""
