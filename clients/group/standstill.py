"""Detects that a process was suspended for longer than its session: others may own its tasks by now.

SIGSTOP, a suspended virtual machine, a host that swaps: all threads stop at once, and the group removes the member.
When they continue, the stream thread may write before the IO thread has learned of it. With exactly-once the broker
refuses such records. With at-least-once it accepts them, and the next restore from a changelog that ends with them
yields an older state than the committed offsets. (Kafka Streams has that gap.) So nothing is processed or committed
until the coordinator has answered a request that was sent after the process continued.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..clock import Clock
from ..log_context import PrefixedLogger

#: How many times in a session the clock is checked.
BEATS = 5


class Standstill:
    """What is known of one member. session_ms: session.timeout.ms.

    All but in_doubt, which the stream thread reads, belongs to the IO thread.
    """

    def __init__(self, clock: Clock, session_ms: int, log: PrefixedLogger) -> None:
        self._clock = clock
        self._session_ms = session_ms
        self._log = log
        self._last_beat_ms = clock.monotonic_ms()
        self._since_ms: int | None = None

    async def watch(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Beat as long as the connection lives. sleep: takes seconds."""
        while True:
            await sleep(self._session_ms / BEATS / 1000)
            self.beat()

    def beat(self) -> int:
        """Note that the IO thread runs. Returns the time, monotonic in ms."""
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
        """Note that the coordinator takes this for a member; sent_ms: when it was asked (beat's result)."""
        if self._since_ms is not None and sent_ms >= self._since_ms:
            self._since_ms = None

    @property
    def in_doubt(self) -> bool:
        """Whether this may be no member any more without knowing it."""
        return self._since_ms is not None or self._clock.monotonic_ms() - self._last_beat_ms > self._session_ms
