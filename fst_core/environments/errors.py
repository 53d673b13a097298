"""What goes wrong with problem data."""


class DataError(ValueError):
    """Problem data that cannot be used; the message is one sentence: where, and why."""


class DataAbsent(DataError):
    """Problem data that is not on this machine: a plan can still be made, a run cannot."""


REMEDIES = {
    "validation": "lower evaluation.problems, or give the split more problems (for one JSONL file, "
    "raise environment.validation)",
    "train": "build a larger pool",
}


class PastTheEnd(DataError, IndexError):
    """A problem beyond the end of a finite split."""

    def __init__(self, environment: str, split: str, index: int, size: int):
        super().__init__(
            f"environment {environment!r} has {size} {split} problems, and problem number "
            f"{index + 1} was asked for; {REMEDIES.get(split, 'ask for fewer')}"
        )
