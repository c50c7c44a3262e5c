"""Kafka's compact encoding of flexible request versions (KIP-482)."""

from __future__ import annotations

import struct

#: "No tagged fields", at the end of each header and structure.
NO_TAGS = b"\0"
#: A null string or list.
NULL = b"\0"

_HEADER = struct.Struct(">hhi")
_ENDLESS = "a varint that does not end"
_TOO_SHORT = "a response that ends too early"


def compact_length(size: int) -> bytes:
    """Return the length prefix of a string, list or bytes: length + 1 as a varint, low 7 bits first."""
    rest, found = size + 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def compact_string(text: str) -> bytes:
    """Return a length-prefixed string."""
    data = text.encode()
    return compact_length(len(data)) + data


def request_header(api_key: int, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return a request's header (version 2) without its length prefix."""
    name = client_id.encode()
    return _HEADER.pack(api_key, version, correlation_id) + struct.pack(">h", len(name)) + name + NO_TAGS


class CompactReader:
    """Reads a response sequentially. Raises ValueError if it ends too early."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """Return the next ``count`` bytes."""
        return bytes(self._taken(size))

    def number(self, size: int) -> int:
        """Return a signed integer of this many bytes."""
        return int.from_bytes(self._taken(size), "big", signed=True)

    def unsigned(self) -> int:
        """Return an unsigned varint."""
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self._taken(1)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError(_ENDLESS)

    def count(self) -> int:
        """Return the number of entries or bytes that follow; 0 for null."""
        return max(self.unsigned() - 1, 0)

    def string(self) -> str:
        """Return a string; empty for null."""
        return bytes(self._taken(self.count())).decode()

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields of a structure."""
        return {self.unsigned(): bytes(self._taken(self.unsigned())) for _ in range(self.unsigned())}

    def _taken(self, size: int) -> bytes | bytearray:
        end = self._at + size
        if end > len(self._data):
            raise ValueError(_TOO_SHORT)
        found = self._data[self._at : end]
        self._at = end
        return found
