"""The destination of responses: a socket, or its replacement."""

from __future__ import annotations

from typing import Protocol


class Output(Protocol):
    """The part of asyncio.StreamWriter that the broker needs."""

    def write(self, data: bytes) -> None:
        """Send bytes, immediately or later."""

    def close(self) -> None:
        """End the connection after the written bytes."""
