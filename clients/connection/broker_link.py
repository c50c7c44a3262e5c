"""One broker on a selector: connects on demand, without blocking. Used for the requests of each batch of records."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import InitVar, dataclass
from typing import Generic, Protocol, TypeVar

from typing_extensions import override

from penstock.topology.errors import StreamsError

from ..cluster.brokers import Brokers
from ..errors import BrokerError
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.api import Api
from .broker_socket import BrokerSocket
from .connection import Connection, ConnectionState, Step
from .opening import Opened


class Response(Protocol):
    """The field common to all responses. throttle_time_ms: the broker's quota throttle (KIP-219)."""

    @property
    def throttle_time_ms(self) -> int:
        """How long to send no further request to this broker, in ms."""


R = TypeVar("R", bound=Response)


@dataclass(frozen=True)
class LinkApi(Api[R]):
    """A request type with its own codec. decoder: see ``Api.decode``. since: the first Kafka release with one of the
    versions. verb: for error texts, a participle such as "read from". setting: the config key that selects librdkafka
    instead. most_in_flight: the maximum number of requests in flight.
    """

    decoder: Callable[[bytearray, int], R]
    since: str
    verb: str
    setting: str
    most_in_flight: int = 1

    @override
    def decode(self, data: bytearray, version: int) -> R:
        return self.decoder(data, version)


@dataclass(eq=False)
class BrokerLink(Generic[R]):
    """Connects on demand, sends requests and receives responses without blocking. selector: watches its socket.

    on_done: called on another thread when a connection is made or refused.
    """

    node: int
    brokers: Brokers
    settings: NetworkSettings
    api: LinkApi[R]
    selector: selectors.BaseSelector
    on_done: Callable[[], None]
    log: InitVar[PrefixedLogger]

    def __post_init__(self, log: PrefixedLogger) -> None:
        self._connection = Connection(self.settings, log, self.api.most_in_flight)
        self._opening: Future[Opened] | None = None
        self._socket: BrokerSocket | None = None
        self._events = 0
        #: Requests without a response because the connection was lost; the caller clears it.
        self.unanswered: list[object] = []
        #: The highest request version that both sides support, valid after the first connection.
        self.version = self.api.lowest
        #: How long the last response has taken, in ms.
        self.latency_ms = 0
        #: Why the connection was lost or refused; None after reconnecting.
        self.failure: str | None = None

    @property
    def state(self) -> ConnectionState:
        """Return the state."""
        return self._connection.state

    def is_ready(self, now_ms: int) -> bool:
        """Return whether a request may be sent now. Starts to connect or to reauthenticate if that is necessary."""
        step = self._connection.next_step(now_ms)
        if step is Step.DROP:
            self._close_socket()
            step = self._connection.next_step(now_ms)
        if step is Step.OPEN:
            self._connection.connecting()
            self._opening = self.brokers.open(self.node, self.on_done)
        elif step is Step.RENEW:
            self._renew()
        return step is Step.SEND

    def _renew(self) -> None:
        """Hand the connection over for reauthentication."""
        assert self._connection.opened is not None
        assert self._socket is not None
        self._connection.renewing()
        self.selector.unregister(self._socket)
        self._opening = self.brokers.authenticate(self._connection.opened, self.on_done)

    def note_pause(self, ms: int) -> None:
        """Count a pause that the clock excludes: the connection was idle during it."""
        self._connection.note_pause(ms)

    def next_at(self, now_ms: int) -> float | None:
        """Return the next time in ms at which advance() is due even without a response; None if there is none."""
        if self.state is ConnectionState.ACTIVE:
            return self._connection.deadline_ms
        not_before_ms = self._connection.not_before_ms
        return not_before_ms if not_before_ms > now_ms else None

    def send(
        self, request: Callable[[int], bytes], asked: object, max_wait_ms: int, now_ms: int, version: int | None = None
    ) -> None:
        """Send the request that ``request`` builds from a correlation id. advance() reports a lost connection.

        asked: returned with the response, or in ``unanswered``. max_wait_ms: how long the broker may hold the request
        before responding. version: of the request; None for the link's.
        """
        assert self._socket is not None
        limit_ms = max_wait_ms + self.settings.request_timeout_ms
        version = self.version if version is None else version
        data = self._connection.request(self.api, version, request, now_ms, limit_ms, asked)
        try:
            self._socket.send(data)
            self._watch()
        except OSError as error:
            self._lose(error, now_ms)

    def advance(self, now_ms: int) -> tuple[object, R] | None:
        """Take over a finished connection, or return a response that has arrived, with its request's ``asked``.

        Raises StreamsError if there is no request version that both sides support.
        """
        if self._opening is not None:
            self._take_opened(self._opening, now_ms)
        elif self.state is ConnectionState.ACTIVE:
            return self._receive(now_ms)
        elif self.state is ConnectionState.IDLE:
            self._notice_its_end(now_ms)
        return None

    def _notice_its_end(self, now_ms: int) -> None:
        """Drop a connection that the broker closed for idleness; not an error."""
        assert self._socket is not None
        try:
            received = self._socket.receive()
        except OSError:
            self._close_socket()
            return
        if received is not None:
            self._lose(ConnectionError("a response without a request"), now_ms)

    def _take_opened(self, opening: Future[Opened], now_ms: int) -> None:
        if not opening.done():
            return
        self._opening = None
        error = opening.exception()
        if error is not None:
            self._lose(error, now_ms)
            return
        opened = opening.result()
        self._agree(opened)
        self._socket = BrokerSocket(opened.socket, self.settings.max_response_bytes, opened.traffic)
        self._socket.drop_at_close(True)
        self._events = selectors.EVENT_READ
        self.selector.register(self._socket, self._events)
        self.failure = None
        self._connection.ready(opened, now_ms)

    def _agree(self, opened: Opened) -> None:
        """Choose the version of requests. Raises StreamsError if there is none."""
        try:
            self.version = opened.version_of(self.api)
        except BrokerError as error:
            opened.socket.close()
            self._connection.lost()
            raise StreamsError(
                f"Broker {self.node} is older than Kafka {self.api.since}: it cannot be {self.api.verb}, because "
                f"{error}. librdkafka supports it: set {self.api.setting}=librdkafka."
            ) from None

    def _watch(self) -> None:
        """Have the selector watch for writability too while part of a request is unsent."""
        assert self._socket is not None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._socket.has_unsent else 0)
        if events != self._events:
            self._events = events
            self.selector.modify(self._socket, events)

    def _receive(self, now_ms: int) -> tuple[object, R] | None:
        assert self._socket is not None
        try:
            received = self._socket.receive()
            self._watch()
            if received is None:
                self._connection.check_deadline(now_ms, self._socket.has_received)
                return None
            first, response = self._connection.response(received, now_ms)
        except (OSError, ValueError) as error:
            self._lose(error, now_ms)
            return None
        self.latency_ms = int(now_ms - first.sent_ms)
        return first.asked, response

    def _lose(self, error: BaseException, now_ms: int) -> None:
        self.failure = str(error) or type(error).__name__
        self._connection.not_before_ms = now_ms + self.settings.retry_backoff_ms
        self._close_socket()

    def abort(self, now_ms: int) -> None:
        """Drop the requests in flight, together with the connection: they must not reach the broker later."""
        if self.state is ConnectionState.ACTIVE:
            self._lose(ConnectionAbortedError("its requests were dropped"), now_ms)

    def _close_socket(self) -> None:
        if self._socket is not None:
            if self.state is not ConnectionState.RENEWING:
                self.selector.unregister(self._socket)
            self._socket.close()
        self._socket = None
        self.unanswered += self._connection.lost()

    def close(self) -> None:
        """Close the connection, including one that is being opened or authenticated."""
        if self._opening is not None:
            self._opening.add_done_callback(_close_opened)
        if self._socket is not None and self.state is not ConnectionState.ACTIVE:
            self._socket.drop_at_close(False)  # there may be records that are not acknowledged (acks=0)
        if self.state is not ConnectionState.RENEWING:  # else the event loop owns it until the future is done
            self._close_socket()
        elif self._opening is not None and self._socket is not None:
            lent = self._socket
            self._opening.add_done_callback(lambda _: lent.close())
        self._opening = None


def _close_opened(opening: Future[Opened]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().socket.close()
