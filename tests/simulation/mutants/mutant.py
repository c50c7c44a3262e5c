"""What a mutant is: the real code with one rule broken at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Mutant:
    """owner.name is replaced by what make(the original) returns. found_by: a seed whose schedule finds it.

    aims: where processes are hit, for what needs a pause at one certain call; see Simulation. plain: False if
    found_by is the seed of a mixed schedule, or of one with functions that wait, real producers or late answers.
    """

    name: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    found_by: int
    aims: tuple[str, ...] = ()
    plain: bool = True

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the rule for as long as this lasts."""
        original = vars(self.owner)[self.attribute]  # AttributeError or KeyError: the code has moved on
        with patch.object(self.owner, self.attribute, self.make(original)):
            yield
