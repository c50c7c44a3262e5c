"""Detects that a process was suspended for longer than its session: others may own its tasks by now.

After a SIGSTOP, a suspended virtual machine or heavy swapping all threads stop together, and the group removes the
member. When they continue, the stream thread may write before the IO thread has learned of it. With exactly-once the
broker rejects such records. With at-least-once it accepts them, and the next restore from a changelog that ends with
them yields an older state than the committed offsets. (Kafka Streams has this gap.) So nothing is processed or
committed until the coordinator has answered a request that was sent after the process continued.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..clock import Clock
from ..log_context import PrefixedLogger

#: Number of clock checks per session timeout.
BEATS = 5


class Standstill:
    """The suspension check of one member. session_ms: session.timeout.ms.

    Used on the IO thread, except in_doubt, which the stream thread reads.
    """

    def __init__(self, clock: Clock, session_ms: int, log: PrefixedLogger) -> None:
        self._clock = clock
        self._session_ms = session_ms
        self._log = log
        self._last_beat_ms = clock.monotonic_ms()
        self._since_ms: int | None = None

    async def watch(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Call beat() until the connection is closed. sleep: takes seconds."""
        while True:
            await sleep(self._session_ms / BEATS / 1000)
            self.beat()

    def beat(self) -> int:
        """Record that the IO thread is running. Returns the monotonic time in ms."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_beat_ms > self._session_ms:
            self._log.warning(
                "This process was suspended for %d ms, longer than session.timeout.ms=%d: nothing is processed until "
                "the group has confirmed that it still owns its tasks",
                now_ms - self._last_beat_ms,
                self._session_ms,
            )
            self._since_ms = now_ms
        self._last_beat_ms = now_ms
        return now_ms

    def answered(self, sent_ms: int) -> None:
        """Record that the coordinator confirmed the membership; sent_ms: when the request was sent (beat's result)."""
        if self._since_ms is not None and sent_ms >= self._since_ms:
            self._since_ms = None

    @property
    def in_doubt(self) -> bool:
        """Whether the membership may have been lost without notice."""
        return self._since_ms is not None or self._clock.monotonic_ms() - self._last_beat_ms > self._session_ms
