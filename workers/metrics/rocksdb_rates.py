"""Rates of RocksDB's statistics, which has totals only (Kafka: RocksDBMetricsRecorder; KIP-471)."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.statestore.stores.state_store import StateStore
from penstock.statestore.view.store_metrics import rocksdb_counters

from .sensors import ThreadMetrics
from .task_metrics import Growth

#: Reading the statistics of a store takes some 0.3 ms.
INTERVAL_MS = 10_000
#: Kafka Streams records once a minute how long writes were stalled, and shows the average of these times.
STALL = "write-stall-duration-avg"
MINUTE_SECONDS = 60


class RocksDBRates:
    """The rates of the stores of one task that keep statistics: those at metrics.recording.level DEBUG and TRACE."""

    def __init__(self, thread: ThreadMetrics) -> None:
        self._make_sensor = thread.sensor
        self._counted: dict[str, dict[str, Growth]] = {}  # by store and name of the metric
        self._due_ms = 0

    def look(self, stores: Iterable[StateStore], now_ms: int) -> None:
        """Record the growth of all totals, if the last time is long ago or a store is new. Called with each beat."""
        due = now_ms >= self._due_ms
        if due:
            self._due_ms = now_ms + INTERVAL_MS
        for store in stores:
            if store.name in self._counted and not due:
                continue
            counted = self._counted.setdefault(store.name, {})
            for name, count in rocksdb_counters(store).items():
                if name not in counted:
                    counted[name] = Growth(self._make_sensor())
                counted[name].look(count, now_ms)

    def values(self, store: str, now_ms: int) -> dict[str, float]:
        """Return the metrics of a store, by its name: bytes per second, and ms of stalled writes in a minute."""
        rates = {name: growth.sensor.rate(now_ms) for name, growth in self._counted.get(store, {}).items()}
        if STALL in rates:
            rates[STALL] *= MINUTE_SECONDS / 1000  # counted in microseconds
        return rates
