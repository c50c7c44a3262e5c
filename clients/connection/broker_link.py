"""One broker: connected or not, with requests in flight (Kafka: NetworkClient's ClusterConnectionStates)."""

from __future__ import annotations

import math
import random
import selectors
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import InitVar, dataclass, replace
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

from penstock.topology.errors import StreamsError

from ..cluster.brokers import Brokers
from ..log_context import TRACE, PrefixedLogger
from ..network_settings import NetworkSettings
from ..state_machine import StateMachine
from .broker_socket import BrokerSocket
from .opening import RENEWAL, Opened


class Answer(Protocol):
    """The fields common to all responses. throttle_ms: the broker's quota throttle (KIP-219)."""

    @property
    def correlation_id(self) -> int:
        """The correlation id of the request."""

    @property
    def throttle_ms(self) -> int:
        """How long to send no further request to this broker, in ms."""


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True)
class Api(Generic[A]):
    """A request type. name: Kafka's. versions: the lowest and highest supported here.

    since: the first Kafka release with one of the versions. verb: for error texts, a participle such as "read from".
    setting: the config key that selects librdkafka instead. decode: parses a response from its bytes (without the
    length) and the version of the request; raises ValueError for malformed bytes. in_flight: the maximum number of
    requests in flight.
    """

    key: int
    name: str
    versions: tuple[int, int]
    since: str
    verb: str
    setting: str
    decode: Callable[[bytearray, int], A]
    in_flight: int = 1


@dataclass(frozen=True, slots=True)
class Pending:
    """A request in flight. asked: the sender's context for handling the response."""

    correlation_id: int
    version: int
    deadline_ms: int
    asked: Any


class LinkState(Enum):
    """CLOSED: not connected, possibly in backoff. WAITING: at least one response is outstanding.

    RENEWING: the session is about to end, and the idle connection is being authenticated again (KIP-368).
    """

    CLOSED = auto()
    CONNECTING = auto()
    IDLE = auto()
    WAITING = auto()
    RENEWING = auto()


_S = LinkState
LINK_TRANSITIONS = {
    _S.CLOSED: (_S.CONNECTING,),
    _S.CONNECTING: (_S.IDLE, _S.CLOSED),
    _S.IDLE: (_S.WAITING, _S.RENEWING, _S.CLOSED),
    _S.WAITING: (_S.IDLE, _S.CLOSED),
    _S.RENEWING: (_S.IDLE, _S.CLOSED),
}


@dataclass(eq=False)
class BrokerLink(Generic[A]):
    """Connects on demand, sends requests and receives responses without blocking. selector: watches its socket.

    on_done: called on another thread when a connection is made or refused.
    """

    node: int
    brokers: Brokers
    settings: NetworkSettings
    api: Api[A]
    selector: selectors.BaseSelector
    on_done: Callable[[], None]
    log: InitVar[PrefixedLogger]

    def __post_init__(self, log: PrefixedLogger) -> None:
        self._states = StateMachine(_S.CLOSED, LINK_TRANSITIONS, log, level=TRACE)
        self._opening: Future[Opened] | None = None
        self._opened: Opened | None = None
        self._socket: BrokerSocket | None = None
        self._renew_at: float = math.inf  # in ms
        self._events = 0
        self._correlation_id = 0
        self._pending: deque[Pending] = deque()
        self._not_before_ms = 0  # send nothing until then: quota throttle, or backoff after a failure
        self._idle_since_ms = 0
        #: Requests without a response because the connection was lost; the caller clears it.
        self.unanswered: list[object] = []
        #: The highest request version that both sides support, valid after the first connection.
        self.version = self.api.versions[0]
        #: Why the connection was lost or refused; None after reconnecting.
        self.failure: str | None = None

    @property
    def state(self) -> LinkState:
        """Return the state."""
        return self._states.state

    def is_ready(self, now_ms: int) -> bool:
        """Return whether a request may be sent now. Starts connecting if necessary."""
        if now_ms < self._not_before_ms:
            return False
        if self.state is _S.IDLE and now_ms - self._idle_since_ms >= self.settings.max_idle_ms:
            self._let_go()  # a firewall in between may have dropped the connection silently
        if self.state is _S.CLOSED:
            self._states.transition_to(_S.CONNECTING)
            self._opening = self.brokers.open(self.node, self.on_done)
        if now_ms >= self._renew_at:  # after the responses in flight
            if self.state is _S.IDLE:
                self._renew()
            return False
        return self.state is _S.IDLE or (self.state is _S.WAITING and len(self._pending) < self.api.in_flight)

    def _renew(self) -> None:
        """Hand the connection over for reauthentication."""
        assert self._opened is not None
        assert self._socket is not None
        self._states.transition_to(_S.RENEWING)
        self.selector.unregister(self._socket)
        self._opening = self.brokers.authenticate(self._opened, self.on_done)

    def note_pause(self, ms: int) -> None:
        """Count a pause that the clock excludes: the connection was idle during it."""
        self._idle_since_ms -= ms

    def next_at(self, now_ms: int) -> int | None:
        """Return the next time in ms at which advance() is due even without a response; None if there is none."""
        if self.state is _S.WAITING:
            return self._pending[0].deadline_ms
        return self._not_before_ms if self._not_before_ms > now_ms else None

    def send(
        self, request: Callable[[int], bytes], asked: object, max_wait_ms: int, now_ms: int, version: int | None = None
    ) -> None:
        """Send the request that ``request`` builds from a correlation id. advance() reports a lost connection.

        asked: returned with the response, or in ``unanswered``. max_wait_ms: how long the broker may hold the request
        before responding. version: of the request; None for the link's.
        """
        assert self._socket is not None
        self._correlation_id = (self._correlation_id + 1) % (1 << 31)
        deadline_ms = now_ms + max_wait_ms + self.settings.request_timeout_ms
        version = self.version if version is None else version
        self._pending.append(Pending(self._correlation_id, version, deadline_ms, asked))
        if self.state is _S.IDLE:
            self._states.transition_to(_S.WAITING)
        try:
            self._socket.send(request(self._correlation_id))
            self._watch()
        except OSError as error:
            self._lose(error, now_ms)

    def advance(self, now_ms: int) -> tuple[object, A] | None:
        """Take over a finished connection, or return a response that has arrived, with its request's ``asked``.

        Raises StreamsError if there is no request version that both sides support.
        """
        if self._opening is not None:
            self._take_opened(self._opening, now_ms)
        elif self.state is _S.WAITING:
            return self._receive(now_ms)
        elif self.state is _S.IDLE:
            self._notice_its_end(now_ms)
        return None

    def _notice_its_end(self, now_ms: int) -> None:
        """Drop a connection that the broker closed for idleness; not an error."""
        assert self._socket is not None
        try:
            if self._socket.receive() is not None:
                self._lose(ConnectionError("a response without a request"), now_ms)
        except OSError:
            self._let_go()

    def _let_go(self) -> None:
        self._close_socket()
        self._states.transition_to(_S.CLOSED)

    def _take_opened(self, opening: Future[Opened], now_ms: int) -> None:
        if not opening.done():
            return
        self._opening = None
        error = opening.exception()
        if error is not None:
            self._lose(error, now_ms)
            return
        self._opened = opened = opening.result()
        self._agree(opened)
        self._socket = BrokerSocket(opened.socket, self.settings.max_answer_bytes)
        self._socket.drop_at_close(True)
        self._events = selectors.EVENT_READ
        self.selector.register(self._socket, self._events)
        self._renew_at = math.inf
        if opened.session_ms is not None:
            self._renew_at = now_ms + opened.session_ms * random.uniform(*RENEWAL)
        self._not_before_ms, self.failure = 0, None
        self._idle_since_ms = now_ms
        self._states.transition_to(_S.IDLE)

    def _agree(self, opened: Opened) -> None:
        """Choose the version of requests. Raises StreamsError if there is none."""
        least, most = opened.versions.get(self.api.key, (0, -1))
        self.version = min(most, self.api.versions[1])
        if self.version < max(least, self.api.versions[0]):
            opened.socket.close()
            self._opened = None
            self._states.transition_to(_S.CLOSED)
            raise StreamsError(
                f"Broker {self.node} is older than Kafka {self.api.since}: it cannot be {self.api.verb} with requests "
                f"of version {self.api.versions[0]}, only with versions {least} to {most}. librdkafka supports it: set "
                f"{self.api.setting}=librdkafka."
            )

    def _watch(self) -> None:
        """Have the selector watch for writability too while part of a request is unsent."""
        assert self._socket is not None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._socket.has_unsent else 0)
        if events != self._events:
            self._events = events
            self.selector.modify(self._socket, events)

    def _receive(self, now_ms: int) -> tuple[object, A] | None:
        assert self._socket is not None
        first = self._pending[0]
        try:
            received = self._socket.receive()
            self._watch()
            if received is None:
                if self._socket.has_received:  # part of a response; the caller may be late
                    self._pending[0] = replace(first, deadline_ms=now_ms + self.settings.request_timeout_ms)
                elif now_ms >= first.deadline_ms:
                    raise TimeoutError(f"no response within {self.settings.request_timeout_ms} ms")
                return None
            answer = self.api.decode(received, first.version)
            if answer.correlation_id != first.correlation_id:
                raise ConnectionError(f"response {answer.correlation_id} to request {first.correlation_id}")
        except (OSError, ValueError) as error:
            self._lose(error, now_ms)
            return None
        self._pending.popleft()
        if answer.throttle_ms > 0:  # KIP-219; a later response without a throttle does not end this one
            self._not_before_ms = max(self._not_before_ms, now_ms + answer.throttle_ms)
        if not self._pending:
            self._idle_since_ms = now_ms
            self._states.transition_to(_S.IDLE)
        return first.asked, answer

    def _lose(self, error: BaseException, now_ms: int) -> None:
        self.failure = str(error) or type(error).__name__
        self._not_before_ms = now_ms + self.settings.retry_backoff_ms
        self.unanswered += [pending.asked for pending in self._pending]
        self._pending.clear()
        self._let_go()

    def abort(self, now_ms: int) -> None:
        """Drop the requests in flight, together with the connection: they must not reach the broker later."""
        if self._pending:
            self._lose(ConnectionAbortedError("its requests were dropped"), now_ms)

    def _close_socket(self) -> None:
        if self._socket is not None:
            if self.state is not _S.RENEWING:
                self.selector.unregister(self._socket)
            self._socket.close()
        self._socket = self._opened = None
        self._renew_at = math.inf

    def close(self) -> None:
        """Close the connection, including one that is being opened or authenticated."""
        if self._opening is not None:
            self._opening.add_done_callback(_close_opened)
        if self._socket is not None and not self._pending:
            self._socket.drop_at_close(False)  # there may be records that are not acknowledged (acks=0)
        if self.state is not _S.RENEWING:  # else the event loop owns it until the future is done or cancelled
            self._close_socket()
        elif self._opening is not None and self._socket is not None:
            lent = self._socket
            self._opening.add_done_callback(lambda _: lent.close())
        self._opening = None


def _close_opened(opening: Future[Opened]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().socket.close()
