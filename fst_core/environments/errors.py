"""What goes wrong with problem data."""


class DataError(ValueError):
    """Problem data that cannot be used; the message is one sentence: where, and why."""


class PastTheEnd(DataError, IndexError):
    """A problem beyond the end of a finite split."""

    def __init__(self, environment: str, split: str, index: int, size: int):
        super().__init__(
            f"environment {environment!r} has {size} {split} problems, and problem number "
            f"{index + 1} was asked for; lower evaluation.problems or loop.steps"
        )
