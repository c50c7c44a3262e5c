"""The metrics of a task at metrics.recording.level DEBUG and TRACE; see topology/context/tallies.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.topology.context.tallies import TalliedMetrics, Tallies

from .sensors import STATISTICS, MetricGroup, Sensor, ThreadMetrics


class TallyMetrics:
    """The sensors of one task's tallies. tallies: None at level INFO."""

    def __init__(self, tallies: Tallies | None, thread: ThreadMetrics) -> None:
        self._tallies = {} if tallies is None else tallies.by_metrics
        self._make_sensor = thread.sensor
        self._sensors: dict[TalliedMetrics, Sensor] = {}

    def look(self, now_ms: int) -> None:
        """Record what was measured since the last call. Called with each beat."""
        for key, tally in self._tallies.items():
            sensor = self._sensors.get(key)
            if sensor is None:
                sensor = self._sensors[key] = self._make_sensor()
            taken = tally.take()
            if taken is not None:
                sensor.add(*taken, now_ms)

    def groups(self, tags: Mapping[str, str], now_ms: int) -> Iterator[MetricGroup]:
        """Yield the metrics."""
        self.look(now_ms)
        for key, sensor in self._sensors.items():
            values = {name: STATISTICS[statistic](sensor, now_ms) for name, statistic in key.names}
            yield MetricGroup(key.group, {**tags, **dict(key.tags)}, values)
