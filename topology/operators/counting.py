"""The aggregators of count() and of windowed reduce(), which the kernel has nodes for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..common.user_functions import Reducer


def count_initializer() -> int:
    """Return the initial count."""
    return 0


def count_aggregator(key: object, value: object, aggregate: int) -> int:
    """Return the count after one more record."""
    return aggregate + 1


def count_merger(key: object, one: int, other: int) -> int:
    """Return the count of two merged sessions."""
    return one + other


@dataclass(frozen=True)
class ReducerAsAggregator:
    """Adapts a reducer(aggregate, value) to an aggregator(key, value, aggregate). The first value is the aggregate."""

    reducer: Reducer

    def __call__(self, key: object, value: object, aggregate: object) -> object:
        """Return the aggregate after one more value."""
        return value if aggregate is None else self.reducer(aggregate, value)


def counts(initializer: Callable[[], object], aggregator: Callable[..., object]) -> bool:
    """Return whether these are the functions of count()."""
    return aggregator is count_aggregator and initializer is count_initializer
