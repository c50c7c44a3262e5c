"""The definition of a mutant: the real code with one rule broken at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Mutant:
    """owner.name is replaced by the result of make(the original). found_by: a seed whose schedule detects it.

    aims: where processes are hit, for mutants that need a pause at one particular call; see Simulation. plain: False if
    found_by is the seed of a mixed schedule, or of one with async functions, real producers or late responses.
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
        """Break the rule while the context is active."""
        original = vars(self.owner)[self.attribute]  # AttributeError or KeyError: the code has changed since
        with patch.object(self.owner, self.attribute, self.make(original)):
            yield
