"""One seed, one clock, one list of due events: everything in a schedule happens through these.

Neither this module nor its users read real time or real randomness. Events that are due at the same moment happen in
the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

#: The start of simulated time; at zero, a time in the past could be negative.
START_MS = 1_000_000
#: The wall clock's distance from the monotonic one, in ms: 2023-11-14.
EPOCH_MS = 1_700_000_000_000
#: The author of log lines in the trace; events must not depend on them.
LOG = "log"


class StalledError(Exception):
    """A process waits for an event that can never happen."""


class EndlessError(Exception):
    """Invariants are violated endlessly."""


@dataclass(eq=False, slots=True)
class Due:
    """An event with its time."""

    happen: Callable[[], None]


#: A run ends after this many violations: a stream thread that dies at each start would never end it.
VIOLATIONS_MAX = 500


class World:
    """The seed's randomness, the time, the due events, and the trace."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        #: For faults that were added later, which must not change the plans of known seeds.
        self.further_chance = random.Random(f"more {seed}")
        self.now_ms = START_MS
        self.trace: list[tuple[int, str, str]] = []
        #: How often each rare event has happened. Not part of the trace, by which idle steps are detected.
        self.rare: Counter[str] = Counter()
        #: Whether a fault has happened after which at-least-once may repeat work.
        self.disturbed = False
        #: Violated invariants.
        self.violations: list[str] = []
        #: The time in ms until which no broker responds.
        self.away_until_ms = 0
        #: Whether a due event runs now, not a stream thread.
        self.in_event = False
        #: By time (ms) and order of scheduling.
        self._due: list[tuple[int, int, Due]] = []
        self._number = 0

    @property
    def brokers_away(self) -> bool:
        """Whether no broker responds."""
        return self.now_ms < self.away_until_ms

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append((self.now_ms, who, what))

    def happened(self, what: str) -> None:
        """Count a rare event, for the table."""
        self.rare[what] += 1

    def violated(self, what: str) -> None:
        """Record a violated invariant; raises EndlessError if there are too many."""
        self.violations.append(what)
        self.note("checker", f"VIOLATED: {what}")
        if len(self.violations) > VIOLATIONS_MAX:
            raise EndlessError(f"{VIOLATIONS_MAX} violations, of which the last is: {what}")

    def after(self, ms: int, happen: Callable[[], None]) -> Due:
        """Schedule an event in ms milliseconds."""
        self._number += 1
        due = Due(happen)
        heapq.heappush(self._due, (self.now_ms + ms, self._number, due))
        return due

    def cancel(self, due: Due) -> None:
        """Cancel an event."""
        due.happen = _nothing

    def advance(self, ms: int) -> None:
        """Advance time by ms milliseconds, and run all events due in them."""
        until = self.now_ms + ms
        while self._due and self._due[0][0] <= until:
            self._next()
        self.now_ms = max(self.now_ms, until)

    def skip(self, ms: int) -> None:
        """Advance time until an event has happened, at most ms milliseconds."""
        until = self.now_ms + ms
        if self._due and self._due[0][0] <= until:
            self._next()
        else:
            self.now_ms = until

    def _next(self) -> None:
        at_ms, _, due = heapq.heappop(self._due)
        self.now_ms = max(self.now_ms, at_ms)
        before, self.in_event = self.in_event, True
        due.happen()
        self.in_event = before


def _nothing() -> None:
    pass


class HostClock:
    """clock.Clock of the processes of one host. Its wall clock can be set, the monotonic one cannot."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.set_by_ms = 0

    def monotonic_ms(self) -> int:
        return self._world.now_ms

    def wall_clock_ms(self) -> int:
        return EPOCH_MS + self._world.now_ms + self.set_by_ms

    def advance(self, ms: int) -> None:
        self._world.advance(ms)

    def sleep(self, seconds: float) -> None:
        self._world.advance(int(seconds * 1000))
