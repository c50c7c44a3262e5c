"""Stuck records: not output within a time limit, although no fault was active for that long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from tests.chaos.checkers.report import Report


class Stuck:
    """Measures how long each record takes. budget_seconds: from its arrival, or from the end of the last fault.

    Records are numbered by key and are output in that order: a record that is output late was stuck too. Input and
    output are read from different partitions, so a reader may see a record's output before its input.
    """

    def __init__(self, budget_seconds: float, clock: Callable[[], float]) -> None:
        self.budget_seconds = budget_seconds
        self._clock = clock
        self._healed_at: float | None = None
        self._arrived = 0
        self._waiting: dict[str, deque[tuple[int, float]]] = {}
        self._out_first: set[tuple[str, int]] = set()
        self._slowest = 0.0
        self._late: list[str] = []

    def came_in(self, key: str, number: int) -> None:
        """Note a record that was committed to the input."""
        self._arrived += 1
        if (key, number) in self._out_first:
            self._out_first.discard((key, number))
            return
        self._waiting.setdefault(key, deque()).append((number, self._clock()))

    def came_out(self, key: str, number: int) -> None:
        """Note an output record; other checkers judge duplicates."""
        waiting = self._waiting.get(key, deque())
        for place, (candidate, arrived) in enumerate(waiting):
            if candidate == number:
                del waiting[place]
                self._judge(key, number, arrived, "came out after")
                return
        self._out_first.add((key, number))

    def healed(self) -> None:
        """Note that the last fault is healed."""
        self._healed_at = self._clock()

    def report(self, excused: Collection[tuple[str, int]] = ()) -> Report:
        """Return the report, including records that are still missing. excused: keys and numbers that need no
        output.
        """
        for key, waiting in self._waiting.items():
            for number, arrived in (entry for entry in waiting if (key, entry[0]) not in excused):
                self._judge(key, number, arrived, "has not come out within")
        examined = f"{self._arrived} records, the slowest took {self._slowest:.1f} of {self.budget_seconds:g} s"
        return Report("stuck", examined, tuple(self._late if self._arrived else ["stuck: there were no records"]))

    def _judge(self, key: str, number: int, arrived: float, how: str) -> None:
        if self._healed_at is None:
            return
        took = self._clock() - max(arrived, self._healed_at)
        self._slowest = max(self._slowest, took)
        if took > self.budget_seconds:
            self._late.append(f"stuck: record {number} of {key} {how} {took:.1f} s")
