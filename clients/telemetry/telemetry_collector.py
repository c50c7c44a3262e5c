"""The metrics that a client pushes: their names, and their bytes in OpenTelemetry's protocol (KIP-714).

Kafka's classes: KafkaMetricsCollector, TelemetryMetricNamingConvention, ClientTelemetryEmitter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

#: The names of Kafka's metrics begin with it; Penstock's own begin with penstock.
_DOMAIN = "org.apache.kafka"
_OWN_GROUP = "penstock-"
#: The broker adds the client id, which it knows from the request.
_EXCLUDED_TAG = "client-id"
#: A subscription with this name alone is one to all metrics.
_ALL = "*"

#: A metric's name and its attributes in a fixed order.
_Key = tuple[str, tuple[tuple[str, str], ...]]


class TelemetryPoint(NamedTuple):
    """One value. name: see telemetry_name. is_counter: whether it only grows. Values that are int are sent as such."""

    name: str
    attributes: Mapping[str, str]
    value: float
    is_counter: bool


def telemetry_name(group: str, name: str) -> str:
    """Return the name of a metric in a subscription: ``org.apache.kafka.stream.thread.process.rate`` for
    ``process-rate`` of the group ``stream-thread-metrics``.
    """
    domain = "" if group.startswith(_OWN_GROUP) else f"{_DOMAIN}."
    cleaned = group.lower().replace("-", ".").replace(".metrics", "")
    return f"{domain}{cleaned}.{name.lower().replace('-', '.')}"


def telemetry_attributes(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a metric with these tags: ``thread_id`` for ``thread-id``."""
    return {key.lower().replace("-", "_"): value for key, value in tags.items() if key != _EXCLUDED_TAG}


def is_subscribed(name: str, prefixes: Collection[str]) -> bool:
    """Return whether a subscription to these prefixes of names includes a metric."""
    return prefixes == [_ALL] or name.startswith(tuple(prefixes))


class TelemetryCollector:
    """Makes the payload of each push; remembers counters, because a broker may ask for their differences.

    since_ns: the time from which the first values count, in ns since the epoch.
    """

    def __init__(self, since_ns: int) -> None:
        self._collected_ns = since_ns
        self._began_ns: dict[_Key, int] = {}
        self._acknowledged: dict[_Key, float] = {}
        self._sent: dict[_Key, float] = {}
        self._acknowledged_ns = self._sent_ns = since_ns

    def reset(self) -> None:
        """Forget the last values: the broker asks for differences now, or for totals."""
        self._acknowledged.clear()
        self._began_ns.clear()

    def acknowledge(self) -> None:
        """Count differences from the last payload: the broker has it."""
        self._acknowledged, self._acknowledged_ns = self._sent, self._sent_ns

    def payload(
        self,
        points: Iterable[TelemetryPoint],
        prefixes: Collection[str],
        labels: Mapping[str, str],
        now_ns: int,
        is_delta: bool,
    ) -> bytes:
        """Return the subscribed metrics as a MetricsData message.

        prefixes: of the subscribed names. labels: describe the client. is_delta: counters as differences to the last
        acknowledged payload. now_ns: the wall clock.
        """
        # Imported only where a broker subscribes: it takes 3 MB of memory in each process.
        from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp

        message = otlp.MetricsData()
        of_client = message.resource_metrics.add()
        _add(of_client.resource.attributes, labels)
        metrics = of_client.scope_metrics.add().metrics
        by_name: dict[str, Any] = {}
        began_ns: dict[_Key, int] = {}
        self._sent, self._sent_ns = {}, now_ns
        for name, attributes, value, is_counter in points:
            if not is_subscribed(name, prefixes):
                continue
            if name not in by_name:
                by_name[name] = metrics.add(name=name)
            if is_counter:
                key = name, tuple(sorted(attributes.items()))
                began_ns[key] = self._began_ns.get(key, self._collected_ns)
                point = self._add_sum(otlp, by_name[name], key, float(value), began_ns[key], is_delta)
            else:
                point = by_name[name].gauge.data_points.add()
                if isinstance(value, int):
                    point.as_int = value
                else:
                    point.as_double = value
            point.time_unix_nano = now_ns
            _add(point.attributes, attributes)
        self._began_ns, self._collected_ns = began_ns, now_ns
        data: bytes = message.SerializeToString()
        return data

    def _add_sum(self, otlp: Any, metric: Any, key: _Key, value: float, began_ns: int, is_delta: bool) -> Any:
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = (
            otlp.AGGREGATION_TEMPORALITY_DELTA if is_delta else otlp.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
        self._sent[key] = value
        before = self._acknowledged.get(key)
        point = metric.sum.data_points.add()
        point.as_double, point.start_time_unix_nano = value, began_ns
        # A value below the last one is that of a new object under the same name, e.g. of a task that has returned.
        if is_delta and before is not None and value >= before:
            point.as_double, point.start_time_unix_nano = value - before, self._acknowledged_ns
        return point


def _add(attributes: Any, values: Mapping[str, str]) -> None:
    for key, value in values.items():
        attributes.add(key=key).value.string_value = value
