"""Kinds of schedules: which seeds have what goes beyond the plain ones.

Each kind has chances of its own, so that a seed's plan is else the same with it and without.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.applications import ASKING, Application


@dataclass(frozen=True)
class Kind:
    """harsh: see Harsh. mixed: some hosts may run on Java. asking: the application has functions that wait."""

    harsh: bool = False
    mixed: bool = False
    asking: bool = False

    @classmethod
    def of(cls, seed: int) -> Kind:
        """Return the kind of a seed's schedule: a fourth is harsh, a fourth mixed, in an eighth functions wait."""
        return cls(harsh=seed % 4 == 3, mixed=seed % 4 == 1, asking=seed % 8 == 6)

    def application(self, seed: int, planned: Application) -> Application:
        """Return the application that takes the place of the planned one, if one does."""
        return random.Random(f"asking {seed}").choice(ASKING) if self.asking else planned


PLAIN = Kind()
