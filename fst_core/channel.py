"""JSON objects over a socket, one a line."""

import json
import socket
from collections.abc import Iterator
from typing import Any, Self


class Channel:
    """One end of a connected stream socket, which is closed at the end of a `with` block."""

    def __init__(self, line: socket.socket):
        self._line = line
        self._lines = line.makefile("r", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._line.close()

    def send(self, **message: Any) -> None:
        """Send one object.

        Raises:
            OSError: if the other end is gone.
        """
        self._line.sendall(json.dumps(message).encode() + b"\n")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """What the other end sends, until it is gone; a torn last line is none."""
        try:
            for text in self._lines:
                if text.endswith("\n"):
                    yield json.loads(text)
        except ConnectionError:
            return
