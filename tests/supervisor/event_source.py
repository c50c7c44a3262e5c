"""A reader of server-sent events, as the HTML standard defines them; it knows nothing of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from socket import SHUT_RDWR
from typing import Any, NamedTuple, Self

from tests.waiting import PATIENCE_SECONDS


class Event(NamedTuple):
    """id: the last one of the stream, as a browser keeps it."""

    name: str
    data: Any
    id: str | None


class RefusedError(Exception):
    """The server did not open a stream."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(status, error)
        self.status, self.error = status, error
        self.code = error["code"]


class EventSource:
    """A connection. last_id: continues from there. Raises RefusedError."""

    def __init__(self, port: int | None, path: str, last_id: str | None = None, **headers: str) -> None:
        assert port is not None
        self.last_id = last_id
        self._connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        self._connection.request("GET", path, headers=headers)
        self._socket = self._connection.sock
        self.response: HTTPResponse = self._connection.getresponse()
        if self.response.status != 200:
            refused = RefusedError(self.response.status, json.loads(self.response.read())["error"])
            self.close()
            raise refused

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        """End the stream, also for another thread that reads it."""
        with suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Cut the connection and release it."""
        self.cut()
        self.response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        """Yield events until the connection ends or is cut."""
        name, data = "message", ""
        while line := self._line():
            field, _, value = line.rstrip("\n").partition(": ")
            if not field:
                if data:
                    yield Event(name, json.loads(data), self.last_id)
                name, data = "message", ""
            elif field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "id":
                self.last_id = value

    def _line(self) -> str:
        try:
            return self.response.readline().decode()
        except (OSError, HTTPException, ValueError):
            return ""

    def until(self, name: str) -> list[Event]:
        """Return the events up to the first one of a name."""
        found = []
        for event in self:
            found.append(event)
            if event.name == name:
                return found
        raise AssertionError(f"the stream ended without {name}: {found[-5:]}")

    def next(self, count: int) -> list[Event]:
        """Return the next events, without positions."""
        found: list[Event] = []
        for event in self:
            if event.name != "position":
                found.append(event)
            if len(found) == count:
                return found
        raise AssertionError(f"the stream ended: {found[-5:]}")
