"""Frames of the Kafka protocol: a 4-byte size, then a request or response. Parses only a request's header."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

from kio.schema.index import api_key_map

from penstock.topology.errors import PenstockError

_SIZE = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhih")  # API, its version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")
#: Brokers accept 100 MB (socket.request.max.bytes), and Fetch responses are rarely larger. The first bytes of TLS, a
#: handshake record of version 3.x, would be a size above this.
_FRAME_BYTES_MAX = 1 << 28
_TLS_HANDSHAKE = 0x1603

#: Kafka's name of each API by its number, e.g. 26: "EndTxn".
API_NAMES = {key: name.title().replace("_", "") for key, name in api_key_map.items()}


class WireError(PenstockError):
    """Bytes that the proxy cannot read; the message names the connection or the API."""


class TlsError(WireError):
    """A client has started TLS."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. data: its frame without the size."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    data: bytes

    @property
    def api(self) -> str:
        """Kafka's name of the API."""
        return API_NAMES.get(self.api_key, f"Api{self.api_key}")

    def __str__(self) -> str:
        return f"{self.api} v{self.version}"


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame without its size; raises IncompleteReadError at the end, WireError for other bytes."""
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if size >> 16 == _TLS_HANDSHAKE:
        raise TlsError("a client begins TLS: the wire proxy reads Kafka's protocol without TLS only")
    if not _CORRELATION_ID.size <= size <= _FRAME_BYTES_MAX:
        raise WireError(f"a frame of {size} bytes: the wire proxy reads Kafka's protocol only")
    return await reader.readexactly(size)


def framed(data: bytes) -> bytes:
    """Return a frame prefixed by its size."""
    return _SIZE.pack(len(data)) + data


def parse_request(data: bytes) -> Request:
    """Read the head of a request; raises WireError."""
    try:
        api_key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(data)
    except struct.error as error:
        raise WireError(f"a request of {len(data)} bytes has no header") from error
    client_id = data[_REQUEST_HEAD.size : _REQUEST_HEAD.size + max(length, 0)].decode()
    return Request(api_key, version, correlation_id, client_id, data)


def correlation_id(answer: bytes) -> int:
    """Return a response's correlation id."""
    number: int = _CORRELATION_ID.unpack_from(answer)[0]
    return number
