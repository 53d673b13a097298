"""Context evolution: the fast weights."""

# A method's file holds settings that the config is made of, so the config is made first.
import fst_core.config  # noqa: F401
