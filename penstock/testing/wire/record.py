"""The requests and actions of the proxy; written by its thread, read by the test's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from .framing import Request


@dataclass(frozen=True, slots=True)
class Event:
    """An action on one request or its response. seconds: since the proxy's start; broker: node id, if it is known."""

    seconds: float
    broker: int | None
    client: str
    api: str
    version: int
    what: str

    def __str__(self) -> str:
        broker = "?" if self.broker is None else self.broker
        return f"{self.seconds:8.3f} s  broker {broker}  {self.client or '-'}  {self.api} v{self.version}  {self.what}"


class Record:
    """Events in order, and the number of requests. out: a file for one line per event."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._start = time.monotonic()
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._requests: Counter[tuple[str, int]] = Counter()

    def count(self, request: Request) -> None:
        """Record a request."""
        with self._changed:
            self._requests[request.api, request.version] += 1

    def add(self, request: Request, broker: int | None, what: str) -> None:
        """Record an action."""
        seconds = time.monotonic() - self._start
        event = Event(seconds, broker, request.client_id, request.api, request.version, what)
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
        if self._out is not None:
            print(event, file=self._out, flush=True)

    def events(self) -> list[Event]:
        """Return the actions so far."""
        with self._changed:
            return list(self._events)

    def requests(self) -> Counter[tuple[str, int]]:
        """Return the number of requests, by API and version."""
        with self._changed:
            return Counter(self._requests)

    def wait_for(self, fits: Callable[[Event], bool], seconds: float) -> Event:
        """Return the first event that fits; raises TimeoutError with the events if there is none in time."""
        with self._changed:
            if self._changed.wait_for(lambda: any(map(fits, self._events)), seconds):
                return next(filter(fits, self._events))
        raise TimeoutError("nothing of the kind was done:\n" + "\n".join(map(str, self.events())))
