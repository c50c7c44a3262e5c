"""One broker, as fetching has it: connected or not, with one request on its way at most (Kafka: NetworkClient)."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto

from penstock.kernel import record_batches

from ..log_context import TRACE, PrefixedLogger
from ..record_source import NotFetchableError
from ..state_machine import StateMachine
from .broker_socket import BrokerSocket
from .brokers import Brokers, TooOldError
from .fetch_settings import FetchSettings


class LinkState(Enum):
    """CLOSED: not connected, perhaps until a moment. WAITING: for an answer."""

    CLOSED = auto()
    CONNECTING = auto()
    IDLE = auto()
    WAITING = auto()


_S = LinkState
LINK_TRANSITIONS = {
    _S.CLOSED: (_S.CONNECTING,),
    _S.CONNECTING: (_S.IDLE, _S.CLOSED),
    _S.IDLE: (_S.WAITING, _S.CLOSED),
    _S.WAITING: (_S.IDLE, _S.CLOSED),
}


class BrokerLink:
    """Connects when it is told to, sends one request, has its answer. Never waits; selector: watches its socket.

    on_done: called on another thread when a connection is made or refused.
    """

    def __init__(
        self,
        node: int,
        brokers: Brokers,
        settings: FetchSettings,
        selector: selectors.BaseSelector,
        on_done: Callable[[], None],
        log: PrefixedLogger,
    ) -> None:
        self.node = node
        self._brokers = brokers
        self._settings = settings
        self._selector = selector
        self._on_done = on_done
        self._states = StateMachine(_S.CLOSED, LINK_TRANSITIONS, log, level=TRACE)
        self._opening: Future[socket.socket] | None = None
        self._socket: BrokerSocket | None = None
        self._correlation_id = 0
        self._deadline_ms = 0
        self._not_before_ms = 0  # a quota, or a failure: nothing is sent until then
        #: Why the connection was lost or refused, None since there is one again.
        self.failure: str | None = None

    @property
    def state(self) -> LinkState:
        """Return the state."""
        return self._states.state

    def is_ready(self, now_ms: int) -> bool:
        """Return whether a request may be sent now. Begins to connect if it must."""
        if now_ms < self._not_before_ms:
            return False
        if self.state is _S.CLOSED:
            self._states.transition_to(_S.CONNECTING)
            self._opening = self._brokers.open(self.node, self._on_done)
        return self.state is _S.IDLE

    def next_at(self, now_ms: int) -> int | None:
        """Return when something is to be done though no answer comes, in ms, None if nothing is."""
        if self.state is _S.WAITING:
            return self._deadline_ms
        return self._not_before_ms if self._not_before_ms > now_ms else None

    def send(self, request: Callable[[int], bytes], max_wait_ms: int, now_ms: int) -> None:
        """Send the request that a correlation id makes. If the connection is lost, advance() says so."""
        assert self._socket is not None
        self._correlation_id = (self._correlation_id + 1) % (1 << 31)
        self._deadline_ms = now_ms + max_wait_ms + self._settings.request_timeout_ms
        self._states.transition_to(_S.WAITING)
        try:
            self._socket.send(request(self._correlation_id))
        except OSError as error:
            self._lose(error, now_ms)

    def advance(self, now_ms: int) -> record_batches.FetchAnswer | None:
        """Take a connection that was made, or return an answer that has come.

        Raises NotFetchableError if the broker is too old for our requests.
        """
        if self.state is _S.CONNECTING:
            self._take_socket(now_ms)
        elif self.state is _S.WAITING:
            return self._receive(now_ms)
        elif self.state is _S.IDLE:
            self._notice_its_end(now_ms)
        return None

    def _notice_its_end(self, now_ms: int) -> None:
        """Let go of a connection that the broker closed because nothing was asked for long: that is no failure."""
        assert self._socket is not None
        try:
            if self._socket.receive() is not None:
                self._lose(ConnectionError("an answer that was not asked for"), now_ms)
        except OSError:
            self._close_socket()
            self._states.transition_to(_S.CLOSED)

    def _take_socket(self, now_ms: int) -> None:
        assert self._opening is not None
        if not self._opening.done():
            return
        error, opening = self._opening.exception(), self._opening
        self._opening = None
        if isinstance(error, TooOldError):
            self._states.transition_to(_S.CLOSED)
            raise NotFetchableError(f"broker {self.node} is older than Kafka 2.7: {error}") from error
        if error is not None:
            self._lose(error, now_ms)
            return
        self._socket = BrokerSocket(opening.result(), self._settings.max_answer_bytes)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._not_before_ms, self.failure = 0, None
        self._states.transition_to(_S.IDLE)

    def _receive(self, now_ms: int) -> record_batches.FetchAnswer | None:
        assert self._socket is not None
        try:
            received = self._socket.receive()
            if received is None:
                if now_ms >= self._deadline_ms:
                    raise TimeoutError(f"no answer within {self._settings.request_timeout_ms} ms")
                return None
            answer = record_batches.FetchAnswer(received)
            if answer.correlation_id != self._correlation_id:
                raise ConnectionError(f"answer {answer.correlation_id} to request {self._correlation_id}")
        except (OSError, ValueError) as error:
            self._lose(error, now_ms)
            return None
        self._not_before_ms = now_ms + answer.throttle_ms if answer.throttle_ms > 0 else 0  # KIP-219
        self._states.transition_to(_S.IDLE)
        return answer

    def _lose(self, error: BaseException, now_ms: int) -> None:
        self.failure = str(error) or type(error).__name__
        self._not_before_ms = now_ms + self._settings.retry_backoff_ms
        self._close_socket()
        self._states.transition_to(_S.CLOSED)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
        self._socket = None

    def close(self) -> None:
        """Close the connection, or the one that is being made."""
        self._close_socket()
        if self._opening is not None:
            self._opening.add_done_callback(_close_opened)
            self._opening = None


def _close_opened(opening: Future[socket.socket]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
