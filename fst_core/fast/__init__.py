"""Context evolution: the fast weights."""
