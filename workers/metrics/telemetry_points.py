"""Metrics as they are pushed to brokers (KIP-714)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.clients.telemetry.telemetry_collector import TelemetryPoint, telemetry_attributes, telemetry_name

from .sensors import MetricGroup, only_grows

#: Metrics that Kafka Streams has as integers; all others are sent as doubles.
_INTEGERS = frozenset(
    (
        "alive-stream-threads",
        "client-state",
        "num-open-iterators",
        "oldest-iterator-open-since-ms",
        "thread-start-time",
        "thread-state",
    )
)


def telemetry_points(groups: Iterable[MetricGroup]) -> Iterator[TelemetryPoint]:
    """Yield the metrics of groups, with the names and attributes under which they are pushed."""
    for group in groups:
        attributes = telemetry_attributes(group.tags)
        for name, value in group.values.items():
            number = int(value) if name in _INTEGERS else float(value)
            yield TelemetryPoint(telemetry_name(group.group, name), attributes, number, only_grows(name))
