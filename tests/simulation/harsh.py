"""Additional faults of harsh schedules: brokers become unreachable, changelogs are truncated, disks are full or
damaged.

They use a separate random generator, so that a seed's plan is the same with and without them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.disk import DISK_ERROR
from tests.simulation.world import World

#: Probability that all brokers become unreachable in a round, and for how long, in ms: shorter and longer than a
#: session, a transaction and a request's timeout.
OUTAGE_SHARE = 0.03
OUTAGES_MS = (500, 3_000, 8_000, 40_000, 70_000)
#: Probability that they become unreachable during a request for partitions, if that happens in the middle of a record.
ASKED_SHARE = 0.3
#: How often a compacted changelog loses its beginning.
TRIMMED_SHARE = 0.5
#: Probability that a write to the disk fails.
DISK_SHARE = 0.15
#: Probability that a batch of a restore meets a damaged block of the store.
DAMAGED_SHARE = 0.15


class Harsh:
    """Draws these faults. enabled: otherwise there are none; asked: see ASKED_SHARE."""

    #: Errors of which threads may die: of disks, and of brokers that are away for longer than a start may take.
    expected_errors = (DISK_ERROR, "Topics could not be made ready within", "The partitions of table could not be read")

    def __init__(self, world: World, enabled: bool, asked: bool) -> None:
        self._world = world
        self._asked_share = ASKED_SHARE if asked else 0.0
        self._chance = random.Random(f"harsh {world.seed}")
        self._enabled = enabled
        #: Called when brokers become unreachable, or return early.
        self.on_outage: Callable[[], None] = _nothing

    def next_round(self) -> None:
        """Perhaps make all brokers unreachable."""
        self._go_away(OUTAGE_SHARE)

    def partitions_are_asked_for(self) -> None:
        """Perhaps make all brokers unreachable during this request."""
        self._go_away(self._asked_share)

    def _go_away(self, share: float) -> None:
        if share and self._happens(share, "all brokers are away"):
            ms = self._chance.choice(OUTAGES_MS)
            self._world.note("broker", f"all brokers are AWAY for {ms} ms")
            self._world.disturbed = True
            self._world.away_until_ms = self._world.now_ms + ms
            self.on_outage()

    def trims(self) -> bool:
        """Return whether a changelog that is compacted loses its beginning, too."""
        return self._happens(TRIMMED_SHARE, "a changelog loses its beginning")

    def disk_fails(self) -> bool:
        """Return whether a write to a disk fails."""
        fails = self._happens(DISK_SHARE, "a write to the disk fails")
        self._world.disturbed |= fails
        return fails

    def is_damaged_inside(self) -> bool:
        """Return whether a restore meets a damaged block of the store."""
        return self._happens(DAMAGED_SHARE, "a restore meets damage")

    def end(self) -> None:
        """End all faults."""
        self._enabled = False
        self._world.away_until_ms = 0
        self.on_outage()

    def _happens(self, share: float, what: str) -> bool:
        happens = self._enabled and self._chance.random() < share
        if happens:
            self._world.happened(what)
        return happens


def _nothing() -> None:
    pass
