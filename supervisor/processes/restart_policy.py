"""Limits how often a dead process is replaced, and the backoff (a rate limit, as in Erlang's supervisors)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.topology.config.streams_config import StreamsConfig

#: More than any backoff needs.
_DOUBLINGS_MAX = 40


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """max_restarts within window_ms. The first is immediate; the backoff then doubles from backoff_ms to
    backoff_max_ms.
    """

    max_restarts: int
    window_ms: int
    backoff_ms: int
    backoff_max_ms: int

    @classmethod
    def of(cls, config: StreamsConfig) -> RestartLimits:
        """Read them from the configuration."""
        return cls(
            config["penstock.worker.restart.max"],
            config["penstock.worker.restart.window.ms"],
            config["penstock.worker.restart.backoff.ms"],
            config["penstock.worker.restart.backoff.max.ms"],
        )


class RestartPolicy:
    """One for the application: processes that die in turn are also a crash loop."""

    def __init__(self, limits: RestartLimits) -> None:
        self.limits = limits
        self._restarts: deque[int] = deque()  # when, in ms of the caller's monotonic clock

    def delay_ms(self, now_ms: int) -> int | None:
        """Count one more replacement; returns its backoff, None if there were too many."""
        while self._restarts and now_ms - self._restarts[0] >= self.limits.window_ms:
            self._restarts.popleft()
        earlier = len(self._restarts)
        if earlier >= self.limits.max_restarts:
            return None
        self._restarts.append(now_ms)
        return self.backoff_ms(earlier)

    def backoff_ms(self, earlier: int) -> int:
        """Return how long to wait before another attempt, after so many earlier ones."""
        if earlier == 0:
            return 0
        return min(self.limits.backoff_ms << min(earlier - 1, _DOUBLINGS_MAX), self.limits.backoff_max_ms)
