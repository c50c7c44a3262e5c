"""How long brokers throttle a client because of quotas (KIP-13, KIP-219)."""

from __future__ import annotations

from typing import NamedTuple

from .retry_log import THROTTLED, RetryLog
from .traffic import Traffic

#: The quotas that throttle a kind of request besides request_percentage, by its name.
_QUOTAS = {"Fetch": "consumer_byte_rate", "Produce": "producer_byte_rate", "CreateTopics": "controller_mutation_rate"}


class Times(NamedTuple):
    """A time of each of some responses, such as the throttle time or the latency, in ms; 0 counts, too."""

    responses: int = 0
    total_ms: int = 0
    highest_ms: int = 0

    def with_one(self, ms: int) -> Times:
        """Return these times and another one."""
        return Times(self.responses + 1, self.total_ms + ms, max(self.highest_ms, ms))


class Health(NamedTuple):
    """The operations that a client waits for, as texts, and what it has measured.

    throttled, latencies: of the responses since the last call. traffic: of all connections since the start.
    """

    waits: tuple[str, ...] = ()
    throttled: Times = Times()
    latencies: Times = Times()
    traffic: Traffic = Traffic()


class Throttle:
    """The quota throttles of one client. client_id: its client.id, which quotas name."""

    def __init__(self, retries: RetryLog, client_id: str) -> None:
        self._retries = retries
        self._client_id = client_id
        self._times = Times()
        self._until_ms: dict[object, float] = {}  # the end of the last throttle, by broker

    def note(self, broker: object, request: str, throttle_ms: int, now_ms: float) -> None:
        """Record a response. broker: its id or address; request: the kind, such as Fetch."""
        self._times = self._times.with_one(throttle_ms)
        if throttle_ms > 0:
            self._until_ms[broker] = max(self._until_ms.get(broker, 0), now_ms + throttle_ms)
            what, why = self._what(broker, request), self._why(request)
            self._retries.failed(what, why, now_ms, state=THROTTLED, lasts_ms=throttle_ms)
        elif self._retries:
            self._retries.succeeded(self._what(broker, request), now_ms)

    @staticmethod
    def _what(broker: object, request: str) -> str:
        return f"{request} by broker {broker}"

    def _why(self, request: str) -> str:
        quota = _QUOTAS.get(request)
        names = "request_percentage" if quota is None else f"{quota} or request_percentage"
        return (
            f"a quota of client.id={self._client_id} or its user is exceeded, {names} "
            "(kafka-configs.sh --describe --entity-type clients, or users, shows it)"
        )

    def ago_ms(self, broker: object, now_ms: float) -> float | None:
        """Return the ms since the last throttle of a broker ended: negative during a throttle, None without one."""
        until_ms = self._until_ms.get(broker)
        return None if until_ms is None else now_ms - until_ms

    def take_times(self) -> Times:
        """Return the throttle times since the last call."""
        times, self._times = self._times, Times()
        return times
