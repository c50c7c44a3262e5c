"""A request type and its response: schema.py has those of infrequent requests, broker_link.py those with own codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")
_ID_BYTES = 4


def correlation_id(data: bytes | bytearray) -> int:
    """Return the correlation id of a response, the first field of each header. data: without the length."""
    return int.from_bytes(data[:_ID_BYTES], "big", signed=True)


@dataclass(frozen=True)
class Api(ABC, Generic[R]):
    """name, key: Kafka's. lowest, highest: the versions that this client supports."""

    name: str
    key: int
    lowest: int
    highest: int

    @abstractmethod
    def decode(self, data: bytearray, version: int) -> R:
        """Return the response to a request of this version, from its bytes without the length.

        Raises ValueError for malformed bytes.
        """
