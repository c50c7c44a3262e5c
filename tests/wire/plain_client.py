"""A client of a few lines, which shows a test every request and response."""

from __future__ import annotations

import io
import socket
import struct
from itertools import count
from types import TracebackType
from typing import Any

from kio.index import load_response_from_request
from kio.serial import entity_reader, entity_writer

from tests.waiting import PATIENCE_SECONDS


class PlainClient:
    """One connection. ask() raises ConnectionError when it is closed, TimeoutError without a response."""

    def __init__(self, address: str, client_id: str = "plain", timeout_seconds: float = PATIENCE_SECONDS) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout_seconds)
        self._client_id = client_id
        self._numbers = count(1)

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def ask(self, request: Any) -> Any:
        """Send a request and return its response."""
        number = self.send(request)
        return self.receive(type(request), number)

    def send(self, request: Any) -> int:
        """Send a request and return its correlation id."""
        kind, number, buffer = type(request), next(self._numbers), io.BytesIO()
        header = kind.__header_schema__(
            request_api_key=kind.__api_key__,
            request_api_version=kind.__version__,
            correlation_id=number,
            client_id=self._client_id,
        )
        entity_writer(kind.__header_schema__)(buffer, header)
        entity_writer(kind)(buffer, request)
        self.socket.sendall(struct.pack(">i", buffer.tell()) + buffer.getvalue())
        return number

    def receive(self, kind: Any, number: int) -> Any:
        """Return the response to a request of this kind."""
        answer = load_response_from_request(kind)
        data = self.read(struct.unpack(">i", self.read(4))[0])
        header, size = entity_reader(answer.__header_schema__)(data, 0)
        assert header.correlation_id == number
        return entity_reader(answer)(data, size)[0]

    def read(self, size: int) -> bytes:
        """Return this many bytes."""
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the connection was closed")
            data += more
        return data
