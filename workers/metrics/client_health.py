"""What a stream thread's Kafka clients wait for, and their metrics (Kafka: FetchMetricsManager, SelectorMetrics).

Read with each beat of the stream thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.clients.throttle import Health, Times
from penstock.clients.traffic import Traffic

from .sensors import MetricGroup, ThreadMetrics, rate_and_total
from .task_metrics import Growth


class _Kind(NamedTuple):
    """Names of metrics, as in Kafka's Java clients: the groups, the request, and its latency."""

    group: str
    connections: str
    request: str
    latency: str


FETCH_GROUP = "consumer-fetch-manager-metrics"
READER = _Kind(FETCH_GROUP, "consumer-metrics", "fetch", "fetch-latency")
WRITER = _Kind("producer-metrics", "producer-metrics", "produce", "request-latency")


#: The metrics of connections that count events, by the field of Traffic.
_COUNTED = {
    "connection-creation": "created",
    "connection-close": "closed",
    "successful-authentication": "authenticated",
    "failed-authentication": "failed_authentications",
    "request": "requests",
    "response": "responses",
    "outgoing-byte": "bytes_out",
    "incoming-byte": "bytes_in",
    "network-io": "operations",
}


class _Timed:
    """The average and the maximum of a time of each response, in ms."""

    def __init__(self, name: str, metrics: ThreadMetrics) -> None:
        self._name = name
        self._average, self._highest = metrics.sensor(), metrics.sensor()
        self._total_ms = 0

    def look(self, times: Times, now_ms: int) -> None:
        """Record the times since the last call."""
        if times.responses:
            self._average.record(times.total_ms / times.responses, now_ms, times.responses)
            self._highest.record(times.highest_ms, now_ms)
            self._total_ms += times.total_ms

    def values(self, now_ms: int) -> dict[str, float]:
        """Return the metrics."""
        average, highest = self._average.average(now_ms), self._highest.highest(now_ms)
        return {f"{self._name}-avg": average, f"{self._name}-max": highest}

    def total(self) -> dict[str, float]:
        """Return the sum, which is Penstock's own."""
        return {f"{self._name}-total": float(self._total_ms)}


class _ConnectionMetrics:
    """The connections of one client (Kafka: SelectorMetrics)."""

    def __init__(self, metrics: ThreadMetrics) -> None:
        self._counted = {name: Growth(metrics.sensor()) for name in _COUNTED}
        self._size, self._largest = metrics.sensor(), metrics.sensor()
        self._before = Traffic()

    def look(self, traffic: Traffic, now_ms: int) -> None:
        """Record the traffic since the last call."""
        for name, growth in self._counted.items():
            growth.look(getattr(traffic, _COUNTED[name]), now_ms)
        if requests := traffic.requests - self._before.requests:
            self._size.record((traffic.bytes_out - self._before.bytes_out) / requests, now_ms, requests)
            self._largest.record(traffic.largest_request, now_ms)
        self._before = traffic

    def values(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """Yield the metrics; sizes in bytes."""
        yield "connection-count", float(self._before.connections)
        for name, growth in self._counted.items():
            yield from rate_and_total(name, growth.sensor, now_ms)
        yield "request-size-avg", self._size.average(now_ms)
        yield "request-size-max", self._largest.highest(now_ms)


class _Client:
    """The throttle times, latencies and connections of one client, which reads or writes."""

    def __init__(self, kind: _Kind, health: Callable[[], Health], metrics: ThreadMetrics) -> None:
        self._kind, self._health = kind, health
        self._throttled = _Timed(f"{kind.request}-throttle-time", metrics)
        self._latencies = _Timed(kind.latency, metrics)
        self._responses = Growth(metrics.sensor())
        self._answered = 0
        self._connections = _ConnectionMetrics(metrics)

    def look(self, now_ms: int) -> tuple[str, ...]:
        """Record the measurements since the last call; return the operations that the client waits for."""
        health = self._health()
        self._throttled.look(health.throttled, now_ms)
        self._latencies.look(health.latencies, now_ms)
        self._answered += health.latencies.responses
        self._responses.look(self._answered, now_ms)
        self._connections.look(health.traffic, now_ms)
        return health.waits

    def groups(self, client_id: str, now_ms: int) -> Iterator[MetricGroup]:
        """Yield the metrics of requests and of connections."""
        tags = {"client-id": client_id}
        values = self._throttled.values(now_ms) | self._throttled.total() | self._latencies.values(now_ms)
        if self._kind is READER:
            values |= dict(rate_and_total("fetch", self._responses.sensor, now_ms))
        connections = dict(self._connections.values(now_ms))
        if self._kind.connections == self._kind.group:
            yield MetricGroup(self._kind.group, tags, values | connections)
        else:
            yield MetricGroup(self._kind.group, tags, values)
            yield MetricGroup(self._kind.connections, tags, connections)


@dataclass(eq=False)
class ClientHealth:
    """The clients of one stream thread.

    readers, writer: functions that return their Health, readers by the end of their client ids. others: returns the
    operations that other clients wait for.
    """

    thread_id: str
    readers: Mapping[str, Callable[[], Health]]
    writer: Callable[[], Health]
    others: tuple[Callable[[], tuple[str, ...]], ...]
    metrics: ThreadMetrics

    def __post_init__(self) -> None:
        self._clients = {name: _Client(READER, health, self.metrics) for name, health in self.readers.items()}
        self._clients["producer"] = _Client(WRITER, self.writer, self.metrics)

    def look(self, now_ms: int) -> tuple[str, ...]:
        """Record throttle times; return the operations that the clients wait for, as texts."""
        found = [text for client in self._clients.values() for text in client.look(now_ms)]
        return (*found, *(text for waits in self.others for text in waits()))

    def groups(self, now_ms: int) -> Iterator[MetricGroup]:
        """Yield the metrics of each client."""
        for name, client in self._clients.items():
            yield from client.groups(f"{self.thread_id}-{name}", now_ms)
