"""State that all connections of a proxy share: the record of events, and waits for responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from .framing import Request, TlsError
from .record import Record


@dataclass
class Broker:
    """A real broker. node: its id, once a response has named it."""

    host: str
    port: int
    node: int | None = None


@dataclass
class _Passage:
    """A wait for a number of further responses of an API."""

    api: str
    left: int
    future: asyncio.Future[None]


class Board:
    """Used in the proxy's event loop only. failure: the first error in forwarding.

    tls: whether a client has started TLS. Clients probe silent listeners this way, so it is not a failure if other
    clients were understood.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.failure: Exception | None = None
        self.tls: TlsError | None = None
        self._passages: list[_Passage] = []

    def note(self, request: Request, broker: Broker, what: str) -> None:
        """Report an action."""
        self.record.add(request, broker.node, what)

    def passed(self, request: Request) -> None:
        """Wake the waits for a response of this API, after one was sent."""
        for passage in [passage for passage in self._passages if passage.api == request.api]:
            passage.left -= 1
            if not passage.left:
                self._passages.remove(passage)
                if not passage.future.done():
                    passage.future.set_result(None)

    def passing(self, api: str, nth: int) -> Awaitable[None]:
        """Wait for the nth response of an API from now on."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._passages.append(_Passage(api, nth, future))
        return future
