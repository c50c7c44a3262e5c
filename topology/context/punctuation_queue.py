"""Scheduled punctuations of a task, by due time (Kafka Streams: PunctuationQueue, PunctuationSchedule).

Punctuations that are due at the same time fire in Kafka Streams' order, that of Java's PriorityQueue.

A task has one queue for stream time and one for the wall clock; the stream thread, the test driver and Spark's task use
the same class.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from ..common.java_collections import PriorityQueue
from ..processor_api import Punctuation

#: Called with the time (ms) of the queue's clock at which it fires.
Punctuator = Callable[[int], None]


def first_due_ms(punctuation: Punctuation, interval_ms: int, now_ms: int, start_ms: int | None) -> int:
    """Return when a new schedule is due first. now_ms: on its clock. start_ms: its anchor (KIP-1146), None without one.

    Without an anchor: with the next record, or an interval from now. An anchor in the past counts as if the schedule
    had run since then.
    """
    if start_ms is None:
        return 0 if punctuation is Punctuation.STREAM_TIME else now_ms + interval_ms
    if start_ms >= now_ms:
        return start_ms
    return start_ms + ((now_ms - start_ms) // interval_ms + 1) * interval_ms


class PunctuationSchedule:
    """One repeating punctuation; cancel() stops it, also from within its own callback."""

    __slots__ = ("callback", "cancelled", "due_ms", "interval_ms")

    def __init__(self, due_ms: int, interval_ms: int, callback: Punctuator) -> None:
        self.due_ms = due_ms
        self.interval_ms = interval_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Stop firing."""
        self.cancelled = True

    def advance(self, now_ms: int) -> None:
        """Set the next due time; missed intervals are skipped."""
        missed = max((now_ms - self.due_ms) // self.interval_ms, 0)
        self.due_ms += (missed + 1) * self.interval_ms


class PunctuationQueue:
    """The punctuations of one clock."""

    def __init__(self) -> None:
        self._schedules: PriorityQueue[PunctuationSchedule] = PriorityQueue(attrgetter("due_ms"))

    def __bool__(self) -> bool:
        """Whether anything is scheduled."""
        return self._schedules.peek() is not None

    def schedule(self, due_ms: int, interval_ms: int, callback: Punctuator) -> PunctuationSchedule:
        """Fire callback at due_ms and then every interval_ms. Raises ValueError if the interval is not positive."""
        if interval_ms < 1:
            raise ValueError(f"The minimum supported scheduling interval is 1 millisecond, not {interval_ms}.")
        schedule = PunctuationSchedule(due_ms, interval_ms, callback)
        self._schedules.add(schedule)
        return schedule

    def reschedule(self, schedule: PunctuationSchedule, due_ms: int) -> None:
        """Add a schedule that close() has dropped, with a new due time; a task resumes its schedules (Spark)."""
        schedule.due_ms = due_ms
        self._schedules.add(schedule)

    def maybe_punctuate(self, now_ms: int) -> int:
        """Fire all schedules due at now_ms, each once. Returns the number fired."""
        schedules, fired = self._schedules, 0
        while (first := schedules.peek()) is not None and first.due_ms <= now_ms:
            schedules.poll()
            if first.cancelled:
                continue
            first.callback(now_ms)
            fired += 1
            if not first.cancelled:
                first.advance(now_ms)
                schedules.add(first)
        return fired

    def close(self) -> None:
        """Drop all schedules."""
        self._schedules.clear()
