"""Restore rates, for the status of each task and for a periodic log line."""

from __future__ import annotations

from collections.abc import Collection

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TaskId

from .changelog import Changelog, ChangelogState

#: Interval of the log line, in ms (Kafka: RESTORE_LOG_INTERVAL_MS).
RESTORE_LOG_INTERVAL_MS = 10_000
#: The window of a rate, in ms; a rate covers one to two windows: long enough for several batches, short enough to
#: follow changes.
RATE_WINDOW_MS = 5_000


class Rate:
    """Records per second over the current and the previous window."""

    def __init__(self, now_ms: int) -> None:
        self._since_ms = now_ms
        self._start_ms = now_ms
        self._before = 0
        self._count = 0

    def record(self, count: int, now_ms: int) -> None:
        """Add records."""
        self._roll(now_ms)
        self._count += count

    def per_second(self, now_ms: int) -> float:
        """Return the rate, 0.0 if nothing was recorded for a while."""
        self._roll(now_ms)
        return (self._before + self._count) * 1000 / max(now_ms - self._since_ms, 1)

    def _roll(self, now_ms: int) -> None:
        passed_ms = now_ms - self._start_ms
        if passed_ms >= 2 * RATE_WINDOW_MS:
            self._since_ms = self._start_ms = now_ms
            self._before = self._count = 0
        elif passed_ms >= RATE_WINDOW_MS:
            self._since_ms, self._start_ms = self._start_ms, now_ms
            self._before, self._count = self._count, 0


class RestoreProgress:
    """The rates of the tasks of one thread."""

    def __init__(self, clock: Clock, log: PrefixedLogger) -> None:
        self._clock = clock
        self._log = log
        self._rates: dict[TaskId, Rate] = {}
        self._last_log_ms = clock.monotonic_ms()
        self._restored = self._restored_at_log = 0

    def record(self, task_id: TaskId, count: int) -> None:
        """Count applied records."""
        now_ms = self._clock.monotonic_ms()
        rate = self._rates.get(task_id)
        if rate is None:
            rate = self._rates[task_id] = Rate(now_ms)
        rate.record(count, now_ms)
        self._restored += count

    def rate(self, task_id: TaskId) -> float:
        """Return a task's rate in records per second."""
        rate = self._rates.get(task_id)
        return 0.0 if rate is None else rate.per_second(self._clock.monotonic_ms())

    def forget(self, task_id: TaskId) -> None:
        """Drop a task that is no longer read."""
        self._rates.pop(task_id, None)

    def log(self, changelogs: Collection[Changelog]) -> None:
        """Log the progress of the active tasks, if the interval has passed."""
        now_ms = self._clock.monotonic_ms()
        passed_ms = now_ms - self._last_log_ms
        if passed_ms < RESTORE_LOG_INTERVAL_MS:
            return
        rate = (self._restored - self._restored_at_log) * 1000 / passed_ms
        self._last_log_ms, self._restored_at_log = now_ms, self._restored
        states = (ChangelogState.WAITING, ChangelogState.RESTORING)
        active = [changelog for changelog in changelogs if changelog.active and changelog.state in states]
        if active:
            details = " ".join(
                f"{{{c.partition}: position={c.position}, end={c.limit}, totalRestored={c.total_restored}}}"
                for c in sorted(active, key=lambda changelog: changelog.partition)
            )
            self._log.info("Restoration in progress for %s partitions, %.0f records/s. %s", len(active), rate, details)
