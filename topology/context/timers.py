"""What is due in a task at a time: timers of keys, and rows with a ttl.

By stream time, what is due fires before the record that reaches its time is processed, so that results do not depend on
how records are batched. By the wall clock it fires when the task looks at the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..clocks import Punctuation

if TYPE_CHECKING:
    from .task_context import TaskContext

#: Nothing is due: Java's highest long.
NEVER = 2**63 - 1
#: Called with the key of what is due and the time (ms) for which it was set.
OnDue = Callable[[Any, int], None]


class DueRows(Protocol):
    """Rows of a store that are due at a time."""

    def next_due(self, clock: Punctuation) -> int | None:
        """Return the time (ms) of the row that is due next, None without one."""

    def fire(self, clock: Punctuation) -> None:
        """Handle the row that is due next."""


@runtime_checkable
class TimerRows(Protocol):
    """The timers of a processor: a store of Stores.timer_store_builder."""

    name: str

    def set_timer(self, key: object, at_ms: int, clock: Punctuation) -> None:
        """Set the timer of a key, in place of the one that it has."""

    def cancel_timer(self, key: object) -> None:
        """Cancel the timer of a key, if it has one."""

    def fires_to(self, on_due: OnDue) -> None:
        """Name the function that gets the timers. Raises StreamsError if there is one already."""


@runtime_checkable
class ExpiringRows(Protocol):
    """A table's store with a ttl."""

    def expires_to(self, on_due: OnDue) -> None:
        """Name the function that deletes what has expired, in place of the store itself."""


class Timers:
    """All that is due in a task.

    passed_on_ms(): the stream time up to which records have left functions that wait; None if no record waits.
    """

    def __init__(self, task: TaskContext) -> None:
        self._task = task
        self._rows: dict[str, DueRows] = {}
        self.passed_on_ms: Callable[[], int | None] = lambda: None

    def add(self, store: str, rows: DueRows) -> None:
        """Add the rows of a store that has been opened."""
        self._rows[store] = rows
        self._task.on_due = self.fire_stream_time
        self._task.due_ms = 0  # they may have been filled before: look at the next record

    def __bool__(self) -> bool:
        """Whether the task has stores in which something can be due."""
        return bool(self._rows)

    def next_due(self, clock: Punctuation) -> int | None:
        """Return the time (ms) at which something is due next, None if nothing is."""
        first = self._first(clock)
        return None if first is None else first[0]

    def is_due_at(self, clock: Punctuation, due_ms: int) -> None:
        """Note that something is due at this time."""
        if clock is Punctuation.STREAM_TIME and due_ms < self._task.due_ms:
            self._task.due_ms = due_ms

    def fire_stream_time(self) -> int:
        """Fire what stream time has reached, but not before the waiting records that it must follow.

        Returns how many.
        """
        passed_ms = self.passed_on_ms()
        return self.fire(Punctuation.STREAM_TIME, self._task.stream_time_ms if passed_ms is None else passed_ms)

    def fire(self, clock: Punctuation, now_ms: int) -> int:
        """Fire what is due at now_ms (ms on this clock) in the order of times. Returns how many."""
        if not self._rows:
            return 0
        fired = 0
        first = self._first(clock)
        while first is not None and first[0] <= now_ms:
            first[1].fire(clock)
            fired += 1
            first = self._first(clock)
        if clock is Punctuation.STREAM_TIME:
            self._task.due_ms = NEVER if first is None else first[0]
        return fired

    def _first(self, clock: Punctuation) -> tuple[int, DueRows] | None:
        first: tuple[int, DueRows] | None = None
        for rows in self._rows.values():
            due_ms = rows.next_due(clock)
            if due_ms is not None and (first is None or due_ms < first[0]):
                first = due_ms, rows
        return first
