"""Kinds of schedules: which seeds have more than a plain schedule.

Each kind has its own random generator, so that the rest of a seed's plan is the same with and without it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import kernel
from penstock.clients.writing.transaction_requests import NEW_PROTOCOL_LEVEL
from tests.simulation.applications import ASKING, CHOOSING, Application
from tests.simulation.broker import Broker
from tests.simulation.coordinators import Coordinators

#: delivery.timeout.ms: shorter and longer than processes stall.
DELIVERY_MS = (3_000, 120_000)
#: How long answers take that are late: shorter and longer than a task is restored, or a rebalance lasts.
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

        A fourth is harsh, a fourth mixed, in an eighth functions wait. Producers are Penstock's own in an eighth, and
        in a fourth of the harsh ones. Rare are a quarter of the plain ones, and of those with own producers. In another
        fourth of the harsh ones the application chooses partitions. Answers are late in a quarter of the plain ones,
        and in a fourth of the harsh ones.
        """
        own = kernel.record_accumulator is not None and (seed % 8 == 2 or seed % 16 == 15)
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
        """Return the application that replaces the planned one, if one does."""
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

    def coordinators(self, seed: int, broker: Broker) -> Coordinators | None:
        """Return what answers the producers of clients/writing, None where producers are simulated."""
        levels = (NEW_PROTOCOL_LEVEL, 1) if self.rare else (NEW_PROTOCOL_LEVEL, NEW_PROTOCOL_LEVEL, 1)
        level = random.Random(f"level {seed}").choice(levels)
        return Coordinators(broker, level) if self.own else None


PLAIN = Kind()


class LateAnswers:
    """Draws when a leader answers where its partitions end. enabled: otherwise it does at once."""

    def __init__(self, seed: int, enabled: bool) -> None:
        self._chance = random.Random(f"late {seed}")
        self._enabled = enabled

    def next_ms(self) -> int:
        """Return after how many ms the next question is answered."""
        return self._chance.choice(ANSWERS_MS) if self._enabled else 0
