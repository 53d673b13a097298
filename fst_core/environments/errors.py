"""What goes wrong with problem data."""


class DataError(ValueError):
    """Problem data that cannot be used; the message is one sentence: where, and why."""
