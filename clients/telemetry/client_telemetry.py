"""Asks a broker which metrics of this client it wants, and pushes them (KIP-714; Kafka: ClientTelemetryReporter)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol
from uuid import UUID

from penstock.kernel.compression import CODECS, Codec

from ..clock import Clock
from ..errors import ErrorCode, RetriableError, UnreachableError
from ..log_context import PrefixedLogger
from ..protocol.schema import Request
from ..protocol.telemetry_messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from ..state_machine import StateMachine
from .client_telemetry_state import TELEMETRY_TRANSITIONS, ClientTelemetryState
from .telemetry_collector import TelemetryCollector, TelemetryPoint

_S = ClientTelemetryState
#: How long to wait before the next request where no broker has named an interval, in ms; also where none supports it.
DEFAULT_PUSH_INTERVAL_MS = 5 * 60 * 1000
#: The first push is this part of the interval after the subscription: clients that start together spread their pushes.
INITIAL_PUSH_JITTER = (0.5, 1.5)
#: The pause after a lost connection, in ms. Connecting has its own backoff; a client without an id should get it soon.
UNREACHABLE_MS = 5_000
_NO_ID = bytes(16)
#: Errors after which another request would fail alike.
_FATAL = (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_VERSION)
#: Errors that a new subscription resolves.
_STALE = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_DELAYED = (ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)

#: Reads the client's current metrics.
Measure = Callable[[], Iterable[TelemetryPoint]]


class TelemetryBrokers(Protocol):
    """The brokers of a client, as its telemetry uses them."""

    def ask_any(self, request: Request) -> Future[SimpleNamespace]:
        """Send a request to any broker. Errors are UnreachableError and BrokerError."""


@dataclass(frozen=True, slots=True)
class TelemetrySubscription:
    """What a broker wants of this client. metrics: prefixes of names. max_bytes: of a payload."""

    client_instance_id: bytes
    id: int
    interval_ms: int
    compression_types: tuple[int, ...]
    is_delta: bool
    metrics: list[str]
    max_bytes: int


@dataclass(eq=False)
class ClientTelemetry:
    """The telemetry of one client, for one thread that calls advance() often.

    client_id: of the client, for the log. labels: attributes that describe it; they may change. clock and rng: for
    intervals and their jitter.
    """

    client_id: str
    brokers: TelemetryBrokers
    labels: dict[str, str]
    clock: Clock
    rng: random.Random

    def __post_init__(self) -> None:
        self._log = PrefixedLogger("penstock.clients.telemetry", f"[{self.client_id}] ")
        self._states = StateMachine(_S.SUBSCRIPTION_NEEDED, TELEMETRY_TRANSITIONS, self._log, level=logging.DEBUG)
        self._collector = TelemetryCollector(self.clock.wall_clock_ms() * 1_000_000)
        self._subscription: TelemetrySubscription | None = None
        self._asked: Future[SimpleNamespace] | None = None
        self._due_ms = self.clock.monotonic_ms()
        self._warned_bytes = 0
        #: False after an error that makes further requests useless.
        self.enabled = True

    @property
    def state(self) -> ClientTelemetryState:
        """The current state."""
        return self._states.state

    @property
    def client_instance_id(self) -> UUID | None:
        """The id that a broker has given to this client; None before its first response."""
        return None if self._subscription is None else UUID(bytes=self._subscription.client_instance_id)

    @property
    def response(self) -> Future[SimpleNamespace] | None:
        """The response of a broker that advance() waits for; None if it waits only for its time."""
        return self._asked

    def due_in_seconds(self) -> float | None:
        """Return the time until advance() is due; None once nothing is sent any more."""
        return max(self._due_ms - self.clock.monotonic_ms(), 0) / 1000 if self.enabled else None

    def advance(self, measure: Measure) -> None:
        """Send what is due, handle what has arrived; does not block. measure: called for each push."""
        if self._asked is not None:
            if self._asked.done():
                asked, self._asked = self._asked, None
                self._handle(asked)
        elif self.enabled and self.clock.monotonic_ms() >= self._due_ms:
            self._ask(measure)

    def _ask(self, measure: Measure) -> None:
        if self.state is _S.SUBSCRIPTION_NEEDED:
            known = self._subscription
            self._states.transition_to(_S.SUBSCRIPTION_IN_PROGRESS)
            self._asked = self.brokers.ask_any(
                GET_TELEMETRY_SUBSCRIPTIONS(client_instance_id=known.client_instance_id if known else _NO_ID)
            )
        elif self.state is _S.PUSH_NEEDED:
            assert self._subscription is not None
            request = self._push(measure, self._subscription)
            if request is None:
                self._due_ms = self.clock.monotonic_ms() + self._subscription.interval_ms
                return
            self._states.transition_to(_S.PUSH_IN_PROGRESS)
            self._asked = self.brokers.ask_any(request)

    def _push(self, measure: Measure, wanted: TelemetrySubscription, is_last: bool = False) -> Request | None:
        """Return the request with the current metrics; None if they are more than the broker takes."""
        now_ns = self.clock.wall_clock_ms() * 1_000_000
        points = list(measure())  # first: it may change the labels
        data = self._collector.payload(points, wanted.metrics, self.labels, now_ns, wanted.is_delta)
        if 0 < wanted.max_bytes < len(data):  # Kafka 4.4 checks the size before compression, too
            self._warn_of_size(len(data), wanted.max_bytes)
            return None
        codec = _preferred(wanted.compression_types)
        payload = bytes(codec.compress(data))
        return PUSH_TELEMETRY(
            client_instance_id=wanted.client_instance_id,
            subscription_id=wanted.id,
            terminating=is_last,
            compression_type=codec.number,
            metrics=payload,
        )

    def _warn_of_size(self, size: int, limit: int) -> None:
        """Warn once of each larger size."""
        if size > self._warned_bytes:
            self._warned_bytes = size
            self._log.warning(
                "%d bytes of metrics are not pushed: the broker takes %d (telemetry.max.bytes). Raise that, or "
                "subscribe to fewer metrics.",
                size,
                limit,
            )

    def _handle(self, asked: Future[SimpleNamespace]) -> None:
        error = _error(asked)
        if error is not None:
            self._on_failure(error)
            return
        response = asked.result()
        if response.error_code:
            self._on_error(ErrorCode(response.error_code))
        elif self.state is _S.SUBSCRIPTION_IN_PROGRESS:
            self._on_subscription(response)
        else:
            assert self._subscription is not None
            self._collector.acknowledge()
            self._states.transition_to(_S.PUSH_NEEDED)
            self._due_ms = self.clock.monotonic_ms() + self._subscription.interval_ms

    def _on_failure(self, error: BaseException) -> None:
        """Ask again later: the connection was lost, or this broker does not push metrics, and another one may."""
        pause_ms = UNREACHABLE_MS if isinstance(error, RetriableError) else DEFAULT_PUSH_INTERVAL_MS
        self._log.debug("Metrics cannot be pushed, and are asked for again in %d ms: %s", pause_ms, error)
        self._states.transition_to(_S.SUBSCRIPTION_NEEDED)
        self._due_ms = self.clock.monotonic_ms() + pause_ms

    def _on_error(self, code: ErrorCode) -> None:
        known_ms = DEFAULT_PUSH_INTERVAL_MS if self._subscription is None else self._subscription.interval_ms
        self._states.transition_to(_S.SUBSCRIPTION_NEEDED)
        if code in _STALE:
            self._log.debug("The broker has another subscription: %s", code.name)
            self._due_ms = self.clock.monotonic_ms()
        elif code in _DELAYED:
            self._log.log(
                logging.WARNING if code is ErrorCode.TELEMETRY_TOO_LARGE else logging.DEBUG,
                "The broker has refused metrics, and is asked again in %d ms: %s",
                known_ms,
                code.name,
            )
            self._due_ms = self.clock.monotonic_ms() + known_ms
        else:
            self.enabled = False
            why = "the request cannot succeed" if code in _FATAL else "an unexpected error"
            self._log.warning("No metrics are pushed to brokers any more: %s, %s", code.name, why)

    def _on_subscription(self, response: SimpleNamespace) -> None:
        interval_ms = response.push_interval_ms if response.push_interval_ms > 0 else DEFAULT_PUSH_INTERVAL_MS
        before = self._subscription
        if before is not None and before.is_delta != response.delta_temporality:
            self._collector.reset()
        client_instance_id = response.client_instance_id
        if before is not None and not any(client_instance_id):  # KIP-714: zeros if the client has an id already
            client_instance_id = before.client_instance_id
        self._subscription = TelemetrySubscription(
            client_instance_id,
            response.subscription_id,
            interval_ms,
            tuple(response.accepted_compression_types),
            response.delta_temporality,
            response.requested_metrics,
            response.telemetry_max_bytes,
        )
        if before is None:
            self._log.info("Client telemetry registered with client instance id: %s", self.client_instance_id)
        if response.requested_metrics:
            self._states.transition_to(_S.PUSH_NEEDED)
            interval_ms = round(interval_ms * self.rng.uniform(*INITIAL_PUSH_JITTER))
        else:
            self._states.transition_to(_S.SUBSCRIPTION_NEEDED)
        self._due_ms = self.clock.monotonic_ms() + interval_ms

    def begin_close(self, measure: Measure) -> None:
        """Send the last metrics, if a broker subscribes to any; finish_close() waits for its response."""
        wanted = self._subscription
        if self.state in (_S.PUSH_NEEDED, _S.PUSH_IN_PROGRESS) and wanted is not None and wanted.metrics:
            if self.state is _S.PUSH_IN_PROGRESS:
                self._collector.acknowledge()  # most likely the broker has it: it must not count twice
            self._states.transition_to(_S.TERMINATING_PUSH_NEEDED)
            request = self._push(measure, wanted, is_last=True)
            if request is not None:
                self._states.transition_to(_S.TERMINATING_PUSH_IN_PROGRESS)
                self._asked = self.brokers.ask_any(request)

    def finish_close(self, seconds: float) -> None:
        """Wait for the response to the last push, for at most this time; then nothing is sent any more."""
        if self.state is _S.TERMINATED:
            return
        if self.state is _S.TERMINATING_PUSH_IN_PROGRESS and self._asked is not None:
            try:
                error = _error(self._asked, seconds)
            except TimeoutError:
                self._log.info("The last metrics were not acknowledged within %.1f s", seconds)
            else:
                if error is not None:
                    self._log.info("The last metrics could not be pushed: %s", error)
        self._asked = None
        self._states.transition_to(_S.TERMINATED)


def _error(asked: Future[SimpleNamespace], seconds: float = 0) -> BaseException | None:
    """Return the error of a request; closing the connections cancels it. Raises TimeoutError if it does not finish."""
    try:
        return asked.exception(seconds)
    except CancelledError:
        return UnreachableError("the connections are closed")


def _preferred(accepted: Iterable[int]) -> Codec:
    """Return the first accepted codec that is known here: brokers name them by preference."""
    known = {codec.number: codec for codec in CODECS.values()}
    return next((known[number] for number in accepted if number in known), CODECS["none"])
