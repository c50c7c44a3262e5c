"""Sensors, and the metrics of a stream thread, under Kafka Streams' names (ThreadMetrics; KIP-444).

A rate or average covers ``metrics.num.samples`` windows of ``metrics.sample.window.ms``, as in Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.topology.processor_api import Statistic

#: Kafka's defaults of metrics.sample.window.ms and metrics.num.samples.
SAMPLE_WINDOW_MS = 30_000
NUM_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Metrics of one object, such as a task or a store: values by name. group and tags are Kafka Streams'."""

    group: str
    tags: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)


#: Metrics of Kafka Streams that are named totals and are gauges.
_GAUGES = ("-remaining-records-total", "-bytes-total")
#: Counters of Kafka Streams that are not named so.
_COUNTERS = frozenset(("failed-stream-threads",))


def only_grows(name: str) -> bool:
    """Return whether a metric is a counter, by its name."""
    return name in _COUNTERS or (name.endswith("-total") and not name.endswith(_GAUGES))


@dataclass(frozen=True, slots=True)
class Metric:
    """One value. Rates are per second, latencies in ms, sizes in bytes; a few values are text."""

    name: str
    group: str
    tags: Mapping[str, str] = field(default_factory=dict)
    value: float | str = 0.0


class _Sample:
    __slots__ = ("count", "highest", "lowest", "start_ms", "sum")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.count = 0
        self.sum = 0.0
        self.highest = float("-inf")
        self.lowest = float("inf")


class Sensor:
    """Average, maximum, rate and total of one measured quantity. Times in ms of the monotonic clock."""

    def __init__(self, window_ms: int = SAMPLE_WINDOW_MS, samples: int = NUM_SAMPLES) -> None:
        self.total = 0
        self._window_ms = window_ms
        self._samples: deque[_Sample] = deque(maxlen=samples)

    def record(self, value: float, now_ms: int, count: int = 1) -> None:
        """Record a value, e.g. the latency of a poll, for each of count events."""
        self.add(count, value * count, value, value, now_ms)

    def add(self, count: int, total: float, lowest: float, highest: float, now_ms: int) -> None:
        """Record several values: how many, their sum, the lowest and the highest one."""
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._window_ms:
            samples.append(_Sample(now_ms))
        sample = samples[-1]
        sample.count += count
        sample.sum += total
        sample.highest = max(sample.highest, highest)
        sample.lowest = min(sample.lowest, lowest)
        self.total += count

    def average(self, now_ms: int) -> float:
        """Return the average of the values, 0.0 without any."""
        live = self._live(now_ms)
        count = sum(sample.count for sample in live)
        return sum(sample.sum for sample in live) / count if count else 0.0

    def highest(self, now_ms: int) -> float:
        """Return the highest value, 0.0 without any."""
        return max((sample.highest for sample in self._live(now_ms)), default=0.0)

    def lowest(self, now_ms: int) -> float:
        """Return the lowest value, 0.0 without any."""
        return min((sample.lowest for sample in self._live(now_ms)), default=0.0)

    def rate(self, now_ms: int) -> float:
        """Return events per second."""
        live = self._live(now_ms)
        if not live:
            return 0.0
        # As in Kafka's Rate: at least all windows but one, so that the first events do not give a huge rate.
        elapsed_ms = max(now_ms - live[0].start_ms, (self._samples.maxlen or 1) * self._window_ms - self._window_ms, 1)
        return sum(sample.count for sample in live) * 1000 / elapsed_ms

    def _live(self, now_ms: int) -> list[_Sample]:
        oldest = now_ms - self._window_ms * (self._samples.maxlen or 1)
        return [sample for sample in self._samples if sample.start_ms >= oldest]


#: Functions that read a statistic from a sensor at a time (ms).
STATISTICS: Mapping[Statistic, Callable[[Sensor, int], float]] = {
    "avg": Sensor.average,
    "max": Sensor.highest,
    "min": Sensor.lowest,
    "rate": Sensor.rate,
    "total": lambda sensor, now_ms: float(sensor.total),
}


class SamplingBudget:
    """Limits the time that a stream thread spends on tracing records (node_samples.py).

    share: the allowed share of the thread's time, e.g. 0.01; 0: no samples.
    """

    #: The minimum and maximum time counted for a sample, in ms: the loop's clock has no finer resolution, and a longer
    #: sample has waited.
    SAMPLE_MS_MIN, SAMPLE_MS_MAX = 1, 20

    def __init__(self, share: float) -> None:
        self._share = share
        self._due_ms = 0

    def allows(self, now_ms: int) -> bool:
        """Return whether a sample may be taken now."""
        return self._share > 0 and now_ms >= self._due_ms

    def spent(self, began_ms: int, ended_ms: int) -> None:
        """Count the time of a sample."""
        taken_ms = min(max(ended_ms - began_ms, self.SAMPLE_MS_MIN), self.SAMPLE_MS_MAX)
        self._due_ms = ended_ms + int(taken_ms / self._share)


class ThreadMetrics:
    """The sensors of one stream thread (group ``stream-thread-metrics``)."""

    def __init__(
        self, window_ms: int = SAMPLE_WINDOW_MS, samples: int = NUM_SAMPLES, sampling_percent: int = 0
    ) -> None:
        def sensor() -> Sensor:
            return Sensor(window_ms, samples)

        # Half each: flushes are rare, and would otherwise find the budget always used up.
        self.record_sampling = SamplingBudget(sampling_percent / 200)
        self.flush_sampling = SamplingBudget(sampling_percent / 200)
        #: Creates further sensors with the configured windows.
        self.sensor = sensor
        self.commit, self.poll, self.process, self.punctuate = sensor(), sensor(), sensor(), sensor()
        self.poll_records, self.process_records = sensor(), sensor()
        self.task_created, self.task_closed = sensor(), sensor()
        #: How long the thread takes to apply what its group assigns and revokes (KIP-1216).
        self.tasks_assigned, self.tasks_revoked, self.tasks_lost = sensor(), sensor(), sensor()
        self.dropped_records, self.enforced_processing = sensor(), sensor()
        #: Records applied to stores of active tasks, and of standby tasks (KIP-869's names).
        self.restore, self.update = sensor(), sensor()
        self.restore_remaining = 0
        #: Stalled partitions: total, and current number (stall_watchdog.py).
        self.partition_stall = sensor()
        self.stalled_partitions = 0
        self.thread_start_time_ms = 0
        #: Time that the thread was blocked by brokers: commits, flushes, transactions (KIP-761).
        self.blocked_time_ns_total = 0
        self._ratios = {name: sensor() for name in ("process", "punctuate", "poll", "commit")}

    def record_ratios(self, now_ms: int, run_once_ms: int, **spent_ms: int) -> None:
        """Record the shares of one iteration: process, punctuate, poll, commit."""
        if run_once_ms > 0:
            for name, spent in spent_ms.items():
                self._ratios[name].record(spent / run_once_ms, now_ms)

    def snapshot(self, now_ms: int) -> dict[str, float]:
        """Return all metrics by Kafka Streams' names. Latencies in ms, rates per second."""
        return dict(self._metrics(now_ms))

    def _metrics(self, now_ms: int) -> Iterator[tuple[str, float]]:
        latencies = {"commit": self.commit, "poll": self.poll, "process": self.process, "punctuate": self.punctuate}
        for name, sensor in latencies.items():
            yield f"{name}-latency-avg", sensor.average(now_ms)
            yield f"{name}-latency-max", sensor.highest(now_ms)
            yield from rate_and_total(name, sensor, now_ms)
        for name, sensor in {"poll-records": self.poll_records, "process-records": self.process_records}.items():
            yield f"{name}-avg", sensor.average(now_ms)
            yield f"{name}-max", sensor.highest(now_ms)
        rebalances = {"assigned": self.tasks_assigned, "revoked": self.tasks_revoked, "lost": self.tasks_lost}
        for name, sensor in rebalances.items():
            yield f"tasks-{name}-latency-avg", sensor.average(now_ms)
            yield f"tasks-{name}-latency-max", sensor.highest(now_ms)
        counted = {
            "task-created": self.task_created,
            "task-closed": self.task_closed,
            "dropped-records": self.dropped_records,
            "enforced-processing": self.enforced_processing,
            "restore": self.restore,
            "update": self.update,
            "partition-stall": self.partition_stall,
        }
        for name, sensor in counted.items():
            yield from rate_and_total(name, sensor, now_ms)
        for name, sensor in self._ratios.items():
            yield f"{name}-ratio", sensor.average(now_ms)
        yield "restore-remaining-records-total", float(self.restore_remaining)
        yield "stalled-partitions", float(self.stalled_partitions)
        yield "thread-start-time", float(self.thread_start_time_ms)
        yield "blocked-time-ns-total", float(self.blocked_time_ns_total)


def rate_and_total(name: str, sensor: Sensor, now_ms: int) -> Iterator[tuple[str, float]]:
    """Yield <name>-rate (per second) and <name>-total."""
    yield f"{name}-rate", sensor.rate(now_ms)
    yield f"{name}-total", float(sensor.total)
