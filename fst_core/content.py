"""What a file holds, by SHA-256: of the whole, and of the parts in which it goes to a store."""

import base64
import hashlib
import os
from dataclasses import dataclass

PART_BYTES = 16 << 20
"""A part's size, where no more than MOST_PARTS come of it; a smaller file is sent at once."""
MOST_PARTS = 9_000


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds: SHA-256 of the whole (hex) and of its parts (base64, as S3 has them)."""

    size: int
    sha256: str
    parts: tuple[str, ...]

    @property
    def checksum(self) -> str:
        """What the store calls the checksum of the whole object."""
        if len(self.parts) == 1:
            return self.parts[0]
        digests = b"".join(base64.b64decode(part) for part in self.parts)
        return f"{base64_of(hashlib.sha256(digests).digest())}-{len(self.parts)}"


def content_of(descriptor: int, size: int) -> Content:
    """Read the first `size` bytes of an open file once, for all its digests."""
    whole, parts = hashlib.sha256(), []
    for start, length in ranges(size):
        part = hashlib.sha256()
        for place in range(start, start + length, 1 << 20):
            data = os.pread(descriptor, min(1 << 20, start + length - place), place)
            whole.update(data)
            part.update(data)
        parts.append(base64_of(part.digest()))
    return Content(size, whole.hexdigest(), tuple(parts))


def ranges(size: int) -> list[tuple[int, int]]:
    """Start and length of every part of a file; an empty file has one."""
    step = max(PART_BYTES, -(-size // MOST_PARTS))
    return [(start, min(step, size - start)) for start in range(0, max(size, 1), step)]


def base64_of(digest: bytes) -> str:
    """A digest as S3 writes it."""
    return base64.b64encode(digest).decode()
