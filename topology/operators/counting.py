"""What count(), and reduce() in windows, aggregate with; a fused loop knows these and writes what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def count_initializer() -> int:
    """Return the first count."""
    return 0


def count_aggregator(key: Any, value: Any, aggregate: int) -> int:
    """Return the count after one more record."""
    return aggregate + 1


def count_merger(key: Any, one: int, other: int) -> int:
    """Return the count of two sessions that have become one."""
    return one + other


@dataclass(frozen=True)
class ReducerAsAggregator:
    """A reducer(aggregate, value) as an aggregator(key, value, aggregate); the first value is the aggregate."""

    reducer: Callable[[Any, Any], Any]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Return the aggregate after one more value."""
        return value if aggregate is None else self.reducer(aggregate, value)
