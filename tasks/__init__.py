"""Prefect tasks: thin wrappers that put calls of the library into the UI, with retries and names.

Heavy parts (torch, trl, gepa, mlflow) load inside the tasks that use them. Prefect loads here, so
that settings which it cannot read are told in a sentence, whichever module is asked for first.
"""

from fst_core.quiet import settle_environment
from tasks.settings import load_prefect

settle_environment()  # before prefect and torch load: they read it at import
load_prefect()
