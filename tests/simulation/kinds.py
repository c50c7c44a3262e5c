"""Kinds of schedules: which seeds have more than a plain schedule.

Each kind has its own random generator, so that the rest of a seed's plan is the same with and without it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.clients.writing.transaction_requests import NEW_PROTOCOL_LEVEL
from tests.simulation.applications import ASKING, CHOOSING, Application

#: delivery.timeout.ms: shorter and longer than processes stall.
DELIVERY_MS = (3_000, 120_000)
#: Latency of late responses: shorter and longer than a restore or a rebalance.
ANSWERS_MS = (0, 100, 1_000, 5_000, 10_000)
#: transaction.timeout.ms of schedules with async functions.
ASKING_TRANSACTION_MS = 30_000


@dataclass(frozen=True)
class Kind:
    """harsh: see Harsh. mixed: some hosts may run on Java. asking: the application has async functions.

    own: the producers are those of clients/writing; see producers.py. rare: more faults at rarely reached points.
    choosing: the application requests the partitions of its output. late: see LateAnswers.
    """

    harsh: bool = False
    mixed: bool = False
    asking: bool = False
    own: bool = False
    rare: bool = False
    choosing: bool = False
    late: bool = False

    @classmethod
    def of(cls, seed: int) -> Kind:
        """Return the kind of a seed's schedule.

        A quarter is harsh, a quarter mixed, and an eighth has async functions. Producers are Penstock's own in an
        eighth, and in a quarter of the harsh ones. A quarter of the plain ones, and of those with own producers, are
        rare. In another quarter of the harsh ones the application chooses partitions. Responses are late in a quarter
        of the plain ones, and in a quarter of the harsh ones.
        """
        own = seed % 8 == 2 or seed % 16 == 15
        rare = seed % 16 == 12 or seed % 32 == 26
        return cls(
            harsh=seed % 4 == 3,
            mixed=seed % 4 == 1,
            asking=seed % 8 == 6,
            own=own,
            rare=rare,
            choosing=seed % 16 == 7,
            late=seed % 16 in (8, 11),
        )

    def application(self, seed: int, planned: Application) -> Application:
        """Return the application that replaces the planned one, or the planned one."""
        if self.choosing:
            return CHOOSING
        return random.Random(f"asking {seed}").choice(ASKING) if self.asking else planned

    def settings(self, seed: int, planned: Mapping[str, Any]) -> dict[str, Any]:
        """Return the application's settings: those that the kind needs, too."""
        if self.asking:  # a commit may wait for calls, and its transaction with it
            return {**planned, "transaction.timeout.ms": ASKING_TRANSACTION_MS}
        if not self.own:
            return {**planned}
        chance = random.Random(f"own {seed}")
        return {**planned, "linger.ms": chance.choice((0, 20, 100)), "delivery.timeout.ms": chance.choice(DELIVERY_MS)}

    def transaction_level(self, seed: int) -> int:
        """Return the finalized level of transaction.version."""
        levels = (NEW_PROTOCOL_LEVEL, 1) if self.rare else (NEW_PROTOCOL_LEVEL, NEW_PROTOCOL_LEVEL, 1)
        return random.Random(f"level {seed}").choice(levels) if self.own else NEW_PROTOCOL_LEVEL


PLAIN = Kind()


class LateAnswers:
    """Draws the delay of a leader's response about end offsets. enabled: otherwise there is none."""

    def __init__(self, seed: int, enabled: bool) -> None:
        self._chance = random.Random(f"late {seed}")
        self._enabled = enabled

    def next_ms(self) -> int:
        """Return the delay of the next response in ms."""
        return self._chance.choice(ANSWERS_MS) if self._enabled else 0
