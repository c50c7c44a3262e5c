"""One broker's connection as a state machine, without a socket and without a clock (sans-I/O).

What is to be done next is decided here, for both drivers: broker_link.py on a selector, cluster/broker_connection.py on
an event loop. They open, authenticate, send and receive (Kafka: NetworkClient with its ClusterConnectionStates and
InFlightRequests).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from ..log_context import TRACE, PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.api import Api, correlation_id
from ..state_machine import StateMachine
from .opening import RENEWAL, Opened


class ConnectionState(Enum):
    """CLOSED: not connected, possibly in backoff. ACTIVE: at least one response is outstanding.

    RENEWING: the session is about to end, and the idle connection is being authenticated again (KIP-368).
    """

    CLOSED = auto()
    CONNECTING = auto()
    IDLE = auto()
    ACTIVE = auto()
    RENEWING = auto()


_S = ConnectionState
CONNECTION_TRANSITIONS = {
    _S.CLOSED: (_S.CONNECTING,),
    _S.CONNECTING: (_S.IDLE, _S.CLOSED),
    _S.IDLE: (_S.ACTIVE, _S.RENEWING, _S.CLOSED),
    _S.ACTIVE: (_S.IDLE, _S.CLOSED),
    _S.RENEWING: (_S.IDLE, _S.CLOSED),
}


class Step(Enum):
    """What comes before the next request.

    WAIT: the time ``not_before_ms``. BUSY: a response, or the end of connecting or authenticating. DROP: close the
    connection, since a firewall in between may have dropped it silently. SEND: nothing.
    """

    WAIT = auto()
    BUSY = auto()
    DROP = auto()
    OPEN = auto()
    RENEW = auto()
    SEND = auto()


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request without a response. asked: the driver's context for handling the response."""

    correlation_id: int
    api: Api[Any]
    version: int
    sent_ms: float
    deadline_ms: float
    asked: Any


class Connection:
    """The connection to one broker, over losses and new openings. All times are in ms, on the driver's clock.

    most_in_flight: the maximum number of requests in flight.
    """

    def __init__(self, settings: NetworkSettings, log: PrefixedLogger, most_in_flight: float = math.inf) -> None:
        self._settings = settings
        self._most_in_flight = most_in_flight
        self._states = StateMachine(_S.CLOSED, CONNECTION_TRANSITIONS, log, level=TRACE)
        self._in_flight: deque[InFlight] = deque()
        self._correlation_id = 0
        self._idle_since_ms: float = 0
        self._renew_ms: float = math.inf
        #: What has been opened; None while it is not.
        self.opened: Opened | None = None
        #: Send nothing before: a quota's throttle (KIP-219), or backoff after a failure.
        self.not_before_ms: float = 0

    @property
    def state(self) -> ConnectionState:
        """The state."""
        return self._states.state

    @property
    def deadline_ms(self) -> float | None:
        """When the oldest response is late; None if none is outstanding."""
        return self._in_flight[0].deadline_ms if self._in_flight else None

    def next_step(self, now_ms: float) -> Step:
        """Return what is to be done before a request can be sent."""
        if now_ms < self.not_before_ms:
            return Step.WAIT
        if self.state is _S.CLOSED:
            return Step.OPEN
        if self.state is _S.IDLE:
            if now_ms - self._idle_since_ms >= self._settings.max_idle_ms:
                return Step.DROP
            return Step.RENEW if now_ms >= self._renew_ms else Step.SEND
        is_free = self.state is _S.ACTIVE and len(self._in_flight) < self._most_in_flight
        return Step.SEND if is_free and now_ms < self._renew_ms else Step.BUSY

    def connecting(self) -> None:
        """Note that it is being opened."""
        self._states.transition_to(_S.CONNECTING)

    def renewing(self) -> None:
        """Note that it is being authenticated again, and may not be used until ``ready``."""
        self._states.transition_to(_S.RENEWING)

    def ready(self, opened: Opened, now_ms: float) -> None:
        """Take over a connection that was opened or authenticated."""
        self.opened = opened
        self.not_before_ms = 0
        self._idle_since_ms = now_ms
        self._renew_ms = math.inf
        if opened.session_ms is not None:
            self._renew_ms = now_ms + opened.session_ms * random.uniform(*RENEWAL)
        self._states.transition_to(_S.IDLE)

    def note_pause(self, ms: float) -> None:
        """Count a pause that the driver's clock excludes: the connection was idle during it."""
        self._idle_since_ms -= ms

    def request(
        self,
        api: Api[Any],
        version: int,
        encode: Callable[[int], bytes],
        now_ms: float,
        limit_ms: float,
        asked: object,
    ) -> bytes:
        """Return the bytes of a request that ``encode`` builds from a correlation id; it is in flight from now on.

        limit_ms: for the response. asked: returned with it, or by ``lost``.
        """
        self._correlation_id = (self._correlation_id + 1) % (1 << 31)
        data = encode(self._correlation_id)
        self._in_flight.append(InFlight(self._correlation_id, api, version, now_ms, now_ms + limit_ms, asked))
        if self.state is _S.IDLE:
            self._states.transition_to(_S.ACTIVE)
        return data

    def response(self, data: bytearray, now_ms: float) -> tuple[InFlight, Any]:
        """Return the oldest request in flight and its decoded response.

        data: without the length. Raises ConnectionError if it belongs to another request, ValueError if malformed.
        """
        if not self._in_flight:
            raise ConnectionError("a response without a request")
        first = self._in_flight[0]
        number = correlation_id(data)
        if number != first.correlation_id:
            raise ConnectionError(f"response {number} to request {first.correlation_id}")
        response = first.api.decode(data, first.version)
        self._in_flight.popleft()
        throttle_ms = getattr(response, "throttle_time_ms", 0)  # some responses have no such field
        if throttle_ms > 0:  # a later response without a throttle does not end this one
            self.not_before_ms = max(self.not_before_ms, now_ms + throttle_ms)
        if not self._in_flight:
            self._idle_since_ms = now_ms
            self._states.transition_to(_S.IDLE)
        return first, response

    def check_deadline(self, now_ms: float, has_received: bool) -> None:
        """Raise TimeoutError if the oldest response is late. has_received: a part of it came now, so wait for the rest;
        the driver may be the one that is late.
        """
        first = self._in_flight[0]
        if has_received:
            self._in_flight[0] = replace(first, deadline_ms=now_ms + self._settings.request_timeout_ms)
        elif now_ms >= first.deadline_ms:
            raise TimeoutError(f"no response within {self._settings.request_timeout_ms} ms")

    def lost(self) -> list[Any]:
        """Change to CLOSED from any other state. Returns ``asked`` of the requests in flight."""
        asked = [request.asked for request in self._in_flight]
        self._in_flight.clear()
        self.opened = None
        self._renew_ms = math.inf
        if self.state is not _S.CLOSED:
            self._states.transition_to(_S.CLOSED)
        return asked
