"""Detects that others may own a member's tasks by now: its session may have ended without its knowledge.

Either the process was suspended (SIGSTOP, a suspended virtual machine, heavy swapping: all threads stop together), or
it is cut off from its coordinator, though not from the leaders of partitions. The group removes the member then, while
the stream thread may still write. With exactly-once the broker rejects such records. With at-least-once it accepts
them, and the next restore from a changelog that ends with them yields an older state than the committed offsets. (Kafka
Streams has this gap.) So once the coordinator has confirmed no request for a session, nothing is processed, committed
or sent until it does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..clock import Clock
from ..log_context import PrefixedLogger

#: Number of clock checks per session timeout.
BEATS = 5


class Standstill:
    """Whether one member's session may have ended. session_ms: session.timeout.ms.

    Used on the IO thread, except in_doubt, which the stream thread reads.
    """

    def __init__(self, clock: Clock, session_ms: int, log: PrefixedLogger) -> None:
        self._clock = clock
        self._session_ms = session_ms
        self._log = log
        self._last_beat_ms = clock.monotonic_ms()
        #: When the last request was sent that was confirmed; None: no response is expected.
        self._confirmed_ms: int | None = None
        self._since_ms: int | None = None

    async def watch(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Call beat() until the connection is closed. sleep: takes seconds."""
        while True:
            await sleep(self._session_ms / BEATS / 1000)
            self.beat()

    def beat(self) -> int:
        """Record that the IO thread is running. Returns the monotonic time in ms."""
        now_ms = self._clock.monotonic_ms()
        if self._was_suspended(now_ms):
            self._doubt(now_ms, f"This process was suspended for {now_ms - self._last_beat_ms} ms")
        elif self._since_ms is None and self._silence_ms(now_ms) > self._session_ms:
            self._doubt(now_ms, f"The coordinator of the group has not responded for {self._silence_ms(now_ms)} ms")
        self._last_beat_ms = now_ms
        return now_ms

    def _doubt(self, now_ms: int, reason: str) -> None:
        self._since_ms = now_ms
        self._log.warning(
            "%s, longer than session.timeout.ms=%d: nothing is processed until the coordinator confirms that this "
            "member still owns its tasks",
            reason,
            self._session_ms,
        )

    def answered(self, sent_ms: int) -> None:
        """Record that the coordinator confirmed the membership; sent_ms: when the request was sent (beat's result)."""
        self._confirmed_ms = sent_ms
        if self._since_ms is not None and sent_ms >= self._since_ms:
            self._since_ms = None

    def joins(self) -> None:
        """Record that a join begins. The coordinator keeps the member until all have joined, and responds then."""
        self._confirmed_ms = None

    def join_failed(self) -> None:
        """Record that a join got no response: the group may have completed it without this member."""
        if self._confirmed_ms is None:
            self._confirmed_ms = self._clock.monotonic_ms()

    @property
    def in_doubt(self) -> bool:
        """Whether the membership may have been lost without notice."""
        now_ms = self._clock.monotonic_ms()
        is_cut_off = self._silence_ms(now_ms) > self._session_ms
        return self._since_ms is not None or self._was_suspended(now_ms) or is_cut_off

    def _was_suspended(self, now_ms: int) -> bool:
        return now_ms - self._last_beat_ms > self._session_ms

    def _silence_ms(self, now_ms: int) -> int:
        """Return for how many ms an expected response of the coordinator has been missing."""
        confirmed_ms = self._confirmed_ms  # read once: the IO thread may clear it meanwhile
        return 0 if confirmed_ms is None else now_ms - confirmed_ms
