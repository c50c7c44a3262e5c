"""One seed, one clock, one list of what is due: whatever happens in a schedule happens through these.

Nothing here or in what uses it reads real time or real randomness. Events that are due at the same moment happen in the
order in which they were announced.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

#: Simulated time begins here: at zero, "so long ago" would be before the beginning.
START_MS = 1_000_000
#: The wall clock's distance from the monotonic one, in ms: 2023-11-14.
EPOCH_MS = 1_700_000_000_000
#: Who says log lines in the trace; what happens must not depend on them.
LOG = "log"


class StalledError(Exception):
    """Someone waits for what nothing will bring about."""


@dataclass(eq=False, slots=True)
class Due:
    """Something that happens at a moment."""

    happen: Callable[[], None]


class World:
    """The seed's randomness, the time, what is due, and the trace of what happened."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        #: For faults that came later: they must not change the plans of the seeds that are known.
        self.further_chance = random.Random(f"more {seed}")
        self.now_ms = START_MS
        self.trace: list[tuple[int, str, str]] = []
        #: How often each rare thing has happened; not in the trace, which says whether a step was idle.
        self.rare: Counter[str] = Counter()
        #: Whether something has gone wrong that at-least-once may answer by doing work again.
        self.disturbed = False
        #: What the invariants that are watched all the time have found.
        self.violations: list[str] = []
        #: Until when no broker answers, in ms.
        self.away_until_ms = 0
        #: Whether what runs now is something that was due, and no stream thread.
        self.in_event = False
        #: By the moment (ms) and the order of announcement.
        self._due: list[tuple[int, int, Due]] = []
        self._number = 0

    @property
    def brokers_away(self) -> bool:
        """Whether no broker answers."""
        return self.now_ms < self.away_until_ms

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append((self.now_ms, who, what))

    def happened(self, what: str) -> None:
        """Count something rare, for the table."""
        self.rare[what] += 1

    def violated(self, what: str) -> None:
        """Note that an invariant does not hold."""
        self.violations.append(what)
        self.note("checker", f"VIOLATED: {what}")

    def after(self, ms: int, happen: Callable[[], None]) -> Due:
        """Let something happen in so many ms."""
        self._number += 1
        due = Due(happen)
        heapq.heappush(self._due, (self.now_ms + ms, self._number, due))
        return due

    def cancel(self, due: Due) -> None:
        """Let it not happen."""
        due.happen = _nothing

    def advance(self, ms: int) -> None:
        """Let so much time pass, with all that is due in it."""
        until = self.now_ms + ms
        while self._due and self._due[0][0] <= until:
            self._next()
        self.now_ms = max(self.now_ms, until)

    def skip(self, ms: int) -> None:
        """Let time pass until something has happened, for so long at most."""
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
