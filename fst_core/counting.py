"""Numbers with what they count, and texts of a bearable length, for people."""


def counted(count: int, noun: str, nouns: str = "") -> str:
    """A number and what it counts: "1 run", "2,000 runs".

    Args:
        count: how many.
        noun: the singular.
        nouns: the plural, where it is not the singular and an s.
    """
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def shortened(text: str, most: int) -> str:
    """A text, cut behind `most` characters; dots say that more follows."""
    return text if len(text) <= most else f"{text[:most]}..."
