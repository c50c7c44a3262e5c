"""Generates code that updates the row of a key in a fused loop, wherever the row is: see fusion.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .counting import count_aggregator, count_initializer

if TYPE_CHECKING:
    from ..run.fusion import Names


class FusedUpdate(ABC):
    """Generates the update of the row (value, timestamp) of one key. Subclasses know where the row is."""

    @abstractmethod
    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        """Generate new = aggregator(key, value, old), where old is initializer() for a new key."""

    @abstractmethod
    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        """Generate new = reducer(old, value), or new = value for a new key."""

    @abstractmethod
    def replace(self, names: Names) -> None:
        """Generate the replacement of the row's value, where None deletes the row."""


def counts(initializer: Callable[[], Any], aggregator: Callable[..., Any]) -> bool:
    """Return whether these are the functions of count()."""
    return aggregator is count_aggregator and initializer is count_initializer
