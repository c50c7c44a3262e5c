"""Metrics that user code adds in processors (Kafka Streams: StreamsMetrics), one registry for each stream thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from typing_extensions import override

from penstock.topology import processor_api
from penstock.topology.processor_api import Statistic

from .sensors import Metric, MetricGroup, Sensor

#: A metric's group, tags and name.
MetricKey = tuple[str, tuple[tuple[str, str], ...], str]


class CustomSensor(processor_api.Sensor):
    """recorded: the values that the statistics are computed from, in addition to the sum and the last value."""

    def __init__(
        self, recorded: Sensor, now_ms: Callable[[], int], add: Callable[..., None], parents: tuple[CustomSensor, ...]
    ) -> None:
        self.recorded = recorded
        self.sum: float = 0.0
        self.value: float = 0.0
        self._now_ms = now_ms
        self._add = add
        self._parents = parents

    @override
    def record(self, value: float = 1.0) -> None:
        self.value = float(value)
        self.sum += self.value
        self.recorded.record(self.value, self._now_ms())
        for parent in self._parents:
            parent.record(value)

    @override
    def add(self, name: str, statistic: Statistic, group: str, tags: Mapping[str, str] | None = None) -> None:
        self._add(self, name, statistic, group, tags)


#: Functions that read a statistic from a sensor at a time (ms).
READ: Mapping[Statistic, Callable[[CustomSensor, int], float]] = {
    "avg": lambda sensor, now_ms: sensor.recorded.average(now_ms),
    "max": lambda sensor, now_ms: sensor.recorded.highest(now_ms),
    "min": lambda sensor, now_ms: sensor.recorded.lowest(now_ms),
    "rate": lambda sensor, now_ms: sensor.recorded.rate(now_ms),
    "total": lambda sensor, now_ms: float(sensor.recorded.total),
    "sum": lambda sensor, now_ms: sensor.sum,
    "value": lambda sensor, now_ms: sensor.value,
}


class CustomMetrics(processor_api.StreamsMetrics):
    """tags: of all metrics here, such as the thread's name. make_sensor: creates sensors with the configured windows.
    now_ms: the clock of the windows.
    """

    def __init__(self, tags: Mapping[str, str], make_sensor: Callable[[], Sensor], now_ms: Callable[[], int]) -> None:
        self._tags = tags
        self._make_sensor = make_sensor
        self._now_ms = now_ms
        self._sensors: dict[object, CustomSensor] = {}
        self._metrics: dict[MetricKey, tuple[CustomSensor, Statistic]] = {}

    @override
    def add_sensor(self, name: str, *parents: CustomSensor) -> CustomSensor:
        return self._sensor(name, parents)

    @override
    def add_rate_total_sensor(
        self, scope_name: str, entity_name: str, operation_name: str, tags: Mapping[str, str] | None = None
    ) -> CustomSensor:
        group, own = f"stream-{scope_name}-metrics", {f"{scope_name}-id": entity_name, **(tags or {})}
        sensor = self._sensor((group, operation_name, *own.items()))
        sensor.add(f"{operation_name}-rate", "rate", group, own)
        sensor.add(f"{operation_name}-total", "total", group, own)
        return sensor

    @override
    def add_latency_rate_total_sensor(
        self, scope_name: str, entity_name: str, operation_name: str, tags: Mapping[str, str] | None = None
    ) -> CustomSensor:
        sensor = self.add_rate_total_sensor(scope_name, entity_name, operation_name, tags)
        group, own = f"stream-{scope_name}-metrics", {f"{scope_name}-id": entity_name, **(tags or {})}
        sensor.add(f"{operation_name}-latency-avg", "avg", group, own)
        sensor.add(f"{operation_name}-latency-max", "max", group, own)
        return sensor

    @override
    def remove_sensor(self, sensor: CustomSensor) -> None:
        self._sensors = {key: other for key, other in self._sensors.items() if other is not sensor}
        self._metrics = {key: found for key, found in self._metrics.items() if found[0] is not sensor}

    @override
    def metrics(self) -> list[Metric]:
        return [
            Metric(name, each.group, each.tags, value) for each in self.groups() for name, value in each.values.items()
        ]

    def groups(self) -> Iterator[MetricGroup]:
        """Yield all metrics."""
        now_ms = self._now_ms()
        found: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, float]] = {}
        for (group, tags, name), (sensor, statistic) in self._metrics.items():
            found.setdefault((group, tags), {})[name] = READ[statistic](sensor, now_ms)
        for (group, tags), values in found.items():
            yield MetricGroup(group, {**self._tags, **dict(tags)}, values)

    def _sensor(self, key: object, parents: tuple[CustomSensor, ...] = ()) -> CustomSensor:
        sensor = self._sensors.get(key)
        if sensor is None:
            sensor = self._sensors[key] = CustomSensor(self._make_sensor(), self._now_ms, self._add, parents)
        return sensor

    def _add(
        self, sensor: CustomSensor, name: str, statistic: Statistic, group: str, tags: Mapping[str, str] | None
    ) -> None:
        if statistic not in READ:
            raise ValueError(f"{statistic!r} is no statistic of a sensor: use one of {', '.join(READ)}")
        own = {str(key): str(value) for key, value in (tags or {}).items()}
        key = group, tuple(sorted(own.items())), name
        if self._metrics.setdefault(key, (sensor, statistic)) != (sensor, statistic):
            raise ValueError(f"There is a metric {name} already in the group {group} with the tags {own}")
