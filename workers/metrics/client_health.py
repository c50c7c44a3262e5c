"""The pending operations of a stream thread's Kafka clients, and their throttle times (Kafka: FetchMetricsManager).

Read with each beat of the stream thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.clients.throttle import Health

from .sensors import MetricGroup, Sensor, ThreadMetrics

#: Metric groups of consumers and producers, as in Kafka's Java clients.
FETCH_GROUP = "consumer-fetch-manager-metrics"
PRODUCER_GROUP = "producer-metrics"


class _ThrottledClient:
    """The throttle times of one client. name: of the metrics, before ``-throttle-time``."""

    def __init__(self, group: str, name: str, health: Callable[[], Health], metrics: ThreadMetrics) -> None:
        self._group, self._name, self._health = group, name, health
        self._average: Sensor = metrics.sensor()
        self._highest: Sensor = metrics.sensor()
        self._total_ms = 0

    def look(self, now_ms: int) -> tuple[str, ...]:
        """Record the throttle times since the last call; return the operations that the client waits for."""
        health = self._health()
        responses, total_ms, highest_ms = health.throttled
        if responses:
            self._average.record(total_ms / responses, now_ms, responses)
            self._highest.record(highest_ms, now_ms)
            self._total_ms += total_ms
        return health.waits

    def metric_group(self, client_id: str, now_ms: int) -> MetricGroup:
        """Return the metrics, in ms."""
        values = {
            f"{self._name}-throttle-time-avg": self._average.average(now_ms),
            f"{self._name}-throttle-time-max": self._highest.highest(now_ms),
            f"{self._name}-throttle-time-total": float(self._total_ms),
        }
        return MetricGroup(self._group, {"client-id": client_id}, values)


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
        self._clients = {
            name: _ThrottledClient(FETCH_GROUP, "fetch", health, self.metrics) for name, health in self.readers.items()
        }
        self._clients["producer"] = _ThrottledClient(PRODUCER_GROUP, "produce", self.writer, self.metrics)

    def look(self, now_ms: int) -> tuple[str, ...]:
        """Record throttle times; return the operations that the clients wait for, as texts."""
        found = [text for client in self._clients.values() for text in client.look(now_ms)]
        return (*found, *(text for waits in self.others for text in waits()))

    def groups(self, now_ms: int) -> Iterator[MetricGroup]:
        """Yield the metrics of each client."""
        for name, client in self._clients.items():
            yield client.metric_group(f"{self.thread_id}-{name}", now_ms)
