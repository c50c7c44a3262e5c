"""Metrics of async functions, batch functions and sinks: see docs/async.md and docs/sinks.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from penstock.topology.operators.waiting import WaitingRecords

from .sensors import MetricGroup, ThreadMetrics, rate_and_total
from .task_metrics import Growth

#: Penstock's own.
FUNCTION_GROUP = "penstock-function-metrics"


class FunctionMetrics:
    """One function in a running task."""

    def __init__(self, records: WaitingRecords, thread: ThreadMetrics) -> None:
        self._records = records
        self._calls, self._retries = Growth(thread.sensor()), Growth(thread.sensor())
        self._rows = None if records.rows is None else Growth(thread.sensor())

    @property
    def name(self) -> str:
        """The name of the operator's node."""
        return self._records.name

    @property
    def is_sink(self) -> bool:
        """Whether it is a sink outside of Kafka, which has metrics of rows, too."""
        return self._rows is not None

    def look(self, now_ms: int) -> None:
        """Record the operator's counts. Called with each beat."""
        self._calls.look(self._records.times.calls, now_ms)
        self._retries.look(self._records.times.retries, now_ms)
        if self._rows is not None:
            self._rows.look(self._records.rows or 0, now_ms)

    def group(self, tags: Mapping[str, str], now_ms: int) -> MetricGroup:
        """Return the metrics. Latencies are those of single attempts, in ms."""
        node = {**tags, "processor-node-id": self.name}
        return MetricGroup(FUNCTION_GROUP, node, self.values(now_ms))

    def values(self, now_ms: int) -> dict[str, float]:
        """Return the metrics by name."""
        return dict(self._values(now_ms))

    def _values(self, now_ms: int) -> Iterator[tuple[str, float]]:
        yield "records-waiting", float(len(self._records.held()))
        yield "calls-in-flight", float(self._records.in_flight())
        yield from rate_and_total("call", self._calls.sensor, now_ms)
        yield from rate_and_total("retry", self._retries.sensor, now_ms)
        if self._rows is not None:
            yield from rate_and_total("row", self._rows.sensor, now_ms)
        recent = self._records.times.recent_ms()
        yield "call-latency-avg", fmean(recent) if recent else 0.0
        yield "call-latency-p50", percentile(recent, 0.50)
        yield "call-latency-p99", percentile(recent, 0.99)
        yield "call-latency-max", recent[-1] if recent else 0.0

    def describe(self) -> str:
        """Return one line of a task's description."""
        records, recent = self._records, self._records.times.recent_ms()
        return (
            f"{records.name}: {len(records.held())} records wait, {records.in_flight()} calls in flight, "
            f"p50 {percentile(recent, 0.50):.1f} ms, p99 {percentile(recent, 0.99):.1f} ms, "
            f"{records.times.retries} retries"
        )


def percentile(ordered: list[float], share: float) -> float:
    """Return a percentile of the values, 0.0 without any; share: 0.99 for p99."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
